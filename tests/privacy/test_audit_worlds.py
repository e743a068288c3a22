"""Worst-case neighbours through the code that releases: honest mechanisms stand, broken ones and wrong claims fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsynth import audit_worlds
from fedsynth.audit_worlds import (
    Trial,
    chosen_trial,
    counts_trial,
    dpsgd_trial,
    gan_trial,
    means_trials,
    statistics_trial,
    update_trial,
)
from fedsynth.methods import protection
from fedsynth.methods.latent_release import Calibration
from fedsynth.methods.protection import Protection, update_guarantee
from fedsynth.privacy import GaussianEvent, PureEvent, SampledGaussianEvent, dpsgd
from fedsynth.privacy.audit import LowerBound, two_worlds
from fedsynth.privacy.discrete import discrete_gaussian_histogram
from fedsynth.synthesis import gan_private

DELTA = 1e-5


def judged(trial: Trial, runs: int) -> LowerBound:
    return two_worlds(trial.draw, runs, DELTA, np.random.default_rng(0), claim=trial.claim)


def calibrated(epsilon: float, **settings: Any) -> Trial:
    noise = Calibration(epsilon, DELTA, **settings)
    return statistics_trial(32, noise, [GaussianEvent(mu=noise.sensitivity / noise.noise)], DELTA)


def clipped(noise_at: Any) -> Trial:
    asked = Protection(updates="clipped", clip=0.5, noise=2.0, noise_at=noise_at, target=None, delta=DELTA, rounds=1)
    return update_trial(asked, update_guarantee(asked).events, DELTA)


def test_reading_b_of_feddpms_is_refuted() -> None:
    """Fashion-MNIST's settings: the paper claims 0.93 to 1.21; whatever the class's size, μ is 13."""
    found = means_trials(latent=32, quota=50, sigma=3.0, examples=100, delta=DELTA)["B"]
    bound = judged(found, 1000)
    assert bound.epsilon == pytest.approx(4.9, abs=0.02)
    assert bound.refutes(found.claim)
    assert found.claim == {DELTA: 1.21}


def test_reading_a_of_feddpms_is_not_refuted_for_large_classes() -> None:
    found = means_trials(latent=32, quota=50, sigma=3.0, examples=100, delta=DELTA)["A"]
    assert not judged(found, 400).refutes(found.claim)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.5}, {"moments": False}])
def test_the_calibrated_release_is_not_refuted_and_is_tested_at_its_worst(settings: dict[str, Any]) -> None:
    trial = calibrated(8.0, **settings)
    assert trial.claim[DELTA] == pytest.approx(8.0)
    assert not judged(trial, 400).refutes(trial.claim)
    # μ of the worlds is the claimed one: the audit looks where it would be seen.
    scores = np.array([[trial.draw(world, np.random.default_rng(k)) for k in range(150)] for world in (0, 1)])
    apart = (scores[1] - scores[0]).mean() / scores[0].std()
    assert apart == pytest.approx(1 / 0.6002, rel=0.15)


def test_a_calibrated_release_with_half_of_its_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = calibrated(4.0)
    honest = Calibration.noise.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Calibration, "noise", property(lambda self: honest(self) / 2))
    assert judged(trial, 400).refutes(trial.claim)


def test_noisy_counts_stand_and_exact_ones_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    _, event = discrete_gaussian_histogram(np.array([1]), 1.0, DELTA, np.random.default_rng(0))
    trial = counts_trial(1.0, DELTA, [event])
    assert not judged(trial, 300).refutes(trial.claim)
    monkeypatch.setattr(audit_worlds, "discrete_gaussian_histogram", lambda counts, *rest: (counts, event))
    assert judged(trial, 300).refutes(trial.claim)


@pytest.mark.parametrize("noise_at", ["client", "server"])
def test_clipped_updates_stand_and_fall_without_the_clip(noise_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = clipped(noise_at)
    assert not judged(trial, 300).refutes(trial.claim)
    monkeypatch.setattr(protection, "clip_weights", lambda delta, norm: {n: 0.01 * d for n, d in delta.items()})
    assert judged(trial, 300).refutes(trial.claim)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_dp_sgd_stands_and_falls_without_the_clip(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = dpsgd_trial(SampledGaussianEvent(rate=rate, noise=1.0, steps=50), 2.0, DELTA)
    assert not judged(trial, 40).refutes(trial.claim)
    monkeypatch.setattr(dpsgd, "clip_rows", lambda rows, norm: 0.01 * rows)
    assert judged(trial, 40).refutes(trial.claim)


def test_the_private_critic_stands_and_falls_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = gan_trial(SampledGaussianEvent(rate=0.3, noise=1.0, steps=50), 1.0, DELTA)
    assert not judged(trial, 40).refutes(trial.claim)
    noisy = gan_private._noisy_step
    monkeypatch.setattr(gan_private, "_noisy_step", lambda a, total, std, n, r: noisy(a, total, 0.05 * std, n, r))
    assert judged(trial, 40).refutes(trial.claim)


def test_a_release_gets_the_trial_of_its_mechanism() -> None:
    settings = {"delta": DELTA, "clip": 1.0, "counts_epsilon": None, "protection": None}
    sampled = SampledGaussianEvent(rate=0.5, noise=1.0, steps=4)
    assert "DP-SGD" in chosen_trial("train", (sampled,), settings).how  # type: ignore[union-attr]
    assert "critic" in chosen_trial("train_gan_visit", (sampled,), settings).how  # type: ignore[union-attr]
    for event in (GaussianEvent(mu=1.0), PureEvent(epsilon=1.0)):
        assert chosen_trial("of_my_own", (event,), settings) is None


@pytest.fixture(autouse=True)
def _steady() -> None:
    torch.manual_seed(0)
