"""FedAvg inside groups of similar clients: PFL-GAN's first phase finds the groups, each then has a model of its own.

No paper: ours, beside PFL-GAN, whose comparison it takes: of GANs (`pfl_gan/client_gans.py`) or of class moments
(`pfl_gan/client_moments.py`). Its synthetic data is left out, or with `top_up` gives each client what it lacks of a
class to its largest. Every round all groups train side by side;
the slots of the shared loop, `post_aggregation` apart, work within a group. With one group it is FedAvg, bit-identical
(`threshold = "none"`, which needs no GANs).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedsynth.components.additions import record_additions
from fedsynth.components.local_training import train
from fedsynth.components.loop import Loop, LoopConfig
from fedsynth.components.synthetic_store import KeptSamples
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Done, Federation, Outcome, method, task
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.methods.pfl_gan.client_moments import SharedConfig, find_neighbours
from fedsynth.methods.pfl_gan.mixed_batches import deliver, receive_samples
from fedsynth.methods.pfl_gan.refining import server_sets

GROUP = "group"  # in the private state

Groups = dict[str, list[str]]


class ClusterConfig(SharedConfig, LoopConfig):
    """Settings of the grouping; those of the shared loop hold within each group."""

    protects: ClassVar[bool] = False  # what groups are found by is not, or by an ε of its own
    requires_individual_updates: ClassVar[str] = (
        "its server finds groups by what each client shares, and each group may be small"
    )

    top_up: bool = Field(
        False, description="clients top up scarce classes with samples drawn from what neighbours share"
    )


@task
def join_group(client: Client, group: str) -> Done:
    """Remember which group's model is this client's."""
    client.state[GROUP] = group
    return client.release(Done())


@personal("group")
def group_model(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """The model of the client's group; `model` holds those of all groups, each entry under its group's name."""
    return of_group(model, client.state.get(GROUP, next(iter(model)).split("/", 1)[0]))


@method("cluster_fedavg", config=ClusterConfig)
def cluster_fedavg(fed: Federation, cfg: ClusterConfig) -> Outcome:
    """FedAvg inside each group of similar clients, found by comparing GANs or class moments that they share."""
    if cfg.top_up and (cfg.threshold == "none" or cfg.local_data is not None):
        raise ConfigError("top_up needs groups, and local data of its own: remove threshold and local_data.")
    if cfg.post_aggregation is not None:
        raise ConfigError(
            "cluster_fedavg has a model for each group and tunes none of them: remove method.post_aggregation."
        )
    loop = Loop(fed, cfg, local_data=KeptSamples()) if cfg.top_up else Loop(fed, cfg)
    loop.refuse_local_statistics("the clients of a group share whole models")
    groups = {"1": list(fed.clients)} if cfg.threshold == "none" else find_groups(fed, cfg)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    if alone and len(fed.clients) > 1:
        fed.note(f"In a group of their own, and so trained local-only: {', '.join(alone)}.")
    if len(groups) == 1:
        for round in loop.rounds():
            loop.advance(round, loop.exchange(round))
        return loop.outcome()
    names = {client: {"group": name} for name, group in groups.items() for client in group}
    fed.once("join groups", lambda: len(fed.scatter(join_group, names)))
    return train_in_groups(fed, loop, groups)


def find_groups(fed: Federation, cfg: ClusterConfig) -> Groups:
    """Groups by PFL-GAN's first phase; with `top_up` clients get synthetic samples of their neighbours."""
    similar = find_neighbours(fed, cfg)
    if cfg.top_up:
        record_additions(fed, about="Of its neighbours' samples every client keeps what it lacks.")
        sets = server_sets(similar, similar.sets, cfg.threshold)
        requests: dict[str, dict[str, object]] = {c: {"samples": s, "lacking": True} for c, s in sets.items()}
        fed.once("hand out sets", lambda: deliver(fed, receive_samples, requests))
    return {str(number): group for number, group in enumerate(similar.groups, 1)}


def train_in_groups(fed: Federation, loop: Loop, groups: Groups) -> Outcome:
    """The shared loop, for all groups side by side."""
    state = loop.state
    state.model = join_models(dict.fromkeys(groups, state.model))
    state.memory, state.personal = {group: {} for group in groups}, "group"
    for round in loop.rounds():
        chosen = fed.sample(loop.cfg.train.fraction)
        models = {group: of_group(state.model, group) for group in groups}
        infos = {group: replace(round, clients=len(members)) for group, members in groups.items()}
        fields = {
            g: {"model": models[g], "request": loop.request(infos[g], models[g], state.memory[g])} for g in groups
        }
        group_of = {client: group for group, members in groups.items() for client in members}
        replies = fed.scatter(train, {client: fields[group_of[client]] for client in chosen})
        for group, members in groups.items():
            own = {client: replies[client] for client in members if client in replies}
            if own:
                models[group] = loop.combine(infos[group], models[group], own, state.memory[group])
        state.model = join_models(models)
    return Outcome(state.model, personal="group", no_global="every group of clients has a model of its own")


def join_models(models: Mapping[str, Weights]) -> Weights:
    """The models of all groups in one table."""
    return {f"{group}/{name}": entry for group, model in models.items() for name, entry in model.items()}


def of_group(model: Weights, group: str) -> Weights:
    """One group's model out of such a table."""
    return {name.split("/", 1)[1]: entry for name, entry in model.items() if name.split("/", 1)[0] == group}
