"""Mediated rounds (GANDALF, algorithm 3): in each group the model passes from client to client, then groups average."""

from __future__ import annotations

from typing import Any

from fedsynth.federation import Client, Federation, Reply, State, leaves, task
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.loop import LoopConfig, Slots, fit_by_rule, local_examples, start_weights
from fedsynth.methods.slots import LocalData, Visit


class HandedOn(Reply):
    """What a client hands on to the next one of its group."""

    model: Weights = leaves("weights of the model after local training")
    examples: int = leaves("number of training examples of the clients so far")


@task
def train_in_turn(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    training: LocalTraining,
    rule: dict[str, Any],
    data: dict[str, Any],
    examples: int = 0,
) -> HandedOn:
    """Train the model as the client before has left it."""
    net = instantiate(spec, client.schema.shape, client.schema.classes, model).to(client.device)
    x, y = local_examples(client, net, data)
    fit_by_rule(Visit(client, net, model, training, y, {}), rule, x, y)
    return client.release(HandedOn(model=weights_of(net), examples=examples + len(client.data.train)))


def mediated_loop(
    fed: Federation, cfg: LoopConfig, groups: list[list[str]], mediator_epochs: int, local_data: LocalData
) -> State:
    """Rounds in which each group trains one model in turn, `mediator_epochs` times round, and the server averages."""
    slots = Slots.chosen(cfg, {"local_data": local_data})
    state = State(model=start_weights(fed.seed, cfg.model, fed.schema), personal="", no_global="")
    for index in fed.rounds("train", cfg.train.rounds, state):
        picked = set(fed.sample(cfg.train.fraction))
        routes = [[client for client in group if client in picked] * mediator_epochs for group in groups]
        start = {
            "model": state.model,
            "spec": cfg.model,
            "training": cfg.train.local(index),
            "rule": slots.objective.as_dict(),
            "data": {"rule": slots.local_data.as_dict(), "given": slots.local_data.given(fed, {})},
        }
        ends = [end for end in fed.relay(train_in_turn, start, [r for r in routes if r]) if end.visited]
        if ends:
            state.model = weighted_mean((end.fields["model"], end.fields["examples"]) for end in ends)
    return state
