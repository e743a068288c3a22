"""What FedDPMS releases about latents: sensitivity, noise, and what can be drawn from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import gaussian_epsilon
from fedsynth.synthesis.latent_statistics import (
    COUNT_WEIGHT,
    MOMENT_WEIGHT,
    Calibration,
    class_statistics,
    honest_epsilons,
    latent_model,
)


class Silent:
    """A random generator that adds nothing, to see what lies under the noise."""

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape)


def exact(z: torch.Tensor, y: torch.Tensor, calibration: Calibration) -> torch.Tensor:
    return class_statistics(z, y, 3, calibration, Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reading", "setting", "values"),
    [
        ("A", (50, 32, 3.0), (0.4661, 0.0804, 0.0375)),
        ("A", (200, 128, 4.0), (1.5550, 0.2672, 0.1254)),
        ("B", (50, 32, 3.0), (144.887, 144.887, 144.887)),
        ("B", (200, 128, 4.0), (969.646, 969.646, 969.646)),
        ("C", (50, 32, 3.0), (6.1292, 2.4279, 1.6486)),
        ("C", (200, 128, 4.0), (24.3816, 8.7208, 5.7595)),
    ],
)
def test_honest_epsilons_of_the_published_release(reading, setting, values):
    found = honest_epsilons(*setting, delta=1e-5)[reading]
    assert tuple(found) == (100, 500, 1000)
    assert tuple(found.values()) == pytest.approx(values, rel=2e-3 if reading != "B" else 1e-5)


@settings(max_examples=60, deadline=None)
@given(
    latent=st.integers(1, 40),
    clip=st.floats(0.05, 1.0),
    moments=st.booleans(),
    corner=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_one_record_never_moves_the_statistics_by_more_than_the_sensitivity(latent, clip, moments, corner, seed):
    calibration = Calibration(8.0, 1e-5, clip, moments)
    draw = torch.Generator().manual_seed(seed)
    z = torch.rand((6, latent), generator=draw)
    z = z.round() if corner else z
    y = torch.randint(0, 3, (6,), generator=draw)
    moved = (exact(z, y, calibration) - exact(z[1:], y[1:], calibration)).norm()
    assert float(moved) <= calibration.sensitivity * (1 + 1e-9)


def test_the_sensitivity_is_attained_at_a_corner():
    calibration = Calibration(8.0, 1e-5)
    moved = exact(torch.ones((1, 32)), torch.tensor([1]), calibration)
    assert float(moved.norm()) == pytest.approx(math.sqrt(1 + COUNT_WEIGHT**2 + MOMENT_WEIGHT**2))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_noise_is_calibrated_exactly(epsilon):
    calibration = Calibration(epsilon, 1e-5)
    assert gaussian_epsilon(calibration.sensitivity / calibration.noise, 1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_noise_of_the_table_in_the_privacy_notes():
    """Noise on each coordinate of the mean for ε = 1, l = 32: .1088, .0218 and .0109 at m = 100, 500, 1000."""
    calibration = Calibration(1.0, 1e-5, moments=False)
    for m, value in ((100, 0.1088), (500, 0.0218), (1000, 0.0109)):
        assert calibration.longest(32) * calibration.noise / m == pytest.approx(value, abs=5e-5)


def test_released_noise_has_the_stated_spread():
    calibration = Calibration(1.0, 1e-5)
    z, y = torch.rand(50, 20), torch.randint(0, 3, (50,))
    noise = [
        class_statistics(z, y, 3, calibration, np.random.default_rng(k)) - exact(z, y, calibration) for k in range(40)
    ]
    assert float(torch.stack(noise).std()) == pytest.approx(calibration.noise, rel=0.03)
    assert float(torch.stack(noise).mean()) == pytest.approx(0, abs=5 * calibration.noise / math.sqrt(40 * 3 * 41))


def test_mean_and_spread_come_back_from_many_records():
    draw = torch.Generator().manual_seed(1)
    centre, wide = torch.rand(16, generator=draw) * 0.4 + 0.3, torch.linspace(0.03, 0.12, 16)
    z = (centre + wide * torch.randn((4000, 16), generator=draw)).clamp(0, 1)
    y = torch.zeros(4000, dtype=torch.int64)
    calibration = Calibration(8.0, 1e-5)
    halves = [
        class_statistics(part, y[: len(part)], 3, calibration, np.random.default_rng(k))
        for k, part in enumerate(z.split(2000))
    ]
    found = latent_model(halves, 16, calibration, None)
    assert found.known.tolist() == [True, False, False]
    assert found.mean[0].numpy() == pytest.approx(centre.numpy(), abs=0.01)
    assert found.spread[0].numpy() == pytest.approx(wide.numpy(), abs=0.02)


def test_spreads_are_evened_where_their_noise_hides_them_and_a_given_one_is_used():
    draw = torch.Generator().manual_seed(2)
    z = (0.5 + 0.1 * torch.randn((150, 32), generator=draw)).clamp(0, 1)
    y = torch.zeros(150, dtype=torch.int64)
    calibration = Calibration(1.0, 1e-5)
    rows = class_statistics(z, y, 3, calibration, np.random.default_rng(0))
    spread = latent_model([rows], 32, calibration, None).spread[0]
    assert float(spread.std()) < 0.06
    assert latent_model([rows], 32, calibration, 0.2).spread.numpy() == pytest.approx(0.2)


def test_a_class_with_a_small_noisy_count_is_not_drawn_from():
    calibration = Calibration(1.0, 1e-5)
    z, y = torch.rand(12, 8), torch.zeros(12, dtype=torch.int64)
    assert not latent_model([exact(z, y, calibration)], 8, calibration, None).known.any()
    z, y = torch.rand(200, 8), torch.zeros(200, dtype=torch.int64)
    assert latent_model([exact(z, y, calibration)], 8, calibration, None).known.tolist() == [True, False, False]
