"""FedAvg's loop, written once, with the slots in which most methods differ from it (see `slots.py`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import nn

from fedsynth.data.dataset import Schema
from fedsynth.federation import Client, Federation, Outcome, Replies, Reply, State, leaves, task
from fedsynth.federation.personal import personal
from fedsynth.learning.aggregators import pooled_statistics
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.statistics import measure_batch_norm
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, buffer_entries, norm_entries, weights_of
from fedsynth.methods.settings import MethodConfig
from fedsynth.methods.slots import (
    Aggregator,
    AggregatorSlot,
    LocalRule,
    Mean,
    ObjectiveSlot,
    Plain,
    ServerOptimizer,
    ServerSlot,
    Setting,
    TakeAverage,
    Visit,
    check_halves,
)
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


class Update(Reply):
    """What a client sends after training."""

    model: Weights = leaves("weights of the model after local training")
    examples: int = leaves("number of training examples")
    loss: float = leaves("mean training loss")
    steps: int = leaves("number of optimiser steps")
    extra: dict[str, Any] = leaves("what the method's objective adds (control variates, a loss; see its page)")


class Measured(Reply):
    """Normalisation statistics of the received model on a client's data."""

    buffers: Weights = leaves("BatchNorm statistics of the global model, measured on the client's data")
    examples: int = leaves("number of training examples")


@task
def train(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    training: LocalTraining,
    rule: dict[str, Any],
    keeps: Kept,
    sent: dict[str, Any],
) -> Update:
    """Train the received model on the client's data and send it back."""
    received = model if keeps == "nothing" else own_weights(client, model, spec)
    net = instantiate(spec, client.schema.shape, client.schema.classes, received).to(client.device)
    local = LocalRule.parse(rule)
    visit = Visit(client, net, received, training, sent)
    x, y = client.data.train.tensors()
    result = fit(net, x, y, training, client.rng("batches"), local.begin(visit))
    extra = local.finish(visit, result)
    weights = weights_of(net)
    held = kept_entries(net, keeps)
    if held:
        client.state["kept"] = {name: weights[name] for name in held}
    shared = {name: entry for name, entry in weights.items() if name not in held}
    return client.release(Update(model=shared, examples=len(y), loss=result.loss, steps=result.steps, extra=extra))


@task
def measure(client: Client, model: Weights, spec: ModelSpec) -> Measured:
    """Measure BatchNorm's statistics of the global model on the client's data."""
    net = instantiate(spec, client.schema.shape, client.schema.classes, model).to(client.device)
    x, y = client.data.train.tensors()
    measure_batch_norm(net, x)
    weights = weights_of(net)
    return client.release(Measured(buffers={n: weights[n] for n in sorted(buffer_entries(net))}, examples=len(y)))


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


def start_model(seed: int, spec: ModelSpec, schema: Schema) -> nn.Module:
    """The model every method of this seed starts from, at the server and at every client."""
    return build_model(spec, schema.shape, schema.classes, derive(seed, "model") % 2**63)


def start_weights(seed: int, spec: ModelSpec, schema: Schema) -> Weights:
    """The weights of `start_model`."""
    return weights_of(start_model(seed, spec, schema))


def federated_loop(
    fed: Federation,
    cfg: LoopConfig,
    objective: LocalRule | None = None,
    aggregator: Aggregator | None = None,
    server: ServerOptimizer | None = None,
    keeps: Kept = "nothing",
) -> State:
    """Pick clients, let them train, combine what they send, step: `cfg.train.rounds` times.

    The arguments are the method's own slot values; those that the experiment sets take their place.
    """
    rule = cfg.objective or objective or Plain()
    combine = cfg.aggregator or aggregator or Mean()
    step = cfg.server or server or TakeAverage()
    check_halves(rule, combine)
    if keeps == "nothing" and cfg.train.norm_buffers == "local":
        keeps = "buffers"
    net = start_model(fed.seed, cfg.model, fed.schema)
    trained = {name for name, _ in net.named_parameters()}
    held = kept_entries(net, keeps)
    state = State(
        model=weights_of(net),
        memory={},
        personal="kept" if held else "",
        no_global=NO_GLOBAL[keeps] if held else "",
    )
    for index in fed.rounds("train", cfg.train.rounds, state):
        training = cfg.train.local(index)
        setting = Setting(trained - held, len(fed.clients), training.lr, training.momentum)
        replies = fed.broadcast(
            train,
            to=fed.sample(cfg.train.fraction),
            model={name: entry for name, entry in state.model.items() if name not in held},
            spec=cfg.model,
            training=training,
            rule=rule.as_dict(),
            keeps=keeps,
            sent=combine.sent(state.memory, state.model, setting),
        )
        if not replies:  # nobody could be reached: the model waits
            continue
        target = combine.combine(state.model, replies, state.memory, setting)
        state.model = state.model | step.step(state.model, target, state.memory, setting)
        if cfg.train.norm_buffers == "recalibrate" and buffer_entries(net) - held:
            state.model = state.model | recalibrated(fed, cfg, state.model, list(replies))
    return state


def loop_outcome(state: State) -> Outcome:
    """What a method of the shared loop ends with."""
    return Outcome(state.model, personal=state.personal, no_global=state.no_global)


def recalibrated(fed: Federation, cfg: LoopConfig, model: Weights, clients: list[str]) -> Weights:
    """BatchNorm's statistics of the new model over the data of the round's clients, from what each of them measured."""
    replies: Replies = fed.broadcast(measure, to=clients, model=model, spec=cfg.model)
    return pooled_statistics((reply.buffers, reply.examples) for reply in replies.values()) if replies else {}
