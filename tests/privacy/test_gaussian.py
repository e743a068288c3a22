"""Exact Gaussian accounting against values computed in two independent ways."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from fedsynth.errors import ConfigError
from fedsynth.privacy import compose, gaussian_epsilon, gaussian_sigma

DELTA = 1e-5


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(1, 4.3772), (0.5, 1.9931), (0.2, 0.7255), (10, 91.8173), (20, 284.3918), (40, 969.6456), (1e5, 5000426488.08)],
)
def test_epsilon_of_one_release(mu, epsilon):
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=6e-5 if mu < 1e5 else 6e-3)


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(0.1, 30.7496), (0.5, 7.0318), (1, 3.7306), (2, 1.9938), (4, 1.0812), (8, 0.6002)]
)
def test_noise_for_a_wanted_epsilon(epsilon, sigma):
    assert gaussian_sigma(epsilon, DELTA) == pytest.approx(sigma, abs=6e-5)


def test_noise_for_a_large_delta():
    assert gaussian_sigma(0.5, 0.01) == pytest.approx(3.1469, abs=6e-5)


def test_a_hundred_releases_compose_exactly():
    assert gaussian_epsilon(compose([1 / 4] * 100), DELTA) == pytest.approx(13.2067, abs=6e-5)


@pytest.mark.parametrize(
    ("latent", "alpha", "std", "expected"),
    [
        (32, 50, lambda m: 3, {100: 0.4661, 500: 0.0804, 1000: 0.0375}),  # reading A
        (128, 200, lambda m: 4, {100: 1.5550, 500: 0.2672, 1000: 0.1254}),
        (32, 50, lambda m: 3 / m, {100: 144.887, 500: 144.887}),  # reading B
        (128, 200, lambda m: 4 / m, {100: 969.646, 1000: 969.646}),
        (32, 50, lambda m: 3 / math.sqrt(m), {100: 6.1292, 500: 2.4279, 1000: 1.6486}),  # reading C
        (128, 200, lambda m: 4 / math.sqrt(m), {100: 24.3816, 500: 8.7208, 1000: 5.7595}),
    ],
)
def test_honest_epsilon_of_feddpms_in_its_three_readings(latent, alpha, std, expected):
    for m, epsilon in expected.items():
        mu = math.sqrt(alpha * latent) / (m * std(m))
        assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=6e-5 if epsilon < 100 else 6e-4)


def delta_of(epsilon: float, mu: float) -> float:
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle & Wang 2018, theorem 5)."""
    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


@given(st.floats(1e-3, 1e4), st.floats(1e-12, 0.4))
def test_epsilon_is_the_one_that_the_closed_form_gives_delta_for(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon > 0:
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-4)
    else:
        assert delta_of(0, mu) <= delta


def test_no_sensitivity_needs_no_privacy():
    assert gaussian_epsilon(0, DELTA) == 0


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="delta"):
        gaussian_epsilon(1, 0)
    with pytest.raises(ConfigError, match="epsilon"):
        gaussian_sigma(-1, DELTA)
