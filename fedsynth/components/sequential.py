"""Rounds in which the model passes from client to client inside groups, and the groups are averaged.

GANDALF's algorithm 3 and Astraea's rescheduling. With a group for every client it is FedAvg to the last bit. The minus
sign in line 11 of algorithm 3 is a slip: the groups' changes are added. In the paper a client hands the weights to the
next one directly; here every hand-off goes through the server, which therefore always has the latest weights: the
rollback to "the latest available holder" is to what the server holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from pydantic import Field

from fedsynth.components.loop import (
    LoopConfig,
    OwnSlots,
    Slots,
    Update,
    checked_slots,
    prepare_objective,
    start_model,
    train,
    weights_of,
)
from fedsynth.components.recalibration import recalibrated
from fedsynth.components.slots import Setting
from fedsynth.components.training_order import OrderSettings
from fedsynth.components.update_privacy import chosen_protection
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Relayed, State
from fedsynth.learning.weights import buffer_entries


class MediatedConfig(OrderSettings, LoopConfig):
    """Settings of training in groups."""

    needs_single: ClassVar[str] = "models pass from client to client in it, each as it is"

    mediators: int = Field(2, ge=1, description="M_c: groups in which the model passes from client to client")
    mediator_epochs: int = Field(1, ge=1, description="E_m: how often it passes every client of a group in a round")


def mediated_loop(
    fed: Federation, cfg: MediatedConfig, groups: Sequence[Sequence[str]], phase: str = "train", **own: Unpack[OwnSlots]
) -> State:
    """Let every group hand the model around, average what the groups end with, `cfg.train.rounds` times."""
    slots = grouped_slots(fed, cfg, **own)
    net = start_model(fed.seed, cfg.model, fed.schema)
    trained = {name for name, _ in net.named_parameters()}
    protection = chosen_protection(cfg, visits=cfg.mediator_epochs)
    prepare_objective(fed, slots, protection)
    state = State(model=weights_of(net), memory={}, completed={}, personal="", no_global="")
    groups = in_order(fed, groups)
    for index in fed.rounds(phase, cfg.train.rounds, state):
        training = cfg.train.local(index)
        setting = Setting(trained, len(fed.clients), training.lr, training.momentum)
        chosen = set(fed.sample(cfg.train.fraction))
        members = [[client for client in group if client in chosen] for group in groups]
        start: dict[str, Any] = {
            "model": state.model,
            "spec": cfg.model,
            "training": training,
            "rule": slots.objective.as_dict(),
            "keeps": "nothing",
            "sent": {},
            **({"protection": protection} if protection else {}),
            **slots.extras(fed, state.memory, index),
        }
        planned = cfg.privacy.target is not None
        stops = [len(group) * cfg.mediator_epochs for group in members]
        routes = [cfg.route(*way, state.completed, planned) for way in zip(members, stops, strict=True)]
        carried = fed.relay(train, start, routes)
        state.completed = dict(Counter(state.completed) + Counter(c for bag in carried for c in bag.visited))
        updates = {f"group {number}": group_update(bag) for number, bag in enumerate(carried) if bag.visited}
        if not updates:  # nobody could be reached: the model waits
            continue
        state.model = slots.next_model(state.model, updates, state.memory, setting)
        if cfg.train.norm_buffers == "recalibrate" and buffer_entries(net):
            visited = [client for client in fed.clients if any(client in bag.visited for bag in carried)]
            state.model = state.model | recalibrated(fed, cfg.model, state.model, visited)
        state.model = slots.tuned(fed, cfg, state, updates, training, index)
    return state


def group_update(bag: Relayed) -> Update:
    """What a group sends: the weights as its last client left them, weighing what all that it visited have (n_m)."""
    reports = bag.reports.values()
    return Update(
        model=bag.fields["model"],
        examples=sum(report["examples"] for report in reports),
        loss=sum(report["loss"] for report in reports) / len(bag.reports),
        steps=sum(report["steps"] for report in reports),
        extra={},
    )


def in_order(fed: Federation, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """The groups by their first members, so that sums do not depend on how the groups were found."""
    place = {client: number for number, client in enumerate(fed.clients)}
    return sorted(([*group] for group in groups if group), key=lambda group: min(place[client] for client in group))


def grouped_slots(fed: Federation, cfg: LoopConfig, **own: Unpack[OwnSlots]) -> Slots:
    """The slots of a run, once it is clear that they have a meaning where the model passes from client to client."""
    if cfg.privacy.updates == "clipped":
        raise ConfigError(
            'privacy.updates = "clipped" hides a client among others whose updates are summed up; in a chain nothing '
            'is summed up and the noise would drown the weights. Use "dp_sgd", which hides each record.'
        )
    if cfg.train.norm_buffers == "local":
        raise ConfigError('train.norm_buffers = "local" has no meaning where the model passes from client to client.')
    slots = checked_slots(fed, cfg, **own)
    if slots.aggregator.needs or slots.objective.needs:
        raise ConfigError(
            f'{slots.objective.slot} "{slots.objective.name}" speaks with the server after every client, and here the '
            "model passes from client to client: choose another objective and aggregator."
        )
    if slots.after.asks_clients:
        raise ConfigError(f'after = "{slots.after.name}" cannot ask the clients here: set secure = false.')
    return slots
