"""What a mechanism proves about one release, in words and in numbers that can be added up.

A field that leaves a client without a `Guarantee` is unprotected. A mechanism that adds noise but proves nothing is
`Guarantee.none(…)`: it is shown, and counted as unprotected.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Unit = Literal["record", "client"]
Adjacency = Literal["add or remove one", "replace one"]
Scope = tuple[Unit, Adjacency]
"""What an ε is about: whose presence it hides, and what counts as a neighbouring data set."""

LARGEST = 1e12  # of any number here: far beyond sense, and safe to square and to add up
LARGEST_DISCRETE = 1e4  # noise on counts: its distribution is written out, value by value


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
    GaussianEvent | DiscreteGaussianEvent | LaplaceEvent | SampledGaussianEvent | PureEvent,
    Field(discriminator="kind"),
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

    @model_validator(mode="after")
    def _consistent(self) -> Guarantee:
        if self.proven != bool(self.events):
            raise ValueError(
                "a proof needs events (PureEvent(epsilon=0) where nothing depends on the data), and events are a proof"
            )
        if self.adjacency == "replace one" and any(isinstance(e, SampledGaussianEvent) for e in self.events):
            raise ValueError('sampling is accounted for "add or remove one" only')
        if self.adjacency == "replace one" and any(isinstance(e, DiscreteGaussianEvent) for e in self.events):
            raise ValueError('noise on counts is accounted for "add or remove one" only')
        return self

    @classmethod
    def none(cls, mechanism: str, not_covered: str, claimed: str = "") -> Guarantee:
        """A mechanism was used, but it proves nothing; `not_covered` says why."""
        return cls(mechanism=mechanism, not_covered=not_covered, claimed=claimed, proven=False)

    @property
    def scope(self) -> Scope:
        """What its ε is about; guarantees of different scopes cannot be added up."""
        return self.unit, self.adjacency

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `Guarantee.model_validate` reads it back."""
        return self.model_dump(mode="json")
