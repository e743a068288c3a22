"""FedAvg's loop, written once, with the slots in which most methods differ from it (see `slots.py`).

A round is an exchange and a combination. What a method does in between is its own affair:

    loop = Loop(fed, cfg)
    for round in loop.rounds():
        loop.advance(round, loop.exchange(round))
    return loop.outcome()
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

from pydantic import Field

from fedsynth.components.local_training import TrainRequest, Update, UpdatePrivacy, kept_entries
from fedsynth.components.recalibration import pooled_buffers, recalibrate
from fedsynth.components.settings import MethodConfig
from fedsynth.components.slots import (
    AggregationContext,
    Aggregator,
    AggregatorSlot,
    Kept,
    LocalData,
    LocalDataSlot,
    LocalObjective,
    Mean,
    Memory,
    NoPostAggregation,
    ObjectiveSlot,
    OwnExamples,
    Plain,
    PostAggregation,
    PostAggregationSlot,
    RoundInfo,
    ServerOptimizer,
    ServerSlot,
    TakeAverage,
    check_halves,
)
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, State
from fedsynth.learning.weights import Weights, buffer_entries, weights_of

NO_GLOBAL: dict[Kept, str] = {
    "buffers": "BatchNorm's running statistics stay at the clients",
    "norm": "normalisation layers stay at the clients",
    "head": "the last layer stays at the clients",
    1: "the last layer stays at the clients",
}


def why_no_global(keeps: Kept) -> str:
    """Why there is no whole global model where a part of the weights is kept at the clients."""
    return NO_GLOBAL.get(keeps, f"the last {keeps} layers stay at the clients")


TUNED = "post_aggregation"  # in the memory: what the value of that slot remembers


class LoopConfig(MethodConfig):
    """Settings of every method that is the shared loop with other values in its slots."""

    objective: ObjectiveSlot | None = Field(None, description="what clients minimise, in place of the method's own")
    aggregator: AggregatorSlot | None = Field(
        None, description="how replies are combined, in place of the method's own"
    )
    server: ServerSlot | None = Field(None, description="the server's optimiser, in place of the method's own")
    post_aggregation: PostAggregationSlot | None = Field(
        None, description="what the server does to the new model, in place of its own"
    )
    local_data: LocalDataSlot | None = Field(None, description="what clients train on, in place of the method's own")

    protects: ClassVar[bool] = True
    requires_individual_updates: ClassVar[str] = ""

    @property
    def changes_the_loop(self) -> bool:
        """Whether the experiment asks for anything but FedAvg's own loop."""
        chosen = (self.objective, self.aggregator, self.server, self.post_aggregation, self.local_data)
        private = self.privacy.updates != "none" or self.privacy.secure_aggregation
        return private or self.train.norm_buffers != "average" or any(value is not None for value in chosen)


class OwnSlots(TypedDict, total=False):
    """The values that a method itself puts into some slots."""

    objective: LocalObjective
    aggregator: Aggregator
    server: ServerOptimizer
    post_aggregation: PostAggregation
    local_data: LocalData


@dataclass(frozen=True)
class Slots:
    """The values in the slots of one run."""

    objective: LocalObjective
    aggregator: Aggregator
    server: ServerOptimizer
    post_aggregation: PostAggregation
    local_data: LocalData

    @classmethod
    def chosen(cls, cfg: LoopConfig, own: OwnSlots) -> "Slots":
        """The experiment's choice, or else the method's own, or else FedAvg's."""
        slots = cls(
            cfg.objective or own.get("objective", Plain()),
            cfg.aggregator or own.get("aggregator", Mean()),
            cfg.server or own.get("server", TakeAverage()),
            (cfg.post_aggregation or own.get("post_aggregation", NoPostAggregation())).scheduled(cfg.train.rounds),
            (cfg.local_data or own.get("local_data", OwnExamples())).scheduled(cfg.train.rounds),
        )
        check_halves(slots.objective, slots.aggregator, slots.post_aggregation)
        return slots


class LoopState(State):
    """What the loop carries from round to round. `parts` are entries that travel with the model beside its own."""

    model: Weights
    parts: Weights
    memory: Memory
    personal: str


