"""FedAvg's loop, written once, with the slots in which most methods differ from it (see `slots.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from pydantic import Field
from torch import Tensor, nn

from fedsynth.components.recalibration import recalibrated
from fedsynth.components.secure_aggregation import SecureRound, SecureSettings, masked, secured
from fedsynth.components.secure_updates import check_secure, chosen_security, in_one_vector, securely_averaged
from fedsynth.components.settings import MethodConfig
from fedsynth.components.slots import (
    AfterAggregate,
    AfterSlot,
    Aggregator,
    AggregatorSlot,
    LeaveIt,
    LocalData,
    LocalDataSlot,
    LocalRule,
    Mean,
    ObjectiveSlot,
    Occasion,
    OwnExamples,
    Plain,
    ServerOptimizer,
    ServerSlot,
    Setting,
    TakeAverage,
    Visit,
    check_halves,
)
from fedsynth.components.update_privacy import (
    CONSTANTS,
    NOISE,
    Protection,
    all_guarantees,
    bare_noise_guarantee,
    check_data_and_tuning,
    check_here,
    check_protection,
    chosen_protection,
    planned_effort,
    private_fit,
    protected_update,
    update_guarantee,
    with_bare_noise,
    with_server_noise,
)
from fedsynth.data.dataset import Schema
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, task
from fedsynth.federation.personal import personal
from fedsynth.learning.aggregators import only
from fedsynth.learning.models import Classifier, ModelSpec, build_model, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import FitResult, Objective, fit
from fedsynth.learning.weights import Weights, buffer_entries, norm_entries, weights_of
from fedsynth.privacy.dpsgd import check_model
from fedsynth.seeding import derive

Kept = Literal["nothing", "buffers", "norm", "head"]

NO_GLOBAL = {
    "buffers": "BatchNorm's running statistics stay at the clients",
    "norm": "normalisation layers stay at the clients",
    "head": "the last layer stays at the clients",
}
"""Why there is no whole global model where a part of the weights is kept at the clients."""


class LoopConfig(MethodConfig):
    """Settings of every method that is the shared loop with other values in its slots."""

    objective: ObjectiveSlot | None = Field(None, description="what clients minimise, in place of the method's own")
    aggregator: AggregatorSlot | None = Field(
        None, description="how replies are combined, in place of the method's own"
    )
    server: ServerSlot | None = Field(None, description="the server's optimiser, in place of the method's own")
    after: AfterSlot | None = Field(None, description="what the server does to the new model, in place of its own")
    local_data: LocalDataSlot | None = Field(None, description="what clients train on, in place of the method's own")

    protects: ClassVar[bool] = True
    needs_single: ClassVar[str] = ""


class OwnSlots(TypedDict, total=False):
    """The values that a method itself puts into some slots."""

    objective: LocalRule
    aggregator: Aggregator
    server: ServerOptimizer
    after: AfterAggregate
    local_data: LocalData


@dataclass(frozen=True)
class Slots:
    """The values in the slots of one run."""

    objective: LocalRule
    aggregator: Aggregator
    server: ServerOptimizer
    after: AfterAggregate
    local_data: LocalData

    @classmethod
    def chosen(cls, cfg: LoopConfig, own: OwnSlots) -> Slots:
        """The experiment's choice, or else the method's own, or else FedAvg's."""
        slots = cls(
            cfg.objective or own.get("objective", Plain()),
            cfg.aggregator or own.get("aggregator", Mean()),
            cfg.server or own.get("server", TakeAverage()),
            cfg.after or own.get("after", LeaveIt()),
            cfg.local_data or own.get("local_data", OwnExamples()),
        )
        check_halves(slots.objective, slots.aggregator)
        return slots

    def next_model(
        self,
        model: Weights,
        replies: Mapping[str, Any],
        memory: dict[str, Any],
        setting: Setting,
        noisy: Callable[[Weights], Weights] = lambda target: target,
    ) -> Weights:
        """Combine what the clients sent (`noisy` may protect that) and step towards it."""
        target = noisy(self.aggregator.combine(model, replies, memory, setting))
        return model | self.server.step(model, target, memory, setting)

    def extras(self, fed: Federation, memory: dict[str, Any], index: int) -> dict[str, Any]:
        """Fields of a request for training that only some slot values need; without them it stays as it was."""
        fields: dict[str, Any] = {}
        if self.local_data.active(index):
            given = self.local_data.given(fed, memory.setdefault("local_data", {}))
            fields["data"] = {"rule": self.local_data.as_dict(), "given": given}
        if self.after.active(index) and self.after.asks_clients:
            fields["remember"] = True
        return fields

    def tuned(
        self,
        fed: Federation,
        cfg: LoopConfig,
        state: State,
        replies: Mapping[str, Any],
        training: LocalTraining,
        index: int,
        secure: SecureSettings | None = None,
    ) -> Weights:
        """The new model as the slot after the aggregate leaves it."""
        if not self.after.active(index):
            return dict(state.model)
        received = {c: {n: e for n, e in r.model.items() if n in state.model} for c, r in replies.items()}
        memory = state.memory.setdefault("after", {})
        return self.after.tuned(Occasion(fed, cfg.model, state.model, received, training, index, memory, secure))


