"""What clients do for GANDALF: train a GAN that is handed to them, and fill up the classes they lack with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedsynth.components.ablations import stand_ins
from fedsynth.components.class_counts import let_out_counts, tells_nothing_new
from fedsynth.components.filling import amounts, drop_surplus, share_out, shortage
from fedsynth.components.grouping import shares
from fedsynth.components.private_gan import private_gan_fit
from fedsynth.components.synthetic_store import keep_made
from fedsynth.components.update_privacy import NOISE, Protection, bare_noise_guarantee, with_bare_noise
from fedsynth.federation import Client, Done, Reply, leaves, task
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.weights import Weights
from fedsynth.synthesis.gan import GanSpec, TrainingImages, load_gan, load_generator, make_images
from fedsynth.synthesis.gan_training import GanTraining, train_gan
from fedsynth.synthesis.static import Static, fill_classes

SURE = 3.0  # standard deviations of the noise above which a noisy count says that a class is there

NOTHING_LEARNT = tells_nothing_new(
    "no training: the noisy counts name no class that is surely there", "it is handed on as it came"
)


class HandOff(Reply):
    """A GAN as a client leaves it."""

    gan: Weights = leaves("weights of generator and critic after training on the client's data")
    moments: dict[str, Tensor] = leaves("Adam's moments of this training, where they travel with the weights")
    losses: list[float] = leaves("mean losses of generator and critic")


class Generators(BaseModel):
    """What a client is sent to make images with: each generator's weights, and what its group has of each class.

    `known` are the classes that a generator has learnt, `mixes` what its group has of each (both by generator).
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    spec: GanSpec
    weights: list[Weights]
    known: list[list[bool]]
    mixes: list[list[float]]


class Filling(BaseModel):
    """How a client fills up what it lacks. `noisy`: by the class counts that it has let out, not by its own."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    tau: float
    static: dict[str, Any] | None
    synthetic: str
    noisy: bool
    labeller: Weights
    spec: ModelSpec
    real: dict[str, Tensor]


@task
def train_gan_visit(
    client: Client,
    gan: Weights,
    moments: dict[str, Tensor],
    spec: GanSpec,
    training: GanTraining,
    steps: int,
    keep_moments: bool,
    sigma: float,
    protection: Protection | None = None,
    visits: int = 1,
) -> HandOff:
    """One visit of algorithm 1 (lines 4 to 17): T_g generator steps on the client's data; one of so many planned."""
    net = load_gan(spec, client.schema.shape, client.schema.classes, gan)
    x, y = client.data.train.tensors()
    if protection is not None and protection.updates == "dp_sgd":
        known = torch.from_numpy(surely_there(let_out_counts(client), sigma, 1))
        guarantee = NOTHING_LEARNT
        if known.any():
            guarantee = private_gan_fit(client, net, x, y, known, training, steps, protection, visits)
        return client.release(HandOff(gan=net.weights(), moments={}, losses=[]), gan=guarantee)
    fit = train_gan(net, TrainingImages(x, y), training, steps, client.rng("gan"), moments or None)
    weights, guarantees = net.weights(), {}
    if protection is not None:
        weights = with_bare_noise(weights, list(weights), protection, client.noise_rng(NOISE))
        guarantees = {"gan": bare_noise_guarantee(protection)}
    kept = fit.moments if keep_moments else {}
    return client.release(
        HandOff(gan=weights, moments=kept, losses=[fit.generator_loss, fit.critic_loss]), **guarantees
    )


def surely_there(counts: np.ndarray, sigma: float, clients: int) -> np.ndarray:
    """Which classes are there, by the sum of so many clients' counts with noise of this σ on each."""
    return np.asarray(counts > max(0.0, SURE * sigma * clients**0.5))


@task
def fill_shortage(client: Client, generators: dict[str, Any], how: dict[str, Any]) -> Done:
    """Make, label and keep what the client lacks to an even mix of classes (section 4.2)."""
    filling = Filling(**how)
    noisy = filling.noisy  # then nothing here looks at the records
    counts = np.clip(let_out_counts(client), 0, None) if noisy else client.data.train.counts(client.schema.classes)
    lacking = shortage(counts)
    wanted = np.rint(filling.tau * lacking).astype(np.int64)
    images, labels = generated(client, Generators(**generators), filling, lacking)
    rows = torch.from_numpy(drop_surplus(labels.numpy(), wanted))
    images, labels = images[rows], labels[rows]
    rng = client.rng("stand-in")
    noise = torch.from_numpy(rng.random(tuple(images.shape), dtype=np.float32))
    instead = stand_ins(filling.synthetic, labels, noise, filling.real, rng)
    images = images if instead is None else instead
    if filling.static is not None:
        missing = wanted - np.bincount(labels.numpy(), minlength=len(wanted))
        copies, of = fill_classes(*client.data.train.tensors(), missing, client.rng("static"), Static(**filling.static))
        images, labels = torch.cat([images, copies]), torch.cat([labels, of])
    if len(labels):
        keep_made(client, images, labels, public=noisy and filling.static is None)
    return client.release(Done())


def generated(client: Client, generators: Generators, filling: Filling, lacking: np.ndarray) -> tuple[Tensor, Tensor]:
    """Images of the received generators, with labels: those they were asked for, or those that the labeller gives."""
    shape, classes, spec = client.schema.shape, client.schema.classes, generators.spec
    images, labels = torch.zeros((0, *shape)), torch.zeros(0, dtype=torch.int64)
    if not generators.weights:
        return images, labels
    known, mixes = np.array(generators.known), np.array(generators.mixes)
    plan = share_out(lacking, filling.tau, known, mixes)
    numbers = amounts(shares(mixes).T, lacking, filling.tau)
    rng = client.rng("generated")
    for number, weights in enumerate(generators.weights):
        generator = load_generator(spec, shape, classes, weights)
        if spec.conditional:
            asked = torch.repeat_interleave(torch.arange(classes), torch.from_numpy(plan[number]))
            made = make_images(generator, spec, asked, rng)
        else:
            made = make_images(generator, spec, None, rng, count=int(numbers[number]))
            asked = labelled(client, filling, made)
        images, labels = torch.cat([images, made]), torch.cat([labels, asked])
    return images, labels


def labelled(client: Client, filling: Filling, images: Tensor) -> Tensor:
    """What the federated classifier takes the images for."""
    net = instantiate(filling.spec, client.schema.shape, client.schema.classes, filling.labeller).eval()
    with torch.no_grad():
        return torch.cat([net(batch).argmax(1) for batch in images.split(512)] or [torch.zeros(0, dtype=torch.int64)])
