"""Clustered FL (Sattler, Müller and Samek 2020, algorithm 3): groups split where their members pull apart.

Everybody starts in one group. Where FedAvg within a group has come to rest while single members still move,

    ‖Σ n_i/n Δ_i‖ < ε₁  and  max_i ‖Δ_i‖ > ε₂     (Δ_i: the change of the weights at client i)

the group is split in two such that the largest cosine similarity of Δ_i and Δ_j across the cut is as small as can be,
if √((1 − that similarity) / 2) > γ_max. Both parts go on from the group's model. All of it is computed from what
FedAvg sends anyway.

Deviations: ε₁ and ε₂ are shares of the longest mean change that the group, or those it came from, has had (the paper's
rule of thumb: ε₁ a tenth of it, ε₂ one to ten times ε₁); `norms = "absolute"` takes them as lengths. A group is split
only in a round in which all its members answered. Groups of fewer than three stay whole, as in the authors' program.
Changes are those of trained weights, without BatchNorm's statistics. With `epsilon1 = 0` it is FedAvg, bit-identical.
"""

import copy
import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field

from fedsynth.components.groups import GroupConfig, GroupLoop, Groups, record_groups, tell_groups
from fedsynth.components.local_training import Update
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.grouping import bipartition
from fedsynth.learning.weights import Weights

MEMBERS, LONGEST = "members", "longest"  # in a group's memory
FEWEST = 3  # members of a group that may be split


class CflConfig(GroupConfig):
    """Settings of Clustered FL."""

    epsilon1: float = Field(0.4, ge=0, description="ε₁: a group is at rest when its mean change is shorter than this")
    epsilon2: float = Field(0.7, ge=0, description="ε₂: and is split when the change of a member is longer than this")
    norms: Literal["shares", "absolute"] = Field(
        "shares", description="what ε₁ and ε₂ are: shares of the longest mean change so far, or lengths"
    )
    gamma_max: float = Field(0.0, ge=0, lt=1, description="γ_max: parts must be farther apart than this to be split")


@method("cfl", config=CflConfig, fedavg_when={"epsilon1": 0.0}, search={"epsilon1": (0.05, 0.8)})
def cfl(fed: Federation, cfg: CflConfig) -> Outcome:
    """Groups of clients split in two, by the similarity of their updates, where FedAvg has come to rest."""
    if cfg.train.fraction < 1:
        raise ConfigError("cfl compares the updates of all members of a group: set train.fraction = 1.")
    loop = GroupLoop(fed, cfg)
    loop.start({"1": loop.loop.state.model}, {"1": {MEMBERS: list(fed.clients), LONGEST: 0.0}})
    for round in loop.loop.rounds():
        groups: Groups = {group: memory[MEMBERS] for group, memory in loop.loop.state.memory.items()}
        before = loop.models
        replies = loop.exchange(round, groups, list(fed.clients))
        loop.advance(round, groups, replies)
        trained = sorted(round.trained)
        parts = {group: split(cfg, loop, group, before[group], replies[group], trained) for group in groups}
        divide(fed, loop, {group: two for group, two in parts.items() if two})
    return loop.outcome()


def split(
    cfg: CflConfig, loop: GroupLoop, group: str, model: Weights, replies: Mapping[str, Update], trained: list[str]
) -> list[list[str]] | None:
    """The two parts of a group whose members pull apart; None where it stays whole."""
    memory = loop.loop.state.memory[group]
    if set(replies) != set(memory[MEMBERS]):
        return None
    clients = memory[MEMBERS]
    changes = torch.stack([change(model, replies[client].model, trained) for client in clients])
    weights = torch.tensor([float(replies[client].examples) for client in clients], dtype=torch.float64)
    mean = float((weights @ changes / weights.sum()).norm())
    norms = changes.norm(dim=1)
    memory[LONGEST] = max(memory[LONGEST], mean)
    unit = memory[LONGEST] if cfg.norms == "shares" else 1.0
    if len(clients) < FEWEST or not mean < cfg.epsilon1 * unit or not float(norms.max()) > cfg.epsilon2 * unit:
        return None
    directions = changes / norms.clamp_min(1e-30)[:, None]
    one, other, across = bipartition((directions @ directions.T).numpy())
    if not math.sqrt(max(0.0, 1 - across) / 2) > cfg.gamma_max:
        return None
    return [[clients[i] for i in part] for part in (one, other)]


def change(before: Weights, after: Weights, names: list[str]) -> torch.Tensor:
    """Δ: how far the trained weights have come, as one vector."""
    return torch.cat([(after[name].double() - before[name].double()).flatten() for name in names])


def divide(fed: Federation, loop: GroupLoop, parts: Mapping[str, list[list[str]]]) -> None:
    """Put two groups in the place of each that was split, with its model and its memory."""
    if not parts:
        return
    models, memory = loop.models, dict(loop.loop.state.memory)
    for group, two in parts.items():
        model, kept = models.pop(group), memory.pop(group)
        for number, members in enumerate(two, 1):
            name = f"{group}.{number}"
            models[name], memory[name] = model, copy.deepcopy(kept) | {MEMBERS: members}
    loop.start(models, memory)
    groups = {group: kept[MEMBERS] for group, kept in memory.items()}
    tell_groups(fed, groups)
    record_groups(fed, groups, "Groups as they were split; a name is that of the group it came from and a number.")
