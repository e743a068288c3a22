"""FedAvg inside groups of similar clients: PFL-GAN's first phase finds the groups, each then has a model of its own.

No paper: ours, beside PFL-GAN, whose comparison it takes: of GANs (`pfl_gan/client_gans.py`) or of class moments
(`pfl_gan/client_moments.py`). Its synthetic data is left out, or with `top_up` gives each client what it lacks of a
class to its largest. Every round all groups train side by side;
the slots of the shared loop, `post_aggregation` apart, work within a group. With one group it is FedAvg, bit-identical
(`threshold = "none"`, which needs no GANs).
"""

from typing import ClassVar

from pydantic import Field

from fedsynth.components.additions import record_additions
from fedsynth.components.groups import GroupConfig, GroupLoop, Groups, tell_groups
from fedsynth.components.synthetic_store import KeptSamples
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.methods.pfl_gan.client_moments import SharedConfig, find_neighbours
from fedsynth.methods.pfl_gan.mixed_batches import deliver, receive_samples
from fedsynth.methods.pfl_gan.refining import server_sets


class ClusterConfig(SharedConfig, GroupConfig):
    """Settings of the grouping; those of the shared loop hold within each group."""

    requires_individual_updates: ClassVar[str] = GroupConfig.requires_individual_updates

    top_up: bool = Field(
        False, description="clients top up scarce classes with samples drawn from what neighbours share"
    )


@method("cluster_fedavg", config=ClusterConfig)
def cluster_fedavg(fed: Federation, cfg: ClusterConfig) -> Outcome:
    """FedAvg inside each group of similar clients, found by comparing GANs or class moments that they share."""
    if cfg.top_up and (cfg.threshold == "none" or cfg.local_data is not None):
        raise ConfigError("top_up needs groups, and local data of its own: remove threshold and local_data.")
    loop = GroupLoop(fed, cfg, KeptSamples() if cfg.top_up else None)
    groups = {"1": list(fed.clients)} if cfg.threshold == "none" else find_groups(fed, cfg)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    if alone and len(fed.clients) > 1:
        fed.note(f"In a group of their own, and so trained local-only: {', '.join(alone)}.")
    if len(groups) == 1:
        return loop.run_as_one()
    fed.once("join groups", lambda: tell_groups(fed, groups))
    loop.start(dict.fromkeys(groups, loop.loop.state.model))
    for round in loop.loop.rounds():
        chosen = fed.sample(cfg.train.fraction)
        loop.advance(round, groups, loop.exchange(round, groups, chosen))
    return loop.outcome()


def find_groups(fed: Federation, cfg: ClusterConfig) -> Groups:
    """Groups by PFL-GAN's first phase; with `top_up` clients get synthetic samples of their neighbours."""
    similar = find_neighbours(fed, cfg)
    if cfg.top_up:
        record_additions(fed, about="Of its neighbours' samples every client keeps what it lacks.")
        sets = server_sets(similar, similar.sets, cfg.threshold)
        requests: dict[str, dict[str, object]] = {c: {"samples": s, "lacking": True} for c, s in sets.items()}
        fed.once("hand out sets", lambda: deliver(fed, receive_samples, requests))
    return {str(number): group for number, group in enumerate(similar.groups, 1)}
