"""Clipping and noise: lengths that hold, and distributions that are what they say."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.errors import ConfigError, FedsynthError
from fedsynth.privacy import epsilon
from fedsynth.privacy.discrete import discrete_gaussian, discrete_gaussian_delta, discrete_gaussian_histogram
from fedsynth.privacy.guarantee import DiscreteGaussianEvent, GaussianEvent
from fedsynth.privacy.mechanisms import add_gaussian, add_laplace, clip_rows, clip_weights, gaussian_event

values = st.floats(-1e6, 1e6, width=32)
tables = arrays(np.float32, st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 3)), elements=values)
norms = st.floats(0.015625, 1e3, width=32)


def lengths(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x.reshape(len(x), -1).astype(np.float64), axis=1) if x.size else np.zeros(0)


@given(tables, norms)
def test_no_row_is_longer_than_the_norm_and_short_rows_stay(x, norm):
    clipped = clip_rows(x, norm)
    assert isinstance(clipped, np.ndarray)
    assert clipped.dtype == x.dtype
    assert clipped.shape == x.shape
    assert (lengths(clipped) <= norm).all()
    short = lengths(x) <= norm
    assert np.array_equal(clipped[short], x[short])
    assert lengths(clipped)[~short] == pytest.approx(np.full((~short).sum(), norm), rel=1e-5)


@given(tables, norms)
def test_tensors_are_clipped_as_arrays_are(x, norm):
    clipped = clip_rows(torch.from_numpy(x.copy()), norm)
    assert np.array_equal(clipped.numpy(), clip_rows(x, norm))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_row_becomes_zeros(broken):
    x = np.ones((3, 2), np.float32)
    x[1, 0] = broken
    assert clip_rows(x, 10.0).tolist() == [[1, 1], [0, 0], [1, 1]]
    update = clip_weights({"a": torch.from_numpy(x), "b": torch.ones(2)}, 10.0)
    assert all(not entry.any() for entry in update.values())


@given(arrays(np.float32, 5, elements=values), arrays(np.float32, (2, 2), elements=values), norms)
def test_an_update_is_clipped_as_a_whole(one, other, norm):
    update = {"a": torch.from_numpy(one.copy()), "b": torch.from_numpy(other.copy())}
    clipped = clip_weights(update, norm)
    before, after = (np.concatenate([d[name].double().numpy().ravel() for name in "ab"]) for d in (update, clipped))
    assert np.linalg.norm(after) <= norm
    if np.linalg.norm(before) <= norm:
        assert np.array_equal(before, after)
    else:
        assert after == pytest.approx(before * norm / np.linalg.norm(before), rel=1e-4, abs=1e-6)


def test_clipping_leaves_its_input_alone():
    update = {"a": torch.full((3,), 9.0)}
    clip_weights(update, 1.0)["a"].zero_()
    assert update["a"].tolist() == [9, 9, 9]


@pytest.mark.parametrize(("add", "std", "kurtosis"), [(add_gaussian, 3.0, 3.0), (add_laplace, 3.0 * math.sqrt(2), 6.0)])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_noise_has_the_mean_spread_and_shape_it_says(add, std, kurtosis, kind):
    start = np.full((400, 500), 7.0)
    noisy = add(torch.from_numpy(start) if kind == "tensor" else start, 3.0, np.random.default_rng(0))
    assert isinstance(noisy, torch.Tensor if kind == "tensor" else np.ndarray)
    noise = np.asarray(noisy) - 7.0
    assert noise.mean() == pytest.approx(0, abs=4 * std / math.sqrt(noise.size))
    assert noise.std() == pytest.approx(std, rel=0.01)
    assert (noise**4).mean() / noise.var() ** 2 == pytest.approx(kurtosis, rel=0.05)


def test_noise_keeps_the_type_and_comes_from_the_generator():
    x = torch.zeros(4, dtype=torch.float32)
    one, other = (add_gaussian(x, 1.0, np.random.default_rng(seed)) for seed in (1, 1))
    assert one.dtype == torch.float32
    assert torch.equal(one, other)
    assert torch.equal(add_gaussian(x, 0.0, np.random.default_rng(0)), x)
    assert add_laplace(np.float32([1, 2]), 1.0, np.random.default_rng(0)).dtype == np.float32


def test_noise_has_its_event():
    assert gaussian_event(std=4.0, sensitivity=2.0) == GaussianEvent(mu=0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rng: clip_rows(np.ones((2, 2)), 0.0),
        lambda rng: clip_rows(np.ones((2, 2)), math.nan),
        lambda rng: add_gaussian(np.ones(2), -1.0, rng),
        lambda rng: add_gaussian(np.ones(2), math.nan, rng),
        lambda rng: gaussian_event(0.0),
        lambda rng: clip_rows(np.ones((2, 2), int), 1.0),
        lambda rng: add_laplace(np.ones(2, int), 1.0, rng),
        lambda rng: discrete_gaussian_histogram(np.ones(2), 1.0, 1e-5, rng),
        lambda rng: discrete_gaussian_histogram(np.ones(2, int), 1e-9, 1e-5, rng),
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(FedsynthError):
        wrong(np.random.default_rng(0))


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [Fraction(9, 100), Fraction(1), Fraction(14), Fraction(10**4)])
def test_discrete_noise_has_exactly_its_distribution(variance):
    """A chi-squared test against the probabilities exp(−y²/2σ²)."""
    rng = np.random.default_rng(0)
    drawn = np.array([discrete_gaussian(variance, rng) for _ in range(4000)])
    sigma = math.sqrt(variance)
    y = np.arange(-math.ceil(10 * sigma), math.ceil(10 * sigma) + 1)
    chances = np.exp(-(y**2) / (2 * float(variance)))
    chances /= chances.sum()
    bins = np.array_split(np.arange(len(y)), min(len(y), 15)) if sigma > 20 else [[place] for place in range(len(y))]
    expected = np.array([4000 * chances[part].sum() for part in bins])
    seen = np.array([np.isin(drawn, y[part]).sum() for part in bins])
    enough = expected >= 5
    statistic = ((seen - expected)[enough] ** 2 / expected[enough]).sum()
    assert statistic < enough.sum() + 4 * math.sqrt(2 * enough.sum())
    assert seen[~enough].sum() <= 20 + 2 * expected[~enough].sum()


@pytest.mark.parametrize("wanted", [0.1, 0.5, 1, 2, 4, 8])
def test_a_noisy_histogram_costs_what_was_asked_for(wanted):
    noisy, event = discrete_gaussian_histogram(np.array([5, 0, 100]), wanted, 1e-5, np.random.default_rng(0))
    assert noisy.dtype == np.int64
    assert noisy.shape == (3,)
    assert discrete_gaussian_delta(wanted, event.sigma) <= 1e-5
    assert epsilon([event], 1e-5) == pytest.approx(wanted, rel=1e-4)
    assert epsilon([event], 1e-5) <= wanted + 1e-4


def test_noisy_counts_are_right_on_average():
    noisy, event = discrete_gaussian_histogram(np.full(3000, 40), 1.0, 1e-5, np.random.default_rng(0))
    assert noisy.mean() == pytest.approx(40, abs=4 * event.sigma / math.sqrt(3000))
    assert noisy.std() == pytest.approx(event.sigma, rel=0.06)


def test_discrete_noise_is_not_accounted_as_continuous():
    """The closed form of the continuous Gaussian would claim too much."""
    assert epsilon([DiscreteGaussianEvent(sigma=1)], 1e-5) > epsilon([GaussianEvent(mu=1)], 1e-5) + 0.05


@settings(max_examples=30, deadline=None)
@given(st.floats(0.3, 30), st.floats(0.05, 5))
def test_delta_of_a_count_agrees_with_its_definition(sigma, wanted):
    y = np.arange(-800, 801)
    p = np.exp(-(y**2) / (2 * sigma**2))
    p /= p.sum()
    excess = np.maximum(p[1:] - math.exp(wanted) * p[:-1], 0).sum()
    assert discrete_gaussian_delta(wanted, sigma) == pytest.approx(excess, rel=1e-6, abs=1e-15)


def test_a_refusal_says_what_to_change():
    with pytest.raises(ConfigError, match="epsilon = 1e-09 is too small"):
        discrete_gaussian_histogram(np.ones(2, int), 1e-9, 1e-5, np.random.default_rng(0))