class Update(Reply):
    """What a client sends after training."""

    model: Weights = leaves("weights of the model after local training")
    examples: int = leaves("number of training examples")
    loss: float = leaves("mean training loss")
    steps: int = leaves("number of optimiser steps")
    extra: dict[str, Any] = leaves("what the method's objective adds (control variates, a loss; see its page)")


@task
def train(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    training: LocalTraining,
    rule: dict[str, Any],
    keeps: Kept,
    sent: dict[str, Any],
    protection: Protection | None = None,
    data: dict[str, Any] | None = None,
    remember: bool = False,
) -> Update:
    """Train the received model on the client's data and send it back, protected where the request says how."""
    received = model if keeps == "nothing" else own_weights(client, model, spec)
    net = instantiate(spec, client.schema.shape, client.schema.classes, received).to(client.device)
    if protection is not None and protection.proves:
        check_here(protection, LocalRule.parse(rule), LocalData.parse(data["rule"]) if data else OwnExamples(), net)
    x, y = local_examples(client, net, data)
    visit = Visit(client, net, received, training, y, sent)
    if protection is not None and protection.proves:
        return train_protected(visit, rule, x, model, keeps, protection)
    result, extra = fit_by_rule(visit, rule, x, y)
    if data is not None:
        LocalData.parse(data["rule"]).settle(client, net)
    shared, guarantees = shared_entries(client, net, keeps), {}
    if protection is not None:
        trained = [name for name, _ in net.named_parameters() if name in shared]
        shared = with_bare_noise(shared, trained, protection, client.noise_rng(NOISE))
        guarantees = {"model": bare_noise_guarantee(protection)}
    if remember:  # the client will be asked about it later
        client.state["trained"] = weights_of(net) | shared
    done = {"examples": len(client.data.train), "loss": result.loss, "steps": result.steps, "extra": extra}
    return client.release(Update(model=shared, **done), **guarantees)


class MaskedUpdate(Reply):
    """What a client sends in place of an update where updates are summed securely."""

    masked: Tensor = leaves("the change of the weights and the number of examples, masked: readable as a sum only")


@task
def train_masked(client: Client, secure: SecureRound, request: dict[str, Any]) -> MaskedUpdate:
    """Train as `train` does on this request, and let the update out as a part of a sum only."""
    client.answers(train.name, request)  # asked for again, in a sum with other masks, it is the same update
    update = train.run(client, request)
    assert isinstance(update, Update)
    weight = 1 if secure.equal else update.examples
    hidden = masked(client, secure, in_one_vector(request["model"], update.model), weight)
    proven = secured(client.guarantees.get("model"), len(secure.peers))
    return client.release(MaskedUpdate(masked=hidden), masked=proven)  # in place of the update


