"""The slots of the shared loop, and the values that come with the package.

A slot value is a small frozen object with a name and its settings. An experiment names it (`aggregator = "median"` or
`aggregator = {name = "trimmed_mean", trim = 0.2}`), and a value that acts at the clients is sent to them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch.nn.functional as F
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError
from torch import Tensor

from fedsynth.components.secure_aggregation import SecureSettings
from fedsynth.errors import ConfigError, nearest
from fedsynth.federation import Client, Federation
from fedsynth.learning.aggregators import krum, median, trimmed_mean, weighted_mean
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.server_optimizers import AdaptiveSettings, server_step
from fedsynth.learning.training import CrossEntropy, FitResult, Objective
from fedsynth.learning.weights import Weights
from fedsynth.privacy.dpsgd import Loss


class SlotValue(BaseModel):
    """Base of all slot values; each slot keeps a register of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = ""
    slot: ClassVar[str] = ""
    needs: ClassVar[str] = ""  # name of the value that must fill the other slot: clients' and server's half of a method
    unprotected: ClassVar[str] = ""  # why it does not go with protected updates; empty where it does
    known: ClassVar[dict[str, type[SlotValue]]] = {}

    def __init_subclass__(cls, slot: str = "", name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if slot:
            cls.slot, cls.known = slot, {}
        if name:
            cls.name = name
            cls.known[name] = cls

    def as_dict(self) -> dict[str, Any]:
        """Name and settings, for a file or a request."""
        return {"name": self.name, **self.model_dump(mode="json")}

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read a value from its name, or from a table with its name and settings."""
        if isinstance(value, cls):
            return value
        table = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
        name = table.pop("name", None)
        if not isinstance(name, str) or name not in cls.known:
            raise ConfigError(f'There is no {cls.slot} "{name}".{nearest(str(name), cls.known)}')
        try:
            return cls.known[name](**table)  # type: ignore[return-value]
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                known = nearest(key, cls.known[name].model_fields)
                raise ConfigError(f'{cls.slot} "{name}" has no setting "{key}".{known}') from None
            raise ConfigError(f'{cls.slot} "{name}", key "{key}": {problem["msg"].lower()}.') from None


# -- what happens at a client ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """One local training: the client, its network, the weights it received, the labels of the examples it trains on
    and what the server rule sent along."""

    client: Client
    net: Classifier
    received: Weights
    training: LocalTraining
    labels: Tensor
    sent: dict[str, Any]


class LocalRule(SlotValue, slot="objective"):
    """What a client minimises, and what it reports beside its weights.

    `by_record`: the loss of a record depends on no other record, but for what was let out with noise, so that DP-SGD
    can clip its gradient.
    """

    by_record: ClassVar[bool] = False

    def prepare(self, fed: Federation, delta: float) -> None:
        """Before the first round with DP-SGD: ask the clients for what `record_loss` needs, protected."""

    def record_loss(self, visit: Visit) -> Loss:
        """The loss of one record, by its scores and its label, where this is `by_record`."""
        return F.cross_entropy

    def begin(self, visit: Visit) -> Objective:
        """The objective of this round."""
        return CrossEntropy()

    def finish(self, visit: Visit, fit: FitResult) -> dict[str, Any]:
        """After training: what to report beside the weights; what to keep goes into `client.state`."""
        return {}


class Plain(LocalRule, name="plain"):
    """Cross-entropy."""

    by_record: ClassVar[bool] = True


class LocalData(SlotValue, slot="local_data"):
    """What a client trains on: its own examples, or more.

    `post_processing`: what it adds is made from protected releases alone, however the client's own records are.
    """

    post_processing: ClassVar[bool] = False

    def check(self, net: Classifier) -> None:
        """Refuse a model that this cannot work with, before the first round."""

    def active(self, index: int) -> bool:
        """Whether it does anything in this round, counted from 1; in other rounds clients train as always."""
        return False

    def given(self, fed: Federation, memory: dict[str, Any]) -> dict[str, Any]:
        """What the server sends along for it."""
        return {}

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """The examples of this round, from the client's own, the network it has received and what was sent along."""
        return x, y

    def settle(self, client: Client, net: Classifier) -> None:
        """Put right in the trained network what such examples have spoilt. Not called where updates are protected."""


class OwnExamples(LocalData, name="own"):
    """The client's own examples, as they are."""


# -- what happens at the server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What a server rule may want to know about the federation and the round."""

    trained: set[str]
    clients: int
    lr: float
    momentum: float


class Aggregator(SlotValue, slot="aggregator"):
    """Makes the next model out of the replies. `memory` lasts over the rounds and goes into checkpoints."""

    def sent(self, memory: dict[str, Any], model: Weights, setting: Setting) -> dict[str, Any]:
        """What to send beside the model."""
        return {}

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        """The clients' average, or what stands in its place."""
        raise NotImplementedError


class Mean(Aggregator, name="mean"):
    """The mean, weighted by the clients' numbers of examples (or all alike)."""

    weights: Literal["examples", "equal"] = Field("examples", description="what a client weighs")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        return weighted_mean((r.model, r.examples if self.weights == "examples" else 1) for r in replies.values())


class TrimmedMean(Aggregator, name="trimmed_mean"):
    """The mean without the extremes, coordinate by coordinate."""

    trim: float = Field(0.1, ge=0, lt=0.5, description="share of values left out at each end")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        return trimmed_mean([(r.model, r.examples) for r in replies.values()], self.trim)


class Median(Aggregator, name="median"):
    """The median, coordinate by coordinate."""

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        return median([(r.model, r.examples) for r in replies.values()])


class Krum(Aggregator, name="krum"):
    """The update nearest to its neighbours, or the mean of the best few."""

    byzantine: int = Field(1, ge=0, description="how many clients may lie")
    keep: int = Field(1, ge=1, description="how many updates are averaged (more than 1: multi-Krum)")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        return krum([(r.model, r.examples) for r in replies.values()], self.byzantine, self.keep, setting.trained)


class ServerOptimizer(SlotValue, slot="server"):
    """How the server moves from its model towards the clients' average."""

    def step(self, model: Weights, target: Weights, memory: dict[str, Any], setting: Setting) -> Weights:
        """The next model."""
        return target


class TakeAverage(ServerOptimizer, name="none"):
    """The average is the next model."""


class AdaptiveServer(AdaptiveSettings, ServerOptimizer, name="fedopt"):
    """SGD with momentum, Adam, Yogi or Adagrad on the averaged change."""

    def step(self, model: Weights, target: Weights, memory: dict[str, Any], setting: Setting) -> Weights:
        return server_step(model, target, memory.setdefault("server", {}), setting.trained, self)


@dataclass(frozen=True)
class Occasion:
    """One aggregation: the new model, the clients' models it was made of, and where that happened.

    `memory` lasts over the rounds and goes into checkpoints.
    """

    fed: Federation
    spec: ModelSpec
    model: Weights
    received: Mapping[str, Weights]
    training: LocalTraining
    index: int
    memory: dict[str, Any]
    secure: SecureSettings | None = None  # where no single client may be seen


class AfterAggregate(SlotValue, slot="after"):
    """What the server does to the new model before the next round."""

    @property
    def asks_clients(self) -> bool:
        """Whether it will ask the clients of this round about the models they have just trained."""
        return False

    def check(self, net: Classifier) -> None:
        """Refuse a model that this cannot work with, before the first round."""

    def active(self, index: int) -> bool:
        """Whether it does anything in this round, counted from 1."""
        return False

    def tuned(self, occasion: Occasion) -> Weights:
        """The model for the next round."""
        return occasion.model


class LeaveIt(AfterAggregate, name="nothing"):
    """The new model stays as it is."""


def check_halves(rule: LocalRule, aggregator: Aggregator) -> None:
    """Refuse an objective without the aggregator it speaks with, and the other way round."""
    halves: tuple[tuple[SlotValue, SlotValue], ...] = ((rule, aggregator), (aggregator, rule))
    for one, other in halves:
        if one.needs and one.needs != other.name:
            raise ConfigError(f'{one.slot} "{one.name}" needs {other.slot} = "{one.needs}", not "{other.name}".')


def _slot(kind: type[SlotValue]) -> Any:
    return Annotated[
        kind,
        BeforeValidator(kind.parse),
        PlainSerializer(lambda value: value.as_dict(), when_used="json"),
    ]


ObjectiveSlot = _slot(LocalRule)
AggregatorSlot = _slot(Aggregator)
ServerSlot = _slot(ServerOptimizer)
AfterSlot = _slot(AfterAggregate)
LocalDataSlot = _slot(LocalData)
