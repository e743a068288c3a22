"""Ridge regression from sums: the same bits whatever the split, scikit-learn's solution, and what noise does to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from fedsynth.learning.ridge import BESIDE, BIAS, SOFTMAX, RidgeSums, balanced, cut, lifted, linear_head, solve

FEATURES, CLASSES = 5, 3


def examples(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    q = rng.normal(size=(CLASSES, FEATURES))[y] + rng.normal(size=(count, FEATURES))
    return torch.from_numpy(q / 10), torch.from_numpy(y)


def sums_of(q: torch.Tensor, y: torch.Tensor) -> RidgeSums:
    sums = RidgeSums.none(FEATURES, CLASSES)
    sums.add(lifted(q), y)
    return sums


def repacked(values: torch.Tensor) -> RidgeSums:
    return RidgeSums.unpacked(values, FEATURES, CLASSES)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=40, deadline=None)
def test_sums_are_the_same_bits_whatever_the_split_and_can_be_taken_off_again(seed: int, cuts: list[int]) -> None:
    q, y = examples(200, seed)
    whole = sums_of(q, y).packed()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(200))
    parts = [sums_of(q[rows], y[rows]).packed() for rows in order.tensor_split(sorted(cuts))]
    total = torch.stack(parts).sum(0)
    assert torch.equal(total, whole)
    assert torch.equal(total - parts[0], torch.stack([torch.zeros_like(whole), *parts[1:]]).sum(0))


def test_packing_keeps_every_bit() -> None:
    sums = sums_of(*examples(50))
    again = repacked(sums.packed())
    assert torch.equal(again.second, sums.second)
    assert torch.equal(again.by_class, sums.by_class)
    assert sums.packed().shape == (21 + 18,)
    assert torch.equal(again.examples, torch.bincount(examples(50)[1], minlength=CLASSES).double())


def test_entries_are_cut_towards_zero() -> None:
    q, _ = examples(50)
    u = lifted(q)
    assert bool((u.abs() <= torch.cat([math.sqrt(0.98) * q, torch.full((50, 1), BIAS)], 1).abs()).all())
    assert torch.equal(
        cut(torch.tensor([-0.99999, 0.99999], dtype=torch.float64)) * 2**14, torch.tensor([-16383.0, 16383.0])
    )


def test_the_solution_is_that_of_scikit_learn() -> None:
    q, y = examples(80)
    u = lifted(q).numpy()
    for ridge in (1e-3, 1.0):
        strength = ridge * (u**2).sum() / u.shape[1]
        theirs = Ridge(alpha=strength, fit_intercept=False, solver="cholesky").fit(u, np.eye(CLASSES)[y.numpy()])
        assert solve(sums_of(q, y), ridge).numpy() == pytest.approx(theirs.coef_.T, rel=1e-9, abs=1e-10)


def test_the_head_gives_the_scores_of_the_solution_on_the_features_themselves() -> None:
    features, y = examples(60)
    centre, radius = torch.full((FEATURES,), 0.05, dtype=torch.float64), 2.0
    q = (features - centre) / radius
    solution = solve(sums_of(q, y), 1e-3)
    weight, bias = linear_head(solution, centre, radius)
    u = torch.cat([math.sqrt(0.98) * q, torch.full((60, 1), BIAS)], 1)
    assert torch.allclose(features @ weight.T + bias, SOFTMAX * u @ solution, atol=1e-12)
    assert float((solution.T @ u.T).argmax(0).eq(y).double().mean()) > 0.5


def test_noise_on_what_is_packed_is_less_beside_the_diagonal() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(2000, 39)))
    seconds = torch.stack([repacked(row).second for row in noise])
    assert torch.equal(seconds, seconds.transpose(1, 2))
    spread = seconds.std(0)
    beside = spread[~torch.eye(6, dtype=torch.bool)]
    assert spread.diagonal().numpy() == pytest.approx(np.ones(6), rel=0.06)
    assert beside.numpy() == pytest.approx(np.full(30, 1 / BESIDE), rel=0.06)
    assert math.sqrt(2) - 0.01 < BESIDE < math.sqrt(2)


def test_with_noise_negative_eigenvalues_are_zero_and_lambda_does_not_follow_the_data() -> None:
    values, vectors = (
        torch.tensor([4.0, 1.0, -3.0, 0.5, 0.2, -9.0]).double(),
        torch.linalg.qr(torch.rand(6, 6).double())[0],
    )
    sums = RidgeSums((vectors * values) @ vectors.T, torch.ones(6, CLASSES).double())
    strength = 0.25 * 2.0 * math.sqrt(6)
    expected = (vectors / (values.clamp(min=0) + strength)) @ vectors.T @ sums.by_class
    assert torch.allclose(solve(sums, 0.25, std=2.0), expected)


def test_no_examples_give_no_scores() -> None:
    assert torch.equal(solve(RidgeSums.none(2, 3), 1e-3), torch.zeros(3, 3, dtype=torch.float64))


def test_balanced_sums_are_those_of_weighted_examples_where_classes_spread_alike() -> None:
    """Class 0 has its examples four times; all classes have the same spread around their means."""
    rng = np.random.default_rng(3)
    spread = rng.normal(size=(20, FEATURES))
    spread -= spread.mean(0)
    means = rng.normal(size=(CLASSES, FEATURES))
    q = torch.from_numpy(np.concatenate([means[c] + spread for c in (0, 0, 0, 0, 1, 2)]) / 20)
    y = torch.arange(6).sub(3).clamp(min=0).repeat_interleave(20)
    found = balanced(sums_of(q, y))
    weight = (120 / 3) / torch.bincount(y)[y].double()
    u = lifted(q)
    assert torch.allclose(found.second, (u * weight[:, None]).T @ u, rtol=0, atol=1e-3)
    assert torch.allclose(
        found.by_class.sum(0), ((u * weight[:, None]).sum(1)[:, None] * torch.eye(3)[y]).sum(0), atol=1e-9
    )


def test_even_classes_are_balanced_already_and_absent_ones_stay_away() -> None:
    q, _ = examples(40)
    y = torch.arange(40) % 2
    sums, found = sums_of(q, y), balanced(sums_of(q, y))
    assert torch.allclose(found.second, sums.second)
    assert torch.allclose(found.by_class, sums.by_class)
    assert not bool(found.by_class[:, 2].any())


def test_the_bits_stay_the_same_for_a_million_examples() -> None:
    """The bound of the module: one entry as large as can be, a million times."""
    one = sums_of(torch.ones(1, FEATURES, dtype=torch.float64) / math.sqrt(FEATURES), torch.tensor([1])).packed()
    half = one * 2**19
    assert torch.equal(half + half - half, half)
    assert torch.equal((half + one) - half, one)