def train_protected(
    visit: Visit, rule: dict[str, Any], x: Tensor, model: Weights, keeps: Kept, protection: Protection
) -> Update:
    """Train, and let nothing but protected weights and constants leave; entries that are not trained stay as sent."""
    client, net = visit.client, visit.net
    names = {name for name, p in net.named_parameters() if p.requires_grad} - kept_entries(net, keeps)
    with planned_effort(client, visit.training):
        if protection.updates == "dp_sgd":
            loss = LocalRule.parse(rule).record_loss(visit)
            guarantee = private_fit(client, net, x, visit.labels, visit.training, protection, loss)
            shared = model | only(shared_entries(client, net, keeps, protected=True), names)
        else:
            fit_by_rule(visit, rule, x, visit.labels)
            trained, noise = shared_entries(client, net, keeps), client.noise_rng(NOISE)
            shared = protected_update(model, trained, names, protection, noise)
            guarantee = update_guarantee(protection)
    return client.release(Update(model=shared, **CONSTANTS), **all_guarantees(guarantee))


def local_examples(client: Client, net: Classifier, data: dict[str, Any] | None) -> tuple[Tensor, Tensor]:
    """What the client trains on: its own examples and what the slot for local data adds."""
    x, y = client.data.train.tensors()
    return (x, y) if data is None else LocalData.parse(data["rule"]).examples(client, net, x, y, data["given"])


def fit_by_rule(
    visit: Visit,
    rule: dict[str, Any],
    x: Tensor,
    targets: Tensor,
    whole: nn.Module | None = None,
    around: Callable[[Objective], Objective] = lambda objective: objective,
) -> tuple[FitResult, dict[str, Any]]:
    """Train on the objective of the slot; what came of it, and what the objective reports.

    `whole` is a network that the visit's is a part of, and `around` makes its objective out of the slot's.
    """
    local = LocalRule.parse(rule)
    objective = around(local.begin(visit))
    result = fit(whole or visit.net, x, targets, visit.training, visit.client.rng("batches"), objective)
    return result, local.finish(visit, result)


def shared_entries(client: Client, net: nn.Module, keeps: Kept, protected: bool = False) -> Weights:
    """The weights that may leave; the client puts the others aside for the next round."""
    weights, held = weights_of(net), kept_entries(net, keeps)
    if held:
        keep = client.state.keep_public if protected else client.state.__setitem__
        keep("kept", {name: weights[name] for name in held})
    return {name: entry for name, entry in weights.items() if name not in held}


def own_weights(client: Client, model: Weights, spec: ModelSpec) -> Weights:
    """The received weights with the entries that this client keeps to itself; at first, those everybody starts from."""
    return start_weights(client.seed, spec, client.schema) | model | client.state.get("kept", {})


@personal("kept")
def kept_model(client: Client, model: Weights, spec: ModelSpec, settings: dict[str, Any]) -> Weights:
    """A client's own model where only a part of the weights is shared."""
    return own_weights(client, model, spec)


def kept_entries(net: nn.Module, keeps: Kept) -> set[str]:
    """Names of the entries that never leave a client."""
    if keeps == "norm":
        return norm_entries(net)
    if keeps == "buffers":
        return buffer_entries(net)
    if keeps == "head":
        return {name for name in net.state_dict() if name.startswith("head.")}
    return set()


def start_model(seed: int, spec: ModelSpec, schema: Schema) -> Classifier:
    """The model every method of this seed starts from, at the server and at every client."""
    return build_model(spec, schema.shape, schema.classes, derive(seed, "model") % 2**63)


def start_weights(seed: int, spec: ModelSpec, schema: Schema) -> Weights:
    """The weights of `start_model`."""
    return weights_of(start_model(seed, spec, schema))


def checked_slots(fed: Federation, cfg: LoopConfig, **own: Unpack[OwnSlots]) -> Slots:
    """The slots of a run, once it is clear that they suit the model and that updates can be protected as asked."""
    slots = Slots.chosen(cfg, own)
    net = start_model(fed.seed, cfg.model, fed.schema)
    protection = chosen_protection(cfg)
    if protection is not None and protection.proves:
        check_protection(protection, cfg.train, slots.objective, slots.aggregator)
        check_data_and_tuning(protection, slots.local_data, slots.after)
        check_model(net)
    if cfg.privacy.secure_aggregation:
        check_secure(fed, cfg, slots.aggregator, slots.after)
    slots.after.check(net)
    slots.local_data.check(net)
    return slots


