"""Mixtures of Gaussians for classes: how a client splits its classes, and draws from the Gaussians of many."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsynth.synthesis.moments import ClassModel, draw

STEPS = 20  # of Lloyd's algorithm


def split_classes(vectors: Tensor, y: Tensor, components: int, fewest: int, rng: np.random.Generator) -> Tensor:
    """Labels of components, label · components + 0, 1, …: each class is split where it lies apart, into parts of
    `fewest` on average at least."""
    parts = torch.zeros_like(y)
    for label in y.unique().tolist():
        rows = torch.nonzero(y == label).flatten()
        parts[rows] = k_means(vectors[rows], min(components, len(rows) // fewest), rng)
    return y * components + parts


def k_means(points: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """The number of its part for each point: k-means++, then Lloyd's algorithm."""
    part = torch.zeros(len(points), dtype=torch.int64)
    if count < 2:
        return part
    middles = points[rng.integers(len(points))][None]
    for _ in range(count - 1):
        far = torch.cdist(points, middles).min(1).values.square().numpy()
        if not far.sum() > 0:  # fewer different points than parts
            break
        middles = torch.cat([middles, points[rng.choice(len(points), p=far / far.sum())][None]])
    for _ in range(STEPS):
        before, part = part, torch.cdist(points, middles).argmin(1)
        if torch.equal(before, part):
            break
        for number in part.unique().tolist():
            middles[number] = points[part == number].mean(0)
    return part


class Gaussians(NamedTuple):
    """Gaussians of the classes (or of so many components of each), and how many examples each stands for."""

    model: ClassModel
    counts: Sequence[float]


def draw_mixture(
    mixture: Sequence[Gaussians], classes: int, draws: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """So many vectors of each class that is known, from its Gaussians by their shares of the examples; and labels."""
    weights = np.stack([np.where(g.model.known.numpy(), np.maximum(g.counts, 0), 0) for g in mixture])
    components = weights.shape[1] // classes
    amounts = np.zeros(weights.shape, np.int64)
    for label in range(classes):
        columns = slice(label * components, (label + 1) * components)
        amounts[:, columns] = shared_out(draws, weights[:, columns])
    vectors, labels = [], []
    for each, row in zip(mixture, amounts, strict=True):
        which = np.repeat(np.arange(len(row)), row)
        vectors.append(draw(each.model, which, rng))
        labels.append(torch.from_numpy(which // components))
    return torch.cat(vectors), torch.cat(labels)


def shared_out(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers with this total, as near to the weights as can be; zeros where all weights are."""
    if not weights.sum() > 0:
        return np.zeros(weights.shape, np.int64)
    exact = weights / weights.sum() * total
    whole = np.floor(exact).astype(np.int64)
    most = np.argsort((whole - exact).ravel(), kind="stable")[: total - int(whole.sum())]
    whole.ravel()[most] += 1
    return whole
