"""Class moments: the basis, the algebra behind the sensitivity, and draws that have the moments they are drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn

from fedsynth.synthesis.moments import (
    COUNT_WEIGHT,
    SENSITIVITY,
    Basis,
    chosen_size,
    class_model,
    class_sums,
    draw,
    read_sums,
    shortened,
    sum_length,
)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 6, 9)])
def test_the_basis_is_the_orthonormal_dct_of_each_channel(shape: tuple[int, ...]) -> None:
    x = torch.rand((5, *shape), generator=torch.Generator().manual_seed(0))
    basis, low = Basis(shape, 64), Basis(shape, 4)
    expected = dctn(x.double().numpy() - 0.5, axes=(2, 3), norm="ortho")
    assert np.allclose(basis.coefficients(x).reshape(x.shape), expected, atol=1e-12)
    assert np.allclose(low.coefficients(x), expected[:, :, :4, :4].reshape(5, -1), atol=1e-12)
    assert torch.allclose(basis.examples(basis.coefficients(x)), x, atol=1e-6)
    assert torch.allclose(basis.lowest(basis.coefficients(x)[0], 4), low.coefficients(x)[0], atol=1e-12)
    assert float(basis.coefficients(x).norm(dim=1).max()) <= basis.reach


def test_columns_are_taken_as_they_are() -> None:
    x = torch.tensor([[1.0, -30.0, 2.5]])
    basis = Basis((3,), 7)
    assert basis.coefficients(x).tolist() == x.tolist()
    assert torch.equal(basis.examples(basis.coefficients(x)), x)


@pytest.mark.parametrize("covariance", ["class", "shared"])
def test_sums_can_be_read_again(covariance) -> None:
    rng = np.random.default_rng(0)
    q, y = torch.from_numpy(rng.normal(size=(40, 5))), torch.from_numpy(rng.integers(3, size=40))
    total = class_sums(q, y, 4, covariance)
    assert len(total) == sum_length(5, 4, covariance)
    counts, sums, squares = read_sums(total, 5, 4)
    assert counts.numpy() == pytest.approx(np.bincount(y, minlength=4))
    for label in range(4):
        own = q[y == label].numpy()
        assert sums[label].numpy() == pytest.approx(own.sum(0))
        if covariance == "class":
            assert squares[label].numpy() == pytest.approx(own.T @ own)
    assert squares.sum(0).numpy() == pytest.approx((q.T @ q).numpy())


@settings(max_examples=100, deadline=None)
@given(
    dimensions=st.integers(1, 6),
    length=st.floats(0, 1),
    label=st.integers(0, 2),
    covariance=st.sampled_from(["class", "shared"]),
    seed=st.integers(0, 10**6),
)
def test_a_record_adds_a_vector_of_the_length_that_the_algebra_says(
    dimensions, length, label, covariance, seed
) -> None:
    """By the sums without and with it, whatever the others are: β² + (1 − β²) t² + t⁴ for ‖q‖ = t; √2 is attained."""
    rng = np.random.default_rng(seed)
    others, y = shortened(torch.from_numpy(rng.normal(size=(7, dimensions))), 1.0), torch.arange(7) % 3
    q = torch.from_numpy(rng.normal(size=(1, dimensions)))
    q *= length / q.norm()
    more = class_sums(torch.cat([others, q]), torch.cat([y, torch.tensor([label])]), 3, covariance)
    moved = float((more - class_sums(others, y, 3, covariance)).norm())
    expected = COUNT_WEIGHT**2 + (1 - COUNT_WEIGHT**2) * length**2 + length**4
    assert moved == pytest.approx(math.sqrt(expected), rel=1e-12, abs=1e-12)
    assert moved <= SENSITIVITY * (1 + 1e-12)


def test_shortened_vectors_fit_whatever_they_are() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.inf, 0.0], [math.nan, 1.0], [1e300, 1e300]], dtype=torch.float64)
    found = shortened(x, 2.0)
    assert found[:2].numpy() == pytest.approx(np.array([[0.6, 0.8], [0.15, 0.2]]))
    assert bool((found.norm(dim=1) <= 1).all())
    assert found[2:].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("covariance", ["class", "shared"])
def test_draws_have_the_moments_of_their_class(covariance) -> None:
    rng = np.random.default_rng(1)
    spread = {0: np.diag([1.0, 0.2, 3.0]), 1: np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 0.1]])}
    x = np.concatenate([rng.multivariate_normal([c, -c, 5], spread[c], 4000) for c in (0, 1)])
    q, y = torch.from_numpy(x), torch.repeat_interleave(torch.arange(2), 4000)
    model = class_model(read_sums(class_sums(q, y, 3, covariance), 3, 3), 0.0)
    assert model.known.tolist() == [True, True, False]
    drawn = draw(model, np.repeat([1, 0], 40000), np.random.default_rng(0)).numpy()
    for label, part in zip((1, 0), np.split(drawn, 2), strict=True):
        own = q[y == label].numpy()
        assert part.mean(0) == pytest.approx(own.mean(0), abs=0.04)
        pooled = (np.cov(x[:4000].T) + np.cov(x[4000:].T)) / 2
        assert np.cov(part.T) == pytest.approx(np.cov(own.T) if covariance == "class" else pooled, abs=0.08)


def test_directions_below_the_noise_are_left_out() -> None:
    q = torch.tensor([[3.0, 0.001], [-3.0, -0.001], [3.0, -0.001], [-3.0, 0.001]] * 50, dtype=torch.float64)
    total = class_sums(q, torch.zeros(200, dtype=torch.int64), 1, "class")
    model = class_model(read_sums(total, 2, 1), 0.5)
    assert model.factors[0].abs().sum(0).tolist() == pytest.approx([0, 3], abs=1e-3)
    assert draw(model, np.zeros(9), np.random.default_rng(0))[:, 1].abs().max() < 1e-2


def test_a_class_that_noise_may_have_made_is_not_drawn_from() -> None:
    counts = torch.zeros(sum_length(2, 3, "shared"), dtype=torch.float64)
    counts[:3] = torch.tensor([100.0, -5.0, 1.0]) * COUNT_WEIGHT
    assert class_model(read_sums(counts, 2, 3), 2.0).known.tolist() == [True, False, False]


def test_images_are_drawn_within_their_range() -> None:
    x = torch.rand((300, 1, 8, 8), generator=torch.Generator().manual_seed(0)).round()
    basis = Basis((1, 8, 8), 8)
    total = class_sums(basis.coefficients(x), torch.zeros(300, dtype=torch.int64), 1, "class")
    model = class_model(read_sums(total, 64, 1), 0.0)
    drawn = basis.examples(draw(model, np.zeros(50), np.random.default_rng(0)))
    assert drawn.shape == (50, 1, 8, 8)
    assert (float(drawn.min()), float(drawn.max())) == (0, 1)


def test_less_detail_where_there_is_more_noise() -> None:
    sizes = [chosen_size(doubt) for doubt in (0, 0.001, 0.005, 0.03, 10)]
    assert sizes[0] == 16
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 4
