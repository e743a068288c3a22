"""What a server program carries, who looks on, and when too few have answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

from pydantic import ConfigDict, create_model
from torch import Tensor

from fedsynth.errors import FedsynthError
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.privacy import Budget

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation


class QuorumError(FedsynthError):
    """Too few clients answered; the run stops and can be resumed."""


class State:
    """What a server program carries from round to round: named values that go into the checkpoints."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Go back to what a checkpoint holds; entries that a subclass annotates get their types again."""
        kinds = get_type_hints(type(self), include_extras=True)
        self.__dict__.update({n: typed(kinds[n], value) if n in kinds else value for n, value in values.items()})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'The state has no "{name}".')

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


def typed(kind: Any, value: Any) -> Any:
    """What a payload has brought as dicts and lists, as the type that it was."""
    holder = create_model("Kept", __config__=ConfigDict(arbitrary_types_allowed=True), value=(kind, ...))
    return holder(value=value).value  # type: ignore[attr-defined]


class Watcher(Protocol):
    """Looks on as rounds finish: validates, records, shows progress. Returns True to stop early."""

    def phase_started(self, name: str, rounds: int, done: int) -> None: ...

    def round_done(self, fed: "Federation", name: str, state: State) -> bool: ...

    def step_done(self, fed: "Federation", name: str) -> None:
        """A step of a phase is done."""

    def show(self, fed: "Federation", name: str, images: Tensor, labels: Tensor) -> None:
        """Keep pictures that the program wants people to see."""

    def alignment(
        self, fed: "Federation", spec: ModelSpec, model: Weights, samples: tuple[Tensor, Tensor]
    ) -> float | None:
        """The cosine between the gradient on samples and on held-out data; None where there is none to look at."""

    def snapshot(self) -> dict[str, Any]:
        """What the watcher must get back on resume."""

    def restore(self, values: dict[str, Any]) -> None:
        """Go back to a snapshot, or to the start when it is empty."""


@dataclass(frozen=True)
class Policy:
    """How long to wait, how many must answer, and how much privacy a client may spend."""

    quorum: float = 1.0  # share of the asked clients that must answer
    deadline: float | None = None  # seconds for one ask
    budget: Budget | None = None  # for the protected releases of each client


def picked(fraction: float, clients: int) -> int:
    """How many a share of so many clients is; one at least."""
    return max(1, round(fraction * clients))
