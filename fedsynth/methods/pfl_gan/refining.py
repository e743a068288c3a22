"""PFL-GAN's work at the server after the comparison: the sets T_i, and a refined GAN on each (lines 13 to 16)."""

import math

import numpy as np
import torch

from fedsynth.components.ablations import CROSSED, draw_real_samples
from fedsynth.components.samples import Samples, as_bytes
from fedsynth.federation import Client, Federation, State, task
from fedsynth.learning.similarity import Rule, samples_to_take
from fedsynth.methods.pfl_gan.client_gans import ClientGan, GanRequest, Learnt, Similarity
from fedsynth.seeding import derive, generator
from fedsynth.synthesis.gan import TrainingImages, build_gan, generator_weights
from fedsynth.synthesis.gan_training import train_gan


@task
def refine_gan(client: Client, samples: Samples, request: GanRequest, name: str) -> Learnt:
    """A fresh GAN on one T_i; `name` tells it from the others, whatever the order of work."""
    seed = derive(client.seed, "refined gan", name)
    gan = build_gan(request.spec, client.schema.shape, client.schema.classes, seed)
    rng = generator(client.seed, "refined gan training", name)
    train_gan(gan, TrainingImages(samples.floats(), samples.labels), request.training, request.steps, rng)
    return client.release(Learnt(weights=generator_weights(gan.weights())))


def server_sets(similar: Similarity, sets: dict[str, Samples], rule: Rule, own: bool = False) -> dict[str, Samples]:
    """T_i of every client that has neighbours: the first ⌊S_ij⌋ samples of each neighbour's set.

    With `own` the client's own set is in it, too, as it is in eq. 5 read literally: S_ii = c.
    """
    sizes = np.array([len(sets[client]) for client in similar.clients])
    amounts = samples_to_take(similar.distances, similar.near, sizes, rule)
    if own:
        np.fill_diagonal(amounts, sizes)
    found = {}
    for client, row in zip(similar.clients, amounts, strict=True):
        if row.sum():
            chosen = [(sets[other], int(n)) for other, n in zip(similar.clients, row, strict=True) if n]
            found[client] = Samples.joined([Samples(images=s.images[:n], labels=s.labels[:n]) for s, n in chosen])
    return found


def real_sets(fed: Federation, per_class: int) -> dict[str, Samples]:
    """Real examples of every client in place of synthetic ones, as many of each class as it has of them."""
    fed.note(CROSSED)
    images = len(fed.schema.shape) == 3
    sets = dict.fromkeys(fed.clients, Samples.none(fed.schema.shape, torch.uint8 if images else torch.float32))
    for client, reply in fed.broadcast(draw_real_samples, per_class=per_class).items():
        order = torch.from_numpy(fed.rng(f"order of {client}").permutation(len(reply.labels)))
        real = reply.images[order]
        sets[client] = Samples(images=as_bytes(real) if images else real, labels=reply.labels[order])
    return sets


def group_sets(similar: Similarity, sets: dict[str, Samples]) -> tuple[dict[str, Samples], dict[str, str]]:
    """One set for each group of several clients, of all its members' sets; and which one each client uses."""
    found: dict[str, Samples] = {}
    uses: dict[str, str] = {}
    for group in similar.groups:
        if len(group) > 1:
            found[group[0]] = Samples.joined([sets[client] for client in group])
            uses |= dict.fromkeys(group, group[0])
    return found, uses


class RefinedState(State):
    """The refined GANs so far."""

    refined: dict[str, ClientGan]


def refine_gans(
    fed: Federation, sets: dict[str, Samples], request: GanRequest, side_by_side: int
) -> dict[str, ClientGan]:
    """A generator for each set, with the classes it knows; a few between two checkpoints."""
    names, state = list(sets), RefinedState(refined={})
    for index in fed.steps("refined GANs", math.ceil(len(names) / side_by_side), state):
        part = names[(index - 1) * side_by_side : index * side_by_side]
        jobs = {name: {"samples": sets[name], "request": request, "name": name} for name in part}
        done = fed.compute(refine_gan, jobs)
        classes = {name: sorted(set(sets[name].labels.tolist())) for name in part}
        refined = {n: ClientGan(generator=reply.weights, classes=classes[n]) for n, reply in done.items()}
        state.refined = state.refined | refined
    return dict(state.refined)
