"""What a mechanism proves about one release, in words and in numbers that can be added up.

A field that leaves a client without a `Guarantee` is unprotected. A mechanism that adds noise but proves nothing is
`Guarantee.none(…)`: it is shown, and counted as unprotected.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue, model_validator

Unit = Literal["record", "client"]
Adjacency = Literal["add or remove one", "replace one"]
Scope = tuple[Unit, Adjacency]
"""What an ε is about: whose presence it hides, and what counts as a neighbouring data set."""

Against = Literal[
    "everybody",
    "all but a malicious server",
    "all but the server",
    "all but holders of the seed",
    "all but a malicious server and holders of the seed",
    "all but the server and holders of the seed",
]
"""Against whom a guarantee holds. The server sends the seed with every request: it always holds it. A malicious server
does not keep to the protocol."""

_EXCEPTED: dict[Against, frozenset[str]] = {
    "everybody": frozenset(),
    "all but a malicious server": frozenset({"malicious"}),
    "all but the server": frozenset({"malicious", "server"}),
    "all but holders of the seed": frozenset({"seed"}),
    "all but a malicious server and holders of the seed": frozenset({"malicious", "seed"}),
    "all but the server and holders of the seed": frozenset({"malicious", "server", "seed"}),
}

LARGEST = 1e12  # of any number here: far beyond sense, and safe to square and to add up
LARGEST_DISCRETE = 1e4  # noise on counts: its distribution is written out, value by value

NUMBER_PUBLIC = "the number of examples, which is taken as public: it decides sampling rate and divisor; who takes part"
EVERY_UPDATE = "which sees every clipped update"  # what a guarantee against all but the server leaves out
MASKED = "secure aggregation"  # begins the mechanism of what the server sees as a sum alone


class _Frozen(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Numbers that are checked once and never change."""


class GaussianEvent(_Frozen):
    """One release with Gaussian noise; `mu` is the L2 sensitivity divided by the noise's standard deviation."""

    kind: Literal["gaussian"] = "gaussian"
    mu: float = Field(ge=0, le=LARGEST)


class DiscreteGaussianEvent(_Frozen):
    """One release of whole numbers, of which one changes by 1, with discrete Gaussian noise of parameter `sigma`."""

    kind: Literal["discrete gaussian"] = "discrete gaussian"
    sigma: float = Field(ge=1 / LARGEST, le=LARGEST_DISCRETE)


class LaplaceEvent(_Frozen):
    """One release with Laplace noise; `scale` is the noise's b divided by the L1 sensitivity."""

    kind: Literal["laplace"] = "laplace"
    scale: float = Field(ge=1 / LARGEST, le=LARGEST)


class SampledGaussianEvent(_Frozen):
    """Steps on Poisson samples (every record by itself, with chance `rate`); `noise` is the noise multiplier."""

    kind: Literal["sampled gaussian"] = "sampled gaussian"
    rate: float = Field(ge=0, le=1)
    noise: float = Field(ge=1 / LARGEST, le=LARGEST)
    steps: int = Field(ge=0)


class PureEvent(_Frozen):
    """One release that is ε-differentially private with δ = 0; ε = 0 where nothing depends on the data."""

    kind: Literal["pure"] = "pure"
    epsilon: float = Field(ge=0, le=LARGEST)


Event = Annotated[
    GaussianEvent | DiscreteGaussianEvent | LaplaceEvent | SampledGaussianEvent | PureEvent, Field(discriminator="kind")
]


class Guarantee(_Frozen):
    """What is proven about one field of one reply, for whom, and what the proof leaves out."""

    mechanism: str = Field(min_length=1, description="what was done, in plain words, with its numbers")
    events: tuple[Event, ...] = ()
    unit: Unit = "record"
    adjacency: Adjacency = "add or remove one"
    covered: str = ""
    not_covered: str = ""
    claimed: str = Field("", description="what a paper claims, or other numbers worth showing, in words")
    proven: bool = True
    against: Against = "everybody"
    masked: bool = Field(False, description="the server reads it as a part of a sum only")

    @model_validator(mode="after")
    def _consistent(self) -> "Guarantee":
        if self.proven != bool(self.events):
            raise ValueError(
                "a proof needs events (PureEvent(epsilon=0) where nothing depends on the data), and events are a proof"
            )
        if self.adjacency == "replace one" and any(isinstance(e, SampledGaussianEvent) for e in self.events):
            raise ValueError('sampling is accounted for "add or remove one" only')
        if self.adjacency == "replace one" and any(isinstance(e, DiscreteGaussianEvent) for e in self.events):
            raise ValueError('noise on counts is accounted for "add or remove one" only')
        if self.unit == "client" and any(isinstance(e, DiscreteGaussianEvent) for e in self.events):
            raise ValueError("noise on counts is accounted per record only")
        return self

    @classmethod
    def none(cls, mechanism: str, not_covered: str, claimed: str = "") -> "Guarantee":
        """A mechanism was used, but it proves nothing; `not_covered` says why."""
        return cls(mechanism=mechanism, not_covered=not_covered, claimed=claimed, proven=False)

    @classmethod
    def constant(cls, mechanism: str, why: str, scope: Scope = ("record", "add or remove one")) -> "Guarantee":
        """Nothing is spent, and `why`."""
        free, (unit, adjacency) = (PureEvent(epsilon=0),), scope
        return cls(mechanism=mechanism, events=free, unit=unit, adjacency=adjacency, covered=f"all of it: {why}")

    @property
    def scope(self) -> Scope:
        """What its ε is about; guarantees of different scopes cannot be added up."""
        return self.unit, self.adjacency

    @property
    def free(self) -> bool:
        """Whether it is proven that nothing is released: no noise is in it, and no seed takes any off."""
        return self.proven and all(isinstance(event, PureEvent) and event.epsilon == 0 for event in self.events)

    @property
    def costs(self) -> bool:
        """Whether it spends something of a budget."""
        return self.proven and not self.free

    def seeded(self) -> "Guarantee":
        """The same where the noise comes from the run's seed: who has the seed can take it off."""
        if not self.costs:
            return self
        return self.model_copy(update={"against": weakest([self.against, "all but holders of the seed"])})

    def in_plain_words(self) -> "Guarantee":
        """The same, described by its numbers alone: free text could carry anything."""
        described = "; ".join(map(_describe, self.events)) or "no proof"
        return self.model_copy(update={"mechanism": described, "covered": "", "not_covered": "", "claimed": ""})

    def as_dict(self) -> dict[str, JsonValue]:
        """JSON-ready; `Guarantee.model_validate` reads it back."""
        return self.model_dump(mode="json")


def weakest(given: Iterable[Against]) -> Against:
    """Against whom several guarantees hold together."""
    excepted = frozenset[str]().union(*(_EXCEPTED[against] for against in given))
    return next(against for against, who in _EXCEPTED.items() if who == excepted)


def _describe(event: Event) -> str:
    numbers = ", ".join(f"{name} = {value:g}" for name, value in event.model_dump(exclude={"kind"}).items())
    return f"{event.kind} ({numbers})"


def constant_guarantee(beside: Guarantee) -> Guarantee:
    """The guarantee of a constant that leaves beside something protected."""
    return Guarantee.constant("the same constant for every client", "nothing depends on the data", beside.scope)
