"""FedAvg inside groups of like clients: PFL-GAN's first phase finds the groups, each then has a model of its own.

No paper: ours, beside PFL-GAN, whose comparison it takes (`client_gans.py`). Its synthetic data is left out, or with
`beside = "made"` gives each client what it lacks of a class to its largest. Every round all groups train side by side;
the slots of the shared loop, `after` apart, work within a group. With one group it is FedAvg to the last bit
(`threshold = "none"`, which needs no GANs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedsynth.components.loop import LoopConfig, Slots, checked_slots, start_model, train
from fedsynth.components.recalibration import recalibrated
from fedsynth.components.slots import Setting
from fedsynth.components.synthetic_store import KeptImages
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Done, Federation, Outcome, State, method, task
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights, buffer_entries, weights_of
from fedsynth.methods.pfl_gan.beside_made import deliver, receive_images
from fedsynth.methods.pfl_gan.client_gans import GanSettings, find_likeness
from fedsynth.methods.pfl_gan.refining import server_sets

GROUP = "group"  # in the private state

Groups = dict[str, list[str]]


class ClusterConfig(GanSettings, LoopConfig):
    """Settings of the grouping; those of the shared loop hold within each group."""

    protects: ClassVar[bool] = False  # the generators that groups are found by are not
    needs_single: ClassVar[str] = "its server finds groups by the generator of each client, and each group may be small"

    beside: Literal["nothing", "made"] = Field(
        "nothing", description="made: clients fill up scarce classes with images of their neighbours' GANs"
    )


@task
def join_group(client: Client, group: str) -> Done:
    """Remember which group's model is this client's."""
    client.state[GROUP] = group
    return client.release(Done())


@personal("group")
def group_model(client: Client, model: Weights, spec: ModelSpec, settings: dict[str, Any]) -> Weights:
    """The model of the client's group; `model` holds those of all groups, each entry under its group's name."""
    return of_group(model, client.state.get(GROUP, next(iter(model)).split("/", 1)[0]))


@method("cluster_fedavg", config=ClusterConfig)
def cluster_fedavg(fed: Federation, cfg: ClusterConfig) -> Outcome:
    """FedAvg inside each group of like clients, found by comparing GANs that they share."""
    made = cfg.beside == "made"
    if made and (cfg.threshold == "none" or cfg.local_data is not None):
        raise ConfigError('beside = "made" needs groups, and local data of its own: remove threshold and local_data.')
    slots = checked_slots(fed, cfg, local_data=KeptImages()) if made else checked_slots(fed, cfg)
    if cfg.after is not None:
        raise ConfigError("cluster_fedavg has a model for each group and tunes none of them: remove method.after.")
    if cfg.train.norm_buffers == "local":
        raise ConfigError('cluster_fedavg shares whole models in a group: set train.norm_buffers to "average".')
    groups = {"1": list(fed.clients)}
    if cfg.threshold != "none":
        likeness = find_likeness(fed, cfg)
        groups = {str(number): group for number, group in enumerate(likeness.groups, 1)}
        if made:
            sets = server_sets(likeness, likeness.sets, cfg.threshold)
            orders = {client: {**given, "lacking": True} for client, given in sets.items()}
            fed.once("hand out sets", lambda: deliver(fed, receive_images, orders))
    alone = [group[0] for group in groups.values() if len(group) == 1]
    if alone and len(fed.clients) > 1:
        fed.note(f"In a group of their own, and so trained alone: {', '.join(alone)}.")
    if len(groups) > 1:
        names = {client: {"group": name} for name, group in groups.items() for client in group}
        fed.once("join groups", lambda: {"joined": len(fed.scatter(join_group, names))})
    return grouped_loop(fed, cfg, slots, groups)


def grouped_loop(fed: Federation, cfg: ClusterConfig, slots: Slots, groups: Groups) -> Outcome:
    """The shared loop, for all groups side by side."""
    net = start_model(fed.seed, cfg.model, fed.schema)
    trained = {name for name, _ in net.named_parameters()}
    start = weights_of(net)
    why = "every group of clients has a model of its own" if len(groups) > 1 else ""
    state = State(
        model=joined(dict.fromkeys(groups, start)),
        memory={group: {} for group in groups},
        personal="group" if why else "",
    )
    if not why:
        state.model = start
    for index in fed.rounds("train", cfg.train.rounds, state):
        training = cfg.train.local(index)
        chosen = fed.sample(cfg.train.fraction)
        models = {group: of_group(state.model, group) if why else dict(state.model) for group in groups}
        settings = {g: Setting(trained, len(of), training.lr, training.momentum) for g, of in groups.items()}
        requests: dict[str, dict[str, Any]] = {}
        for group, members in groups.items():
            fields = {
                "model": models[group],
                "spec": cfg.model,
                "training": training,
                "rule": slots.objective.as_dict(),
                "keeps": "nothing",
                "sent": slots.aggregator.sent(state.memory[group], models[group], settings[group]),
                **slots.extras(fed, state.memory[group], index),
            }
            requests |= {client: fields for client in members if client in chosen}
        replies = fed.scatter(train, {client: requests[client] for client in chosen})
        for group, members in groups.items():
            own = {client: replies[client] for client in members if client in replies}
            if own:
                models[group] = next_model(fed, cfg, slots, models[group], state.memory[group], own, settings[group])
        state.model = joined(models) if why else models["1"]
    return Outcome(state.model, personal=state.personal, no_global=why)


def next_model(
    fed: Federation,
    cfg: ClusterConfig,
    slots: Slots,
    model: Weights,
    memory: dict[str, Any],
    replies: Mapping[str, Any],
    setting: Setting,
) -> Weights:
    """A group's model after a round."""
    model = slots.next_model(model, replies, memory, setting)
    net = start_model(fed.seed, cfg.model, fed.schema)
    if cfg.train.norm_buffers == "recalibrate" and buffer_entries(net):
        model = model | recalibrated(fed, cfg.model, model, list(replies))
    return model


def joined(models: Mapping[str, Weights]) -> Weights:
    """The models of all groups in one table."""
    return {f"{group}/{name}": entry for group, model in models.items() for name, entry in model.items()}


def of_group(model: Weights, group: str) -> Weights:
    """One group's model out of such a table."""
    return {name.split("/", 1)[1]: entry for name, entry in model.items() if name.split("/", 1)[0] == group}
