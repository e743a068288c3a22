"""FedAvg inside groups of similar clients: PFL-GAN's first phase finds the groups, each then has a model of its own.

No paper: ours, beside PFL-GAN, whose comparison it takes: of GANs (`pfl_gan/client_gans.py`) or of class moments
(`pfl_gan/client_moments.py`). Its synthetic data is left out, or with `top_up` gives each client what it lacks of a
class to its largest. Every round all groups train side by side;
the slots of the shared loop, `post_aggregation` apart, work within a group. With one group it is FedAvg, bit-identical
(`threshold = "none"`, which needs no GANs).
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fedsynth.components.ablations import Controls
from fedsynth.components.additions import INSTEAD, record_additions
from fedsynth.components.groups import GroupConfig, GroupLoop, Groups, tell_groups
from fedsynth.components.samples import Samples
from fedsynth.components.synthetic_store import KeptSamples
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.methods.pfl_gan.client_gans import Similarity
from fedsynth.methods.pfl_gan.client_moments import SharedConfig, find_neighbours
from fedsynth.methods.pfl_gan.mixed_batches import deliver, receive_samples
from fedsynth.methods.pfl_gan.refining import real_sets, server_sets


class ClusterConfig(SharedConfig, GroupConfig):
    """Settings of the grouping; those of the shared loop hold within each group."""

    requires_individual_updates: ClassVar[str] = GroupConfig.requires_individual_updates

    top_up: bool = Field(
        False, description="clients top up scarce classes with samples drawn from what neighbours share"
    )
    synthetic: Literal["generated", "noise", "duplicates", "real"] = Field(
        "generated",
        description="controls of top_up: with the same labels noise, the client's own examples once more, or real "
        "examples of its neighbours instead",
    )

    @model_validator(mode="after")
    def _controls_are_of_something(self) -> "ClusterConfig":
        if self.synthetic != "generated" and not self.top_up:
            raise ValueError(f'synthetic = "{self.synthetic}" is a control of top_up = true, and nothing is topped up')
        return self


CONTROLS: Controls = {
    "without synthesis": {"top_up": False, "synthetic": "generated"},
    "noise": {"top_up": True, "synthetic": "noise"},
    "duplicates": {"top_up": True, "synthetic": "duplicates"},
    "real samples": {"top_up": True, "synthetic": "real"},
}


@method("cluster_fedavg", config=ClusterConfig, controls=CONTROLS)
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
        top_up(fed, cfg, similar)
    return {str(number): group for number, group in enumerate(similar.groups, 1)}


def top_up(fed: Federation, cfg: ClusterConfig, similar: Similarity) -> None:
    """Give every client its neighbours' samples, of which it keeps what it lacks; or what a control has instead."""
    sets = similar.sets
    if cfg.synthetic == "real":
        sets = fed.once("real samples", lambda: real_sets(fed, cfg.samples_per_class), dict[str, Samples])
    what = INSTEAD.get(cfg.synthetic, SYNTHETIC)
    record_additions(fed, what, about="Of its neighbours' samples every client keeps what it lacks.")
    given = server_sets(similar, sets, cfg.threshold)
    how: dict[str, object] = {"lacking": True, "noise": cfg.synthetic == "noise"}
    how["duplicates"] = cfg.synthetic == "duplicates"
    requests: dict[str, dict[str, object]] = {client: {"samples": samples, **how} for client, samples in given.items()}
    fed.once("hand out sets", lambda: deliver(fed, receive_samples, requests))
