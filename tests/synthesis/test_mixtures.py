"""Splitting a class into components, and drawing from the Gaussians of many clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.synthesis.mixtures import Gaussians, draw_mixture, k_means, shared_out, split_classes
from fedsynth.synthesis.moments import class_model, class_sums, read_sums


def two_blobs(n: int = 30) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(np.concatenate([rng.normal(-4, 0.5, (n, 3)), rng.normal(4, 0.5, (n, 3))]))


def test_parts_that_lie_apart_are_found() -> None:
    part = k_means(two_blobs(), 2, np.random.default_rng(1))
    assert len(part[:30].unique()) == len(part[30:].unique()) == 1
    assert part[0] != part[30]


def test_points_that_are_all_the_same_are_one_part() -> None:
    assert k_means(torch.ones((9, 2)).double(), 3, np.random.default_rng(0)).tolist() == [0] * 9
    assert k_means(torch.ones((9, 2)).double(), 0, np.random.default_rng(0)).tolist() == [0] * 9


def test_only_a_class_that_is_large_enough_is_split() -> None:
    vectors, y = two_blobs(), torch.zeros(60, dtype=torch.int64)
    y[[0, 1, 30, 31, 32]] = 1
    found = split_classes(vectors, y, 2, 3, np.random.default_rng(0))
    assert set(found[y == 0].tolist()) == {0, 1}
    assert set(found[y == 1].tolist()) == {2}


@pytest.mark.parametrize("total", [1, 7, 100])
def test_amounts_have_the_total_and_follow_the_weights(total: int) -> None:
    weights = np.array([[1.0, 0.0], [2.5, 4.0]])
    amounts = shared_out(total, weights)
    assert amounts.sum() == total
    assert np.abs(amounts - total * weights / weights.sum()).max() < 1
    assert shared_out(5, np.zeros((2, 2))).sum() == 0


def test_draws_have_the_moments_of_the_mixture() -> None:
    """Two clients with a class at different places, one of them three times as often; nobody has class 1."""
    rng, mixture, parts = np.random.default_rng(3), [], []
    for place, count in ((-3.0, 300), (5.0, 100)):
        x = torch.from_numpy(rng.normal(place, 1, (count, 2)))
        parts.append(x)
        sums = read_sums(class_sums(x, torch.zeros(count, dtype=torch.int64), 2, "class"), 2, 2)
        mixture.append(Gaussians(class_model(sums, 0.0), sums.counts.tolist()))
    drawn, labels = draw_mixture(mixture, 2, 4000, rng)
    assert labels.tolist() == [0] * 4000
    pooled = torch.cat(parts)
    assert drawn.double().mean(0) == pytest.approx(pooled.mean(0), abs=0.1)
    assert torch.allclose(torch.cov(drawn.double().T), torch.cov(pooled.T), atol=0.6)