class Loop:
    """One run of the loop: all that can be wrong with its settings is found before anything has left a client.

    `trainings` is how often a client trains in a round, at most.
    """

    def __init__(
        self, fed: Federation, cfg: LoopConfig, *, keeps: Kept = "nothing", trainings: int = 1, **own: Unpack[OwnSlots]
    ) -> None:
        self.fed, self.cfg, self.slots = fed, cfg, Slots.chosen(cfg, own)
        self.net = fed.initial_model(cfg.model)
        self.privacy = update_privacy(cfg, trainings)
        self.keeps = "buffers" if keeps == "nothing" and cfg.train.norm_buffers == "local" else keeps
        self.kept = kept_entries(self.net, self.keeps)
        self.privacy.check(self)
        self._check_pooling()
        self.slots.post_aggregation.check(self.net, cfg.privacy)
        self.slots.local_data.check(self.net, cfg.privacy)
        if self.kept and not isinstance(self.slots.post_aggregation, NoPostAggregation):
            name = self.slots.post_aggregation.name
            raise ConfigError(f'post_aggregation = "{name}" needs whole models, but {why_no_global(self.keeps)}.')
        if self.slots.post_aggregation.at_end:
            self._check_end()
        self._ready = False
        self.state = LoopState(model=weights_of(self.net), parts={}, memory={}, personal="kept" if self.kept else "")

    def _check_end(self) -> None:
        """Refuse a final step that would not come, or not reach the models that a run ends with."""
        name = self.slots.post_aggregation.name
        if self.cfg.train.patience is not None:
            raise ConfigError(
                f'post_aggregation = "{name}" acts after the last round, before which train.patience may stop: remove '
                "patience, or have it act after each round."
            )
        if self.slots.objective.personal:
            raise ConfigError(
                f'post_aggregation = "{name}" changes the global model after the last round, and '
                f'"{self.slots.objective.name}" ends with models that clients have trained for themselves before.'
            )

    def refuse_local_statistics(self, why: str) -> None:
        """Refuse `norm_buffers = "local"` where whole models are shared."""
        if self.cfg.train.norm_buffers == "local":
            raise ConfigError(
                f'train.norm_buffers = "local" has no meaning where {why}: set "average", "pooled" or "recalibrate".'
            )

    def _check_pooling(self) -> None:
        """Refuse `norm_buffers = "pooled"` beside an aggregator that a single client shall not get past."""
        if self.cfg.train.norm_buffers == "pooled" and self.slots.aggregator.robust:
            raise ConfigError(
                f'train.norm_buffers = "pooled" takes in the statistics of every client, and aggregator '
                f'"{self.slots.aggregator.name}" is there so that no single one decides: set "average".'
            )

    def rounds(
        self, name: str = "train", count: int | None = None, first: int = 0, evaluated: bool = True
    ) -> Iterator[RoundInfo]:
        """Count rounds; `first` is the number of those before. Not `evaluated`: steps of a phase."""
        self.prepare()
        counted = self.fed.rounds if evaluated else self.fed.steps
        for index in counted(name, self.cfg.train.rounds if count is None else count, self.state):
            yield self.info(first + index, evaluated)

    def prepare(self) -> None:
        """Before the first round, once: what update privacy and local data ask the clients for."""
        if not self._ready:
            self.privacy.prepare(self.fed, self.slots.objective)
            self.slots.local_data.prepare(self.fed, self.cfg.privacy)
        self._ready = True

    def info(self, index: int, evaluated: bool = True) -> RoundInfo:
        """What the rules of the server may know about a round; the steps of a phase have no last one."""
        trained = {name for name, _ in self.net.named_parameters()} - self.kept
        last = evaluated and index == self.cfg.train.rounds
        return RoundInfo(index, self.cfg.train.local(index), trained, len(self.fed.clients), last)

    def request(self, round: RoundInfo, model: Weights, memory: Memory) -> TrainRequest:
        """How clients are to train in this round."""
        local_data, tuning = self.slots.local_data, self.slots.post_aggregation
        active = local_data.active(round.index)
        return TrainRequest(
            spec=self.cfg.model,
            training=round.training,
            objective=self.slots.objective,
            local_data=local_data if active else OwnExamples(),
            given=local_data.given(self.fed) if active else None,
            updates=self.privacy.at_clients(),
            sent=self.slots.aggregator.sent(memory, model, round) | tuning.sent(memory.get(TUNED, {})),
            keeps=self.keeps,
            remember=tuning.due(round) and tuning.asks_clients,
        )

    def exchange(self, round: RoundInfo) -> Mapping[str, Update]:
        """The same request to a sample of the clients."""
        model = {name: entry for name, entry in self.state.model.items() if name not in self.kept}
        chosen = self.fed.sample(self.cfg.train.fraction)
        request = self.request(round, self.state.model, self.state.memory)
        return self.privacy.collect(self.fed, chosen, model, request, self._equal)

    @property
    def _equal(self) -> bool:
        """Whether all clients weigh alike."""
        return isinstance(self.slots.aggregator, Mean) and self.slots.aggregator.weights == "equal"

    def advance(self, round: RoundInfo, replies: Mapping[str, Update], asked: list[str] | None = None) -> None:
        """Make the next model out of what came back; where nobody could be reached, the model waits.

        `asked` are the clients behind the replies, where these are not theirs alone.
        """
        if not replies:
            return
        state, names = self.state, set(self.state.model)
        entries = self.combine(round, state.model | state.parts, replies, state.memory, asked)
        state.model = {name: entry for name, entry in entries.items() if name in names}
        state.parts = {name: entry for name, entry in entries.items() if name not in names}

    def combine(
        self,
        round: RoundInfo,
        model: Weights,
        replies: Mapping[str, Update],
        memory: Memory,
        asked: list[str] | None = None,
    ) -> Weights:
        """Combine the replies, step towards that, renew BatchNorm's statistics and tune, as the settings say."""
        target = self.slots.aggregator.combine(model, replies, memory, round)
        target = self.privacy.protect_mean(self.fed, target, round.trained, len(replies))
        entries = model | self.slots.server.step(model, target, memory, round)
        own = {name: entry for name, entry in entries.items() if name in self.net.state_dict()}
        buffers, rule = buffer_entries(self.net) - self.kept, self.cfg.train.norm_buffers
        if buffers and rule == "recalibrate":
            own |= recalibrate(self.fed, self.cfg.model, own, list(replies) if asked is None else asked)
        elif buffers and rule == "pooled":
            own |= pooled_buffers(replies.values(), buffers, self._equal)
        return entries | self.tune(round, own, replies, memory)

    def tune(self, round: RoundInfo, model: Weights, replies: Mapping[str, Update], memory: Memory) -> Weights:
        """The new model as the slot after the aggregate leaves it."""
        if not self.slots.post_aggregation.due(round):
            return model
        received = {c: {n: e for n, e in r.model.items() if n in model} for c, r in replies.items()}
        extra = {client: reply.extra for client, reply in replies.items() if reply.extra}
        kept = memory.setdefault(TUNED, {})
        later = range(round.index + 1, self.cfg.train.rounds + 1)
        last = not any(map(self.slots.post_aggregation.active, later))
        context = AggregationContext(
            fed=self.fed,
            spec=self.cfg.model,
            model=model,
            received=received,
            training=round.training,
            memory=kept,
            secure=self.privacy.secure,
            privacy=self.cfg.privacy,
            last=last,
            extra=extra,
        )
        return self.slots.post_aggregation.tune(context)

    def outcome(self) -> Outcome:
        """What a method of the shared loop ends with."""
        personal = self.slots.objective.personal or self.state.personal
        return Outcome(self.state.model, personal=personal, no_global=why_no_global(self.keeps) if self.kept else "")


def federated_loop(fed: Federation, cfg: LoopConfig, keeps: Kept = "nothing", **own: Unpack[OwnSlots]) -> Outcome:
    """Sample clients, let them train, combine what they send, step: `cfg.train.rounds` times.

    `own` are the method's own slot values; those that the experiment sets take their place.
    """
    loop = Loop(fed, cfg, keeps=keeps, **own)
    for round in loop.rounds():
        loop.advance(round, loop.exchange(round))
    return loop.outcome()


def update_privacy(cfg: MethodConfig, trainings: int = 1) -> UpdatePrivacy:
    """What protects updates, as the experiment asks; a client trains so many times in a round, at most."""
    kinds = UpdatePrivacy.known
    chosen: Any = kinds[cfg.privacy.updates]
    privacy: UpdatePrivacy = chosen.planned(cfg.privacy, max(1, cfg.train.rounds * trainings))
    if cfg.privacy.secure_aggregation:
        around: Any = kinds["secure_sum"]
        privacy = around.around(privacy, cfg.privacy)
    return privacy
