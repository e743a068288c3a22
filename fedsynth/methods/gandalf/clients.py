"""What clients do for GANDALF: train a GAN that is handed to them, and top up the classes they lack with it."""

import numpy as np
import torch
from torch import Tensor

from fedsynth.components.ablations import stand_ins
from fedsynth.components.class_counts import released_counts
from fedsynth.components.local_training import UpdatesSlot
from fedsynth.components.private_gan import fit_gan_privately
from fedsynth.components.samples import Samples
from fedsynth.components.synthetic_store import keep_samples
from fedsynth.federation import Client, Done, Message, Reply, leaves, task
from fedsynth.learning.grouping import shares
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.privacy import Guarantee
from fedsynth.synthesis.class_balance import Solver, amounts, drop_surplus, share_out, shortage_to_largest
from fedsynth.synthesis.gan import GanSpec, TrainingImages, load_gan, load_generator, make_images
from fedsynth.synthesis.gan_training import GanTraining, train_gan
from fedsynth.synthesis.static import Static, fill_classes

SURE = 3.0  # standard deviations of the noise above which a noisy count says that a class is there

NOTHING_LEARNT = Guarantee.constant(
    "no training: the noisy counts name no class that is surely there", "it is handed on as it came"
)


class HandOff(Reply):
    """A GAN as a client leaves it."""

    gan: Weights = leaves("weights of generator and critic after training on the client's data")
    moments: Weights = leaves("Adam's moments of this training, where they travel with the weights")
    losses: list[float] = leaves("mean losses of generator and critic")


class Generators(Message):
    """What a client is sent to make images with: each generator's weights, and what its group has of each class.

    `known` are the classes that a generator has learnt, `mixes` what its group has of each (both by generator).
    """

    spec: GanSpec
    weights: list[Weights]
    known: list[list[bool]]
    mixes: list[list[float]]


class TopUp(Message):
    """How a client tops up missing classes. `noisy`: by the class counts that it has released, not by its own."""

    tau: float
    static: Static | None
    synthetic: str
    solver: Solver
    noisy: bool
    labeller: Weights
    spec: ModelSpec
    real: Samples | None


class GanVisit(Message):
    """How a client is to train a GAN that visits it, and how often it will at most: private noise answers to that.

    `sigma` is that of the noise on class counts.
    """

    spec: GanSpec
    training: GanTraining
    steps: int
    keep_moments: bool
    sigma: float
    updates: UpdatesSlot
    visits: int = 1


@task
def train_gan_visit(client: Client, gan: Weights, moments: Weights, visit: GanVisit) -> HandOff:
    """One visit of algorithm 1 (lines 4 to 17): T_g generator steps on the client's data."""
    net = load_gan(visit.spec, client.schema.shape, client.schema.classes, gan)
    if visit.updates.hides_records:
        known = torch.from_numpy(surely_there(released_counts(client), visit.sigma, 1))
        guarantee = NOTHING_LEARNT
        if known.any():
            guarantee = fit_gan_privately(client, net, known, visit.training, visit.steps, visit.updates, visit.visits)
        return client.release(HandOff(gan=net.weights(), moments={}, losses=[]), gan=guarantee)
    images = TrainingImages(*client.data.train.tensors())
    fit = train_gan(net, images, visit.training, visit.steps, client.rng("gan"), moments or None)
    weights, guarantees = visit.updates.with_noise(client, net.weights(), list(net.weights()), "gan")
    kept = fit.moments if visit.keep_moments else {}
    losses = [fit.generator_loss, fit.critic_loss]
    return client.release(HandOff(gan=weights, moments=kept, losses=losses), **guarantees)


def surely_there(counts: np.ndarray, sigma: float, clients: int) -> np.ndarray:
    """Which classes are there, by the sum of so many clients' counts with noise of this σ on each."""
    return np.asarray(counts > max(0.0, SURE * sigma * clients**0.5))


@task
def top_up(client: Client, generators: Generators, how: TopUp) -> Done:
    """Generate, label and keep what the client lacks to an even mix of classes (section 4.2)."""
    # Where counts are noisy, nothing here looks at the records.
    counts = np.clip(released_counts(client), 0, None) if how.noisy else client.class_counts()
    lacking = shortage_to_largest(counts)
    wanted = np.rint(how.tau * lacking).astype(np.int64)
    images, labels = generate(client, generators, how, lacking)
    rows = torch.from_numpy(drop_surplus(labels.numpy(), wanted))
    images, labels = images[rows], labels[rows]
    rng = client.rng("stand-in")
    noise = torch.from_numpy(rng.random(tuple(images.shape), dtype=np.float32))
    instead = stand_ins(how.synthetic, labels, noise, how.real, rng)
    images = images if instead is None else instead
    if how.static is not None:
        missing = wanted - np.bincount(labels.numpy(), minlength=len(wanted))
        copies, of = fill_classes(*client.data.train.tensors(), missing, client.rng("static"), how.static)
        images, labels = torch.cat([images, copies]), torch.cat([labels, of])
    if len(labels):
        public = how.noisy and how.static is None
        keep_samples(client, Samples(images=images, labels=labels), public=public)
    return client.release(Done())


def planned_images(counts: np.ndarray, generators: Generators, tau: float) -> np.ndarray:
    """How many images of each class a client with these counts generates, by generators that are told the class."""
    if not generators.weights:
        return np.zeros(len(counts), dtype=np.int64)
    known, mixes = np.array(generators.known), np.array(generators.mixes)
    lacking = shortage_to_largest(np.clip(counts, 0, None))
    return np.asarray(share_out(lacking, tau, known, mixes).sum(axis=0))


def generate(client: Client, generators: Generators, how: TopUp, lacking: np.ndarray) -> tuple[Tensor, Tensor]:
    """Images of the received generators, with labels: those they were asked for, or those that the labeller gives."""
    shape, classes, spec = client.schema.shape, client.schema.classes, generators.spec
    images, labels = torch.zeros((0, *shape)), torch.zeros(0, dtype=torch.int64)
    if not generators.weights:
        return images, labels
    known, mixes = np.array(generators.known), np.array(generators.mixes)
    plan = share_out(lacking, how.tau, known, mixes)
    numbers = amounts(shares(mixes).T, lacking, how.tau, how.solver)
    rng = client.rng("generated")
    for number, weights in enumerate(generators.weights):
        generator = load_generator(spec, shape, classes, weights)
        if spec.conditional:
            asked = torch.repeat_interleave(torch.arange(classes), torch.from_numpy(plan[number]))
            drawn = make_images(generator, spec, asked, rng)
        else:
            drawn = make_images(generator, spec, None, rng, count=int(numbers[number]))
            asked = label(client, how, drawn)
        images, labels = torch.cat([images, drawn]), torch.cat([labels, asked])
    return images, labels


def label(client: Client, how: TopUp, images: Tensor) -> Tensor:
    """What the federated classifier takes the images for."""
    net = client.build(how.spec, how.labeller).eval()
    with torch.no_grad():
        return torch.cat([net(batch).argmax(1) for batch in images.split(512)] or [torch.zeros(0, dtype=torch.int64)])