def federated_loop(fed: Federation, cfg: LoopConfig, keeps: Kept = "nothing", **own: Unpack[OwnSlots]) -> State:
    """Pick clients, let them train, combine what they send, step: `cfg.train.rounds` times.

    `own` are the method's own slot values; those that the experiment sets take their place.
    """
    slots = checked_slots(fed, cfg, **own)
    protection, secure = chosen_protection(cfg), chosen_security(cfg)
    if keeps == "nothing" and cfg.train.norm_buffers == "local":
        keeps = "buffers"
    net = start_model(fed.seed, cfg.model, fed.schema)
    trained = {name for name, _ in net.named_parameters()}
    held = kept_entries(net, keeps)
    if held and not isinstance(slots.after, LeaveIt):
        raise ConfigError(f'after = "{slots.after.name}" needs whole models, but {NO_GLOBAL[keeps]}.')
    prepare_objective(fed, slots, protection)
    own_model = {"personal": "kept", "no_global": NO_GLOBAL[keeps]} if held else {"personal": "", "no_global": ""}
    state = State(model=weights_of(net), memory={}, **own_model)
    for index in fed.rounds("train", cfg.train.rounds, state):
        training = cfg.train.local(index)
        setting = Setting(trained - held, len(fed.clients), training.lr, training.momentum)
        chosen = fed.sample(cfg.train.fraction)
        request: dict[str, Any] = {
            "model": {name: entry for name, entry in state.model.items() if name not in held},
            "spec": cfg.model,
            "training": training,
            "rule": slots.objective.as_dict(),
            "keeps": keeps,
            "sent": slots.aggregator.sent(state.memory, state.model, setting),
            **({"protection": protection} if protection else {}),
            **slots.extras(fed, state.memory, index),
        }
        replies = updates(fed, chosen, request, slots, secure)
        if not replies:  # nobody could be reached: the model waits
            continue
        noisy = server_noise(fed, protection, setting, len(replies))
        state.model = slots.next_model(state.model, replies, state.memory, setting, noisy)
        if cfg.train.norm_buffers == "recalibrate" and buffer_entries(net) - held:
            state.model = state.model | recalibrated(fed, cfg.model, state.model, list(replies))
        state.model = slots.tuned(fed, cfg, state, replies, training, index, secure)
    return state


def prepare_objective(fed: Federation, slots: Slots, protection: Protection | None) -> None:
    """Let the objective ask for what it needs, where the loss of every record is clipped by itself."""
    if protection is not None and protection.updates == "dp_sgd":
        slots.objective.prepare(fed, protection.delta)


def updates(
    fed: Federation, clients: list[str], request: dict[str, Any], slots: Slots, secure: SecureSettings | None
) -> Mapping[str, Any]:
    """What the clients send back; where it is summed securely, as if all of them had sent the mean."""
    if secure is None:
        return fed.broadcast(train, to=clients, **request)
    mean, stayed = securely_averaged(fed, train_masked, clients, secure, request, slots.aggregator)
    return dict.fromkeys(stayed, Update(model=mean, **CONSTANTS))


def server_noise(
    fed: Federation, protection: Protection | None, setting: Setting, replies: int
) -> Callable[[Weights], Weights]:
    """What the server adds to the mean of the replies: noise where the experiment wants it there, else nothing."""
    if protection is None or protection.noise_at == "client":
        return lambda mean: mean
    return lambda mean: with_server_noise(mean, setting.trained, replies, protection, fed.noise_rng(NOISE))


def loop_outcome(state: State) -> Outcome:
    """What a method of the shared loop ends with."""
    return Outcome(state.model, personal=state.personal, no_global=state.no_global)
