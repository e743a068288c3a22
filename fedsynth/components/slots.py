"""The slots of the shared loop: the places in which most methods differ from FedAvg.

A slot value is a small frozen object with a name and its settings. An experiment names it (`aggregator = "median"` or
`aggregator = {name = "trimmed_mean", trim = 0.2}`), and a value that acts at the clients travels there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import torch.nn.functional as F
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, model_serializer
from torch import Tensor

from fedsynth.components.samples import Samples
from fedsynth.errors import ConfigError, nearest
from fedsynth.federation import Client, Federation, Message
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import CrossEntropy, FitResult, Objective
from fedsynth.learning.weights import Weights
from fedsynth.privacy import PrivacyConfig
from fedsynth.privacy.dpsgd import Loss
from fedsynth.privacy.guarantee import Scope

Memory = dict[str, Any]
"""What a slot value remembers at the server from round to round; it goes into checkpoints."""

Kept = Literal["nothing", "buffers", "norm", "head"] | Annotated[int, Field(ge=1)]
"""The part of a model that stays at the clients; a number: so many of its last layers."""


class SlotValue(BaseModel):
    """Base of all slot values; each slot keeps a register of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str] = ""
    slot: ClassVar[str] = ""
    needs: ClassVar[str] = ""  # name of the value that must fill the other slot: clients' and server's half of a method
    other_half: ClassVar[str] = ""  # that slot
    unprotected: ClassVar[str] = ""  # why it does not go with protected updates; empty where it does
    known: "ClassVar[dict[str, type[SlotValue]]]" = {}

    def __init_subclass__(cls, slot: str = "", name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if slot:
            cls.slot, cls.known = slot, {}
        if name:
            cls.name = name
            cls.known[name] = cls

    @model_serializer(mode="wrap")
    def _with_its_name(self, settings: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        return {"name": self.name, **settings(self)}

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

    def scheduled(self, rounds: int) -> Self:
        """The value as it acts in a run of so many rounds."""
        return self

    @classmethod
    def as_method(cls, beside: "Mapping[str, type[SlotValue]]") -> tuple[Callable[..., Any], type[Any]]:
        """The method that is FedAvg with this value in its slot, and those beside it (see `slot_methods.py`)."""
        raise NotImplementedError


# -- what happens at a client ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalContext:
    """One local training: the client, its network, the weights it received, the labels of the examples it trains on
    and what the server's rule sent along. `scratch` lasts from the objective's `begin` to its `finish`."""

    client: Client
    net: Classifier
    received: Weights
    training: LocalTraining
    labels: Tensor
    sent: Weights
    scratch: dict[str, Any] = field(default_factory=dict)


class LocalObjective(SlotValue, slot="objective"):
    """What a client minimises, and what it reports beside its weights.

    `by_record`: the loss of a record depends on no other record, but for what was released with noise, so that DP-SGD
    can clip its gradient. `keeps`, `personal`: where such a method keeps a part of the model at the clients, or ends
    with a model for each.
    """

    other_half: ClassVar[str] = "aggregator"
    by_record: ClassVar[bool] = False
    keeps: ClassVar[Kept] = "nothing"
    personal: ClassVar[str] = ""

    def prepare(self, fed: Federation, delta: float) -> None:
        """Before the first round with DP-SGD: ask the clients for what `record_loss` needs, protected."""

    def record_loss(self, local: LocalContext) -> Loss:
        """The loss of one record, by its scores and its label, where this is `by_record`."""
        return F.cross_entropy

    def training(self, asked: LocalTraining) -> LocalTraining:
        """How the received model is trained on it."""
        return asked

    def begin(self, local: LocalContext) -> Objective:
        """The objective of this round."""
        return CrossEntropy()

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        """After training: named tensors to report beside the weights; what to keep goes into `client.state`."""
        return {}


class Plain(LocalObjective, name="plain"):
    """Cross-entropy."""

    by_record: ClassVar[bool] = True


class LocalData(SlotValue, slot="local_data"):
    """What a client trains on: its own examples, or more. `private_when`: what `post_processing` hangs on."""

    private_when: ClassVar[str] = "it is for own examples"

    @property
    def post_processing(self) -> bool:
        """Whether what it adds is made from protected releases alone, however the client's own records are."""
        return False

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        """Refuse a model or settings that this cannot work with, before the first round."""

    def active(self, index: int) -> bool:
        """Whether it does anything in this round, counted from 1; in other rounds clients train as always."""
        return False

    def prepare(self, fed: Federation, privacy: PrivacyConfig) -> None:
        """Before the first round: ask the clients for what it needs, and give them what is made of that."""

    def given(self, fed: Federation) -> Samples | None:
        """What the server sends along for it."""
        return None

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: Samples | None
    ) -> tuple[Tensor, Tensor]:
        """The examples of this round, from the client's own, the network it has received and what was sent along."""
        return x, y

    def restore(self, client: Client, net: Classifier) -> None:
        """Put right in the trained network what such examples have spoilt. Not called where updates are protected."""


class OwnExamples(LocalData, name="own"):
    """The client's own examples, as they are."""


# -- what happens at the server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundInfo:
    """What a server's rule may want to know about the federation and the round."""

    index: int
    training: LocalTraining
    trained: set[str]
    clients: int
    last: bool = False


class Aggregator(SlotValue, slot="aggregator"):
    """Makes the next model out of the replies. `memory` lasts over the rounds and goes into checkpoints."""

    other_half: ClassVar[str] = "objective"

    robust: ClassVar[bool] = False  # whether it is meant to withstand clients that lie

    def sent(self, memory: Memory, model: Weights, info: RoundInfo) -> Weights:
        """Named tensors to send beside the model."""
        return {}

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        """The clients' average, or what stands in its place."""
        raise NotImplementedError


class Mean(Aggregator, name="mean"):
    """The mean, weighted by the clients' numbers of examples (or equally)."""

    weights: Literal["examples", "equal"] = Field("examples", description="what a client weighs")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        return weighted_mean((r.model, r.examples if self.weights == "examples" else 1) for r in replies.values())


class ServerOptimizer(SlotValue, slot="server"):
    """How the server moves from its model towards the clients' average."""

    def step(self, model: Weights, target: Weights, memory: Memory, info: RoundInfo) -> Weights:
        """The next model."""
        return target


class TakeAverage(ServerOptimizer, name="none"):
    """The average is the next model."""


class SecureSettings(Message):
    """How sums are kept secure: how large a share of the clients must stay, what the ε of their updates is about."""

    threshold: float
    scope: Scope | None = None


@dataclass(frozen=True)
class AggregationContext:
    """One aggregation: the new model, the clients' models it was made of, and where that happened.

    `secure` is how updates are summed where no single client may be seen, `privacy` what the experiment asks for.
    """

    fed: Federation
    spec: ModelSpec
    model: Weights
    received: Mapping[str, Weights]
    training: LocalTraining
    memory: Memory
    secure: SecureSettings | None
    privacy: PrivacyConfig
    last: bool = False  # whether no later round will be tuned
    extra: Mapping[str, Weights] = field(default_factory=dict)  # what clients' objectives sent beside the models


class PostAggregation(SlotValue, slot="post_aggregation"):
    """What the server does to the new model before the next round."""

    other_half: ClassVar[str] = "objective"

    @property
    def single_models(self) -> bool:
        """Whether it works with the models of single clients, not with the new one alone."""
        return True

    @property
    def at_end(self) -> bool:
        """Whether it acts after the last round alone."""
        return False

    def exposes(self, hides_records: bool) -> str:
        """Why what it has clients release is not protected as their updates are; empty where it is, or is nothing."""
        return ""

    @property
    def asks_clients(self) -> bool:
        """Whether it will ask the clients of this round about the models they have just trained."""
        return False

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        """Refuse a model or settings that this cannot work with, before the first round."""

    def active(self, index: int) -> bool:
        """Whether it does anything in this round, counted from 1."""
        return False

    def due(self, round: RoundInfo) -> bool:
        """The same, for what acts by more than the number of the round."""
        return self.active(round.index)

    def sent(self, memory: Memory) -> Weights:
        """Named tensors to send to the clients' objectives, of what it remembers."""
        return {}

    def tune(self, context: AggregationContext) -> Weights:
        """The model for the next round."""
        return context.model


class NoPostAggregation(PostAggregation, name="nothing"):
    """The new model stays as it is."""

    @property
    def single_models(self) -> bool:
        return False


def check_halves(*values: SlotValue) -> None:
    """Refuse one half of a method without the other, which must fill the slot that it speaks with."""
    chosen = {value.slot: value for value in values}
    for one in values:
        if one.needs and one.needs != chosen[one.other_half].name:
            other = chosen[one.other_half]
            raise ConfigError(f'{one.slot} "{one.name}" needs {other.slot} = "{one.needs}", not "{other.name}".')


# The types of fields that hold a value of a slot: read by its name, written with its own settings.
ObjectiveSlot = Annotated[LocalObjective, BeforeValidator(LocalObjective.parse), SerializeAsAny()]
AggregatorSlot = Annotated[Aggregator, BeforeValidator(Aggregator.parse), SerializeAsAny()]
ServerSlot = Annotated[ServerOptimizer, BeforeValidator(ServerOptimizer.parse), SerializeAsAny()]
PostAggregationSlot = Annotated[PostAggregation, BeforeValidator(PostAggregation.parse), SerializeAsAny()]
LocalDataSlot = Annotated[LocalData, BeforeValidator(LocalData.parse), SerializeAsAny()]
