"""ε of compositions, against values computed in two independent ways, and properties that must hold for any."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from guarantees import gaussians, other_events
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import ConfigError
from fedsynth.privacy import (
    DiscreteGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
    compose,
    epsilon,
    epsilon_bound,
    gaussian_epsilon,
    sampled_gaussian_noise,
)

DELTA = 1e-5
EPOCHS = 256 / 60000  # the rate of the usual MNIST example


def sampled(rate: float, noise: float, steps: int) -> SampledGaussianEvent:
    return SampledGaussianEvent(rate=rate, noise=noise, steps=steps)


def test_a_hundred_laplace_releases():
    assert epsilon([LaplaceEvent(scale=10)] * 100, DELTA) == pytest.approx(4.2203, abs=1e-4)


def test_sampled_gaussians_by_the_loss_distribution_and_by_the_renyi_bound():
    assert epsilon([sampled(0.01, 1, 100)], DELTA) == pytest.approx(0.7180, abs=1e-4)
    assert epsilon_bound([sampled(0.01, 1, 100)], DELTA) == pytest.approx(1.2141, abs=6e-5)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.3, 1.5, 40), (0.003, 0.7, 999), (0.45, 9.0, 8), (0.02, 0.4, 2)]
)
def test_the_renyi_bound_is_that_of_the_best_of_all_orders(rate, noise, steps):
    accountant = RdpAccountant().compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    assert epsilon_bound([sampled(rate, noise, steps)], DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_the_renyi_bound_does_not_rest_on_orders_whose_series_has_broken_down():
    """A divergence that comes out below 0 would make it 0."""
    event, delta = sampled(3.191655036710109e-06, 0.40211264807835223, 5), 1.5e-4
    assert epsilon_bound([event], delta) > 0


@pytest.mark.parametrize(
    ("noise", "steps", "value"), [(1.1, 3516, 1.1339), (1.1, 14063, 2.3818), (1.3, 3516, 0.8646), (1.3, 14063, 1.8237)]
)
def test_epochs_of_dpsgd(noise, steps, value):
    assert epsilon([sampled(EPOCHS, noise, steps)], DELTA) == pytest.approx(value, abs=1e-4)


def test_noise_for_a_wanted_epsilon():
    noise = sampled_gaussian_noise(8, DELTA, 256 / 4500, 600)
    assert noise == pytest.approx(1.1023, abs=1e-4)
    assert epsilon([sampled(256 / 4500, noise, 600)], DELTA) <= 8


def test_noise_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="epsilon"):
        sampled_gaussian_noise(0, DELTA, 0.1, 10)
    with pytest.raises(ConfigError, match="delta"):
        epsilon([GaussianEvent(mu=1)], 0)


@given(st.lists(gaussians, max_size=5))
def test_gaussians_have_their_closed_form(events):
    expected = gaussian_epsilon(compose(event.mu for event in events), DELTA)
    assert epsilon(events, DELTA) == pytest.approx(expected, rel=1e-9)


def test_a_step_on_everything_is_a_plain_gaussian():
    assert epsilon([sampled(1, 4, 100)], DELTA) == pytest.approx(13.2067, abs=6e-5)


def test_how_the_events_are_written_down_does_not_matter():
    laplace, step = LaplaceEvent(scale=3), sampled(0.1, 1, 1)
    one = epsilon([laplace, step, laplace, step, step], DELTA)
    assert epsilon({laplace: 2, sampled(0.1, 1, 3): 1}, DELTA) == one
    assert epsilon({step: 3, PureEvent(epsilon=0): 5, LaplaceEvent(scale=3): 2}, DELTA) == one


def test_nothing_costs_nothing():
    assert epsilon([], DELTA) == 0
    assert epsilon([PureEvent(epsilon=0), sampled(0, 1, 100), sampled(0.5, 1, 0)], DELTA) == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(gaussians | other_events, min_size=1, max_size=3), gaussians | other_events)
def test_one_more_release_never_costs_less_and_bounds_hold(events, more):
    before, after = epsilon(events, DELTA), epsilon([*events, more], DELTA)
    assert after >= before - 1e-3  # the loss distributions are cut into pieces of at most a thousandth
    assert after <= epsilon_bound([*events, more], DELTA) + 1e-9
    assert math.isfinite(after)


@pytest.mark.parametrize("mu", [5e-324, 5.6e-155, 1e-12])
def test_a_release_that_hardly_tells_anything_costs_hardly_anything(mu: float) -> None:
    other = DiscreteGaussianEvent(sigma=1.0)
    assert epsilon([other], DELTA) <= epsilon([other, GaussianEvent(mu=mu)], DELTA) < epsilon([other], DELTA) + 1e-3


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-12])
def test_a_tiny_sampling_rate_costs_next_to_nothing(rate):
    assert 0 <= epsilon([sampled(rate, 1.0, 1)], DELTA) < 1e-3
    assert 0 <= epsilon([sampled(rate, 1.0, 1), LaplaceEvent(scale=1e6)], DELTA) < 1e-3


BIG = [
    PureEvent(epsilon=1e12),
    GaussianEvent(mu=1e12),
    LaplaceEvent(scale=1e-12),
    sampled(0.3, 1e-12, 10**6),
    DiscreteGaussianEvent(sigma=1e-12),
]
SMALL = [PureEvent(epsilon=1e-12), GaussianEvent(mu=1e-12), LaplaceEvent(scale=1e12), DiscreteGaussianEvent(sigma=1e4)]


@pytest.mark.parametrize("pair", list(itertools.combinations([*BIG, *SMALL], 2)))
def test_extreme_numbers_have_an_answer(pair):
    total = epsilon(pair, DELTA)
    assert math.isfinite(total)
    assert total >= max(epsilon([event], DELTA) for event in pair) * (1 - 1e-6) - 1e-3


def test_a_pure_guarantee_is_worse_than_laplace_of_the_same_epsilon():
    """Its worst case is randomised response, whose loss is always ±ε."""
    assert epsilon([PureEvent(epsilon=0.1)] * 100, DELTA) > epsilon([LaplaceEvent(scale=10)] * 100, DELTA)


def test_the_accounting_library_is_not_loaded_before_it_is_needed():
    """It takes seconds, which every start of the program and of a worker would pay."""
    code = "import sys, fedsynth, fedsynth.privacy.dpsgd; print('dp_accounting' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
