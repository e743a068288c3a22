"""How good synthetic examples are, judged by things that had no part in making them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsynth.learning.models import Classifier, ModelSpec, build_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import Tally, evaluate, fit
from fedsynth.seeding import generator

ORACLE = LocalTraining(epochs=6, batch_size=64, lr=1e-3, optimizer="adam")
ALONE = LocalTraining(epochs=15, batch_size=32, lr=1e-3, optimizer="adam")


def train_oracle(
    spec: ModelSpec, x: Tensor, y: Tensor, classes: int, seed: int = 0, training: LocalTraining = ORACLE
) -> Classifier:
    """A classifier of real data, trained in one place, that has seen nothing of the federation."""
    model = build_model(spec, tuple(x.shape[1:]), classes, seed=seed)
    fit(model, x, y, training, generator(seed, "oracle"))
    return model.eval()


def oracle_agreement(oracle: nn.Module, images: Tensor, labels: Tensor, classes: int) -> Tally:
    """How often the oracle sees the class that an image was made for: `.accuracy` and `.per_class()`."""
    return evaluate(oracle, images, labels, classes)


def trained_on_these_only(
    spec: ModelSpec,
    images: Tensor,
    labels: Tensor,
    test: tuple[Tensor, Tensor],
    classes: int,
    seed: int = 0,
    training: LocalTraining = ALONE,
) -> Tally:
    """A fresh classifier that learns from these examples alone, judged on real ones."""
    model = build_model(spec, tuple(images.shape[1:]), classes, seed=seed)
    fit(model, images, labels, training, generator(seed, "trained on these only"))
    return evaluate(model, *test, classes)


def feature_distance(first: Tensor, second: Tensor) -> float:
    """1 − the mean cosine over all pairs of features of two sets (AggEnhance, eq. 19); rows are features."""
    if not len(first) or not len(second):
        return float("nan")
    one, other = (nn.functional.normalize(rows.double().flatten(1), dim=1) for rows in (first, second))
    # The mean over all pairs is the product of the means: no N1 × N2 table is needed.
    return 1.0 - float(one.mean(0) @ other.mean(0))


def features_of(model: Classifier, x: Tensor, batch_size: int = 512) -> Tensor:
    """The representations that a classifier makes, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model.body(batch) for batch in x.split(batch_size)])
