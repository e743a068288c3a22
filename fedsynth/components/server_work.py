"""Pieces of work that the server does itself, spread over its cores by `fed.compute`. No client's data is near."""

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedsynth.data.dataset import Schema
from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, buffer_entries, weights_of
from fedsynth.synthesis.inversion import Inversion, Start, draw_start, invert, require_batch_norm

FROM_WEIGHTS = "synthesised from shared weights alone"


class TuningSettings(BaseModel):
    """How the server tunes a model."""

    tune_epochs: int = Field(1, ge=0, description="epochs of the server on the synthetic images")
    tune_batch_size: int = Field(32, ge=1, description="images a step")
    tune_rate: float = Field(0.5, gt=0, description="learning rate of the server, as a share of the clients'")

    def tuning(self, local: LocalTraining) -> LocalTraining:
        """The clients' training with these changes."""
        changed = {"epochs": self.tune_epochs, "batch_size": self.tune_batch_size, "lr": local.lr * self.tune_rate}
        return local.model_copy(update=changed)


class Inverted(Reply):
    """Images that were synthesised from a model."""

    images: Tensor = leaves(f"images, {FROM_WEIGHTS}")


class Probabilities(Reply):
    """What a model says of images."""

    probabilities: Tensor = leaves(f"probabilities of each class, {FROM_WEIGHTS}")


class Tuned(Reply):
    """A model after tuning."""

    model: Weights = leaves(f"weights, tuned on images {FROM_WEIGHTS}")


def images_of_classes(
    net: Classifier, schema: Schema, per_class: int, steps: int, grey: bool, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Images of every class from one network (Fed-ZDA, eq. 3) and their labels.

    `grey`: from a grey start within the range of the data; otherwise as published, from noise and without limits.
    """
    require_batch_norm(net)
    labels = torch.arange(schema.classes).repeat_interleave(per_class)
    low, high = (0.0, 1.0) if grey else (None, None)
    how = Inversion(steps, lr=0.05 if grey else 0.1, low=low, high=high, statistics=1.0, reduction="mean")
    start = draw_start("grey" if grey else "normal", len(labels), schema.shape, rng)
    return invert(net, start, labels, how).contiguous(), labels


@task
def invert_model(
    client: Client, model: Weights, spec: ModelSpec, start: Tensor | Start, labels: Tensor, inversion: Inversion
) -> Inverted:
    """Optimise inputs against one model, from starting points that are given or drawn here."""
    net = client.build(spec, model)
    if isinstance(start, str):
        start = draw_start(start, len(labels), client.schema.shape, client.rng("start"))
    return client.release(Inverted(images=invert(net, start, labels, inversion)))


@task
def classify_images(client: Client, model: Weights, spec: ModelSpec, images: Tensor) -> Probabilities:
    """One model's probabilities for some images."""
    net = client.build(spec, model).eval()
    with torch.no_grad():
        return client.release(Probabilities(probabilities=net(images).softmax(1)))


@task
def tune_model(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    images: Tensor,
    labels: Tensor,
    training: LocalTraining,
    keep_statistics: bool,
) -> Tuned:
    """Train a model on some images. BatchNorm's stored statistics follow them, or stay those of the clients."""
    net = client.build(spec, model)
    fit(net, images, labels, training, client.rng("tuning"))
    kept = {name: model[name] for name in buffer_entries(net)} if keep_statistics else {}
    return client.release(Tuned(model=weights_of(net) | kept))


def tune_at_server(
    fed: Federation,
    model: Weights,
    spec: ModelSpec,
    images: Tensor,
    labels: Tensor,
    training: LocalTraining,
    keep_statistics: bool = False,
) -> Weights:
    """The model after some epochs on these images."""
    fields = {"images": images, "labels": labels, "training": training, "keep_statistics": keep_statistics}
    return fed.compute(tune_model, {"tune": {"model": model, "spec": spec, **fields}})["tune"].model
