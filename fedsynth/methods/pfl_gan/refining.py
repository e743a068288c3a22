"""PFL-GAN's work at the server after the comparison: the sets T_i, and a refined GAN on each (lines 13 to 16)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsynth.federation import Client, Federation, State, task
from fedsynth.learning.weights import Weights
from fedsynth.methods.pfl_gan.client_gans import Learnt, Likeness, MadeSet, as_floats
from fedsynth.methods.pfl_gan.similarity import Rule, samples
from fedsynth.seeding import derive, generator
from fedsynth.synthesis.gan import GanSpec, TrainingImages, build_gan, generator_weights
from fedsynth.synthesis.gan_training import GanTraining, train_gan


@task
def refine_gan(
    client: Client, images: Tensor, labels: Tensor, spec: GanSpec, training: GanTraining, steps: int, name: str
) -> Learnt:
    """A fresh GAN on one T_i; `name` tells it from the others, whatever the order of work."""
    gan = build_gan(spec, client.schema.shape, client.schema.classes, derive(client.seed, "refined gan", name))
    rng = generator(client.seed, "refined gan training", name)
    train_gan(gan, TrainingImages(as_floats(images), labels), training, steps, rng)
    return client.release(Learnt(weights=generator_weights(gan.weights())))


def server_sets(likeness: Likeness, sets: dict[str, MadeSet], rule: Rule) -> dict[str, MadeSet]:
    """T_i of every client that has neighbours: the first ⌊S_ij⌋ samples of each neighbour's set."""
    sizes = np.array([len(sets[client]["labels"]) for client in likeness.clients])
    amounts = samples(likeness.distances, likeness.near, sizes, rule)
    found = {}
    for client, row in zip(likeness.clients, amounts, strict=True):
        if row.sum():
            chosen = [(sets[other], int(n)) for other, n in zip(likeness.clients, row, strict=True) if n]
            found[client] = {name: torch.cat([s[name][:n] for s, n in chosen]) for name in ("images", "labels")}
    return found


def group_sets(likeness: Likeness, sets: dict[str, MadeSet]) -> tuple[dict[str, MadeSet], dict[str, str]]:
    """One set for each group of several clients, of all its members' sets; and which one each client uses."""
    found: dict[str, MadeSet] = {}
    uses: dict[str, str] = {}
    for group in likeness.groups:
        if len(group) > 1:
            found[group[0]] = {n: torch.cat([sets[client][n] for client in group]) for n in ("images", "labels")}
            uses |= dict.fromkeys(group, group[0])
    return found, uses


def refined_gans(fed: Federation, cfg: Any, sets: dict[str, MadeSet]) -> dict[str, dict[str, Any]]:
    """A generator for each set, with the classes it knows; a few between two checkpoints."""
    names, state = list(sets), State(refined={})
    for index in fed.rounds("refined GANs", math.ceil(len(names) / cfg.side_by_side), state):
        part = names[(index - 1) * cfg.side_by_side : index * cfg.side_by_side]
        how = {"spec": cfg.gan_spec(), "training": cfg.gan_training(), "steps": cfg.refined_steps}
        done = fed.compute(refine_gan, {name: {**sets[name], **how, "name": name} for name in part})
        found = {name: _known(reply.fields()["weights"], sets[name]) for name, reply in done.items()}
        state.refined = state.refined | found
    return dict(state.refined)


def _known(weights: Weights, made: MadeSet) -> dict[str, Any]:
    return {"generator": weights, "classes": sorted(set(made["labels"].tolist()))}
