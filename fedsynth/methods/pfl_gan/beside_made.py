"""What a client does with images that others helped to make: it keeps them, or a generator, and trains beside them.

At every step so many made images join the private batch. They come from a kept generator, fresh, or from a kept set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.components.filling import drop_surplus, shortage
from fedsynth.components.synthetic_store import keep_made, made_by
from fedsynth.federation import Client, Done, Federation, task
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import PLAIN, CrossEntropy, Objective
from fedsynth.learning.weights import Weights
from fedsynth.methods.references import go_on_alone
from fedsynth.synthesis.gan import GanSpec, load_generator, make_images

MAKER = "maker of images"  # in the private state

Draw = Callable[[int], tuple[Tensor, Tensor]]
"""So many made images with their labels."""


@task
def receive_images(client: Client, images: Tensor, labels: Tensor, noise: bool = False, lacking: bool = False) -> Done:
    """Keep a set of made images, or of each class as many as the client lacks; as a control, noise in their place."""
    if lacking:
        wanted = shortage(client.data.train.counts(client.schema.classes))
        rows = torch.from_numpy(drop_surplus(labels.numpy(), wanted))
        images, labels = images[rows], labels[rows]
    if noise:
        images = torch.from_numpy(client.rng("stand-in").random(tuple(images.shape), dtype="float32"))
    elif images.dtype == torch.uint8:
        images = images.to(torch.float32) / 255
    keep_made(client, images, labels, public=not lacking)
    return client.release(Done())


def deliver(fed: Federation, task: Any, orders: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Send everybody what is theirs; those who do not answer are asked once more, then train alone."""
    replies = fed.scatter(task, orders) if orders else {}
    missed = {client: order for client, order in orders.items() if client not in replies}
    again = fed.scatter(task, missed) if missed else {}
    left = [client for client in missed if client not in again]
    if left:
        fed.note(f"Could not be reached to receive made images: {', '.join(left)}.")
    return {"missed": left}


@task
def receive_generator(
    client: Client, generator: Weights, spec: GanSpec, classes: list[int], pool: int = 0, noise: bool = False
) -> Done:
    """Keep a generator of these classes; or, with `pool`, so many images made with it once. Noise is a control."""
    if pool and not noise:
        labels = torch.tensor(classes, dtype=torch.int64).repeat(-(-pool // len(classes)))[:pool]
        net = load_generator(spec, client.schema.shape, client.schema.classes, generator)
        keep_made(client, make_images(net, spec, labels, client.rng("pool")), labels, public=True)
    else:
        kept = {"generator": {} if noise else generator, "spec": spec.model_dump(mode="json"), "classes": classes}
        client.state.keep_public(MAKER, kept)
    return client.release(Done())


@task
def train_beside_made(client: Client, spec: ModelSpec, training: LocalTraining, per_step: int) -> Done:
    """Go on training the client's own model on private and made images; alone where it keeps none."""
    x, y = client.data.train.tensors()
    draw = drawer(client)

    def objective(net: Classifier) -> Objective:
        return PLAIN if draw is None or per_step == 0 else BesideMade(draw, per_step)

    go_on_alone(client, spec, training, x, y, objective)
    return client.release(Done())


class BesideMade(CrossEntropy):
    """Cross-entropy of the private batch and of made images together; every image counts the same."""

    def __init__(self, draw: Draw, count: int) -> None:
        self.draw, self.count = draw, count

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        images, labels = self.draw(self.count)
        return F.cross_entropy(model(torch.cat([x, images.to(x)])), torch.cat([y, labels.to(y.device)]))


def drawer(client: Client) -> Draw | None:
    """Where this client's made images come from; None where it keeps nothing."""
    dice = torch.Generator().manual_seed(int(client.rng("made").integers(2**63)))
    made = made_by(client)
    if made is not None:
        images, labels = made

        def from_set(count: int) -> tuple[Tensor, Tensor]:
            rows = torch.randint(len(labels), (count,), generator=dice)
            return images[rows], labels[rows]

        return from_set
    kept: dict[str, Any] | None = client.state.get(MAKER)
    if kept is None:
        return None
    spec, classes, shape = GanSpec(**kept["spec"]), torch.tensor(kept["classes"]), client.schema.shape
    net = load_generator(spec, shape, client.schema.classes, kept["generator"]) if kept["generator"] else None

    def fresh(count: int) -> tuple[Tensor, Tensor]:
        labels = classes[torch.randint(len(classes), (count,), generator=dice)]
        if net is None:
            return torch.rand((count, *shape), generator=dice), labels
        with torch.no_grad():
            return net(torch.randn((count, spec.latent), generator=dice), labels), labels

    return fresh
