"""Mixed batches: at every step so many synthetic images join the private batch of a client.

They come from a generator that the client keeps, fresh, or from a set that it keeps.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.components.additions import note_additions
from fedsynth.components.personal_training import train_further
from fedsynth.components.samples import Samples
from fedsynth.components.synthetic_store import keep_samples, kept_samples
from fedsynth.federation import Client, Done, Federation, Message, task
from fedsynth.federation.tasks import Task
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import PLAIN, CrossEntropy
from fedsynth.methods.pfl_gan.client_gans import ClientGan
from fedsynth.synthesis.class_balance import drop_surplus, shortage_to_largest
from fedsynth.synthesis.gan import GanSpec, load_generator, make_images

GENERATOR = "generator"  # in the private state

Draw = Callable[[int], tuple[Tensor, Tensor]]
"""So many synthetic images with their labels."""


class KeptGenerator(Message):
    """A generator that a client draws from; with `noise`, a control, it draws noise of the same classes."""

    gan: ClientGan
    spec: GanSpec
    noise: bool = False


@task
def receive_samples(
    client: Client, samples: Samples, noise: bool = False, lacking: bool = False, duplicates: bool = False
) -> Done:
    """Keep a set of synthetic images, or of each class as many as the client lacks; as a control, noise instead, or
    examples of its own once more (of a class that it does not have, none)."""
    if lacking:
        wanted = shortage_to_largest(client.class_counts())
        samples = samples.rows(torch.from_numpy(drop_surplus(samples.labels.numpy(), wanted)))
    samples = Samples(images=samples.floats(), labels=samples.labels)
    if noise:
        images = client.rng("stand-in").random(tuple(samples.images.shape), dtype="float32")
        samples = Samples(images=torch.from_numpy(images), labels=samples.labels)
    elif duplicates:
        samples = own_again(client, samples.labels)
    keep_samples(client, samples, public=not lacking and not duplicates)
    return client.release(Done())


def own_again(client: Client, labels: Tensor) -> Samples:
    """Examples of the client's own with these labels, as far as it has such."""
    (x, y), dice = client.data.train.tensors(), client.rng("duplicates")
    rows = [np.flatnonzero(y.numpy() == label) for label in labels.tolist()]
    chosen = torch.tensor([int(dice.choice(own)) for own in rows if len(own)], dtype=torch.int64)
    return Samples(images=x[chosen], labels=y[chosen])


@task
def receive_generator(client: Client, kept: KeptGenerator, pool: int = 0) -> Done:
    """Keep a generator; or, with `pool`, so many images drawn with it once."""
    if pool and not kept.noise:
        classes = kept.gan.classes
        labels = torch.tensor(classes, dtype=torch.int64).repeat(-(-pool // len(classes)))[:pool]
        net = load_generator(kept.spec, client.schema.shape, client.schema.classes, kept.gan.generator)
        images = make_images(net, kept.spec, labels, client.rng("pool"))
        keep_samples(client, Samples(images=images, labels=labels), public=True)
    else:
        client.state.keep_public(GENERATOR, kept)
    return client.release(Done())


def deliver(fed: Federation, task: Task, requests: dict[str, dict[str, object]]) -> list[str]:
    """Send everybody what is theirs; those who cannot be reached twice train local-only."""
    missed = list(fed.scatter(task, requests, attempts=2).failures) if requests else []
    if missed:
        fed.note(f"Could not be reached to receive synthetic images: {', '.join(missed)}.")
    return missed


@task
def train_on_mixed_batches(client: Client, spec: ModelSpec, training: LocalTraining, per_step: int) -> Done:
    """Go on training the client's own model on private and synthetic images; local-only where it keeps none."""
    draw = drawer(client)
    objective = PLAIN if draw is None or per_step == 0 else MixedBatches(draw, per_step)
    x, y = client.data.train.tensors()
    if GENERATOR in client.state:
        note_additions(client, labels_of_a_pass(client, per_step * math.ceil(len(y) / training.batch_size)))
    train_further(client, spec, training, x, y, objective)
    return client.release(Done())


def labels_of_a_pass(client: Client, count: int) -> Tensor:
    """The labels that so many draws of the kept generator have on average: all its classes alike."""
    classes = torch.tensor(KeptGenerator.model_validate(client.state[GENERATOR]).gan.classes)
    return classes.repeat(count // max(1, len(classes)))


class MixedBatches(CrossEntropy):
    """Cross-entropy of the private batch and of synthetic images together; every image counts the same."""

    def __init__(self, draw: Draw, count: int) -> None:
        self.draw, self.count = draw, count

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        images, labels = self.draw(self.count)
        return F.cross_entropy(model(torch.cat([x, images.to(x)])), torch.cat([y, labels.to(y.device)]))


def drawer(client: Client) -> Draw | None:
    """Where this client's synthetic images come from; None where it keeps nothing."""
    dice = torch.Generator().manual_seed(int(client.rng("made").integers(2**63)))
    samples = kept_samples(client)
    if samples is not None:

        def from_set(count: int) -> tuple[Tensor, Tensor]:
            rows = torch.randint(len(samples), (count,), generator=dice)
            return samples.images[rows], samples.labels[rows]

        return from_set
    if GENERATOR not in client.state:
        return None
    kept = KeptGenerator.model_validate(client.state[GENERATOR])
    spec, classes, shape = kept.spec, torch.tensor(kept.gan.classes), client.schema.shape
    net = None if kept.noise else load_generator(spec, shape, client.schema.classes, kept.gan.generator)

    def fresh(count: int) -> tuple[Tensor, Tensor]:
        labels = classes[torch.randint(len(classes), (count,), generator=dice)]
        if net is None:
            return torch.rand((count, *shape), generator=dice), labels
        with torch.no_grad():
            return net(torch.randn((count, spec.latent), generator=dice), labels), labels

    return fresh
