"""Trials of released sums: honest class moments stand, and fall with a centre without noise or a clip that is wider."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.audit.sum_trials import SUMMED, sum_trials
from fedsynth.audit.trials import Finding, run_trial
from fedsynth.components import class_moments, feature_moments, released_sums
from fedsynth.components.class_moments import Centre, ClassMoments
from fedsynth.components.feature_moments import FeatureMoments
from fedsynth.components.feature_sums import COLUMNS
from fedsynth.components.released_sums import ReleaseConfig, Statistic, release_masked_sum, release_sum, sum_guarantee
from fedsynth.data.dataset import Schema
from fedsynth.privacy import gaussian_sigma

DELTA, MU = 1e-5, 1 / gaussian_sigma(6.0, 1e-5)
CENTRE, MOMENTS = Centre(size=1), ClassMoments(size=1, covariance="shared", radius=0.3)


FEATURES = FeatureMoments(of=COLUMNS, covariance="shared", radius=0.3)


def evaluated(statistic: Statistic, runs: int = 160) -> Finding:
    guarantee = sum_guarantee(statistic, MU, "noise")
    [trial] = sum_trials(guarantee, ReleaseConfig(epsilon=6.0), Schema((1, 8, 8), 3))
    return run_trial(trial, runs, DELTA, 0.95, np.random.default_rng(0))


@pytest.mark.parametrize("statistic", [CENTRE, MOMENTS, FEATURES])
def test_honest_sums_are_not_refuted(statistic: Statistic) -> None:
    found = evaluated(statistic)
    assert not found.refuted
    assert found.claim[DELTA] > 5.9


@pytest.mark.parametrize("statistic", [CENTRE, MOMENTS, FEATURES])
def test_half_of_the_noise_is_refuted(statistic: Statistic, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a record adds more than half of what the claim allows: a trial looks where it would be seen."""
    added = released_sums.add_gaussian
    monkeypatch.setattr(released_sums, "add_gaussian", lambda x, std, rng: added(x, std / 2, rng))
    assert evaluated(statistic, 240).refuted


def test_a_centre_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released_sums, "add_gaussian", lambda x, std, rng: x)
    assert evaluated(CENTRE).refuted


def test_a_clip_twice_as_wide_as_said_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened = class_moments.shortened
    monkeypatch.setattr(class_moments, "shortened", lambda x, longest: 2 * shortened(x, 2 * longest))
    assert evaluated(MOMENTS).refuted
    assert evaluated(CENTRE, 240).refuted
    assert evaluated(FEATURES).refuted


def test_the_features_of_an_audit_are_looked_for_where_they_are() -> None:
    """By what a record adds by its own sums, not by what a trial says."""
    trial = FEATURES.trial(Schema((1, 8, 8), 3), MU)
    assert trial.towards is not None
    alone, both = trial.neighbours(1)
    assert len(both) == len(alone) + 1
    added = feature_moments.class_sums(torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([1]), 3, "shared")
    assert trial.towards(1, 1)[0] == pytest.approx((added / added.norm()).numpy())


def test_noise_that_is_used_again_for_another_centre_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    added = released_sums.add_gaussian

    def again(x: torch.Tensor, std: float, rng: np.random.Generator) -> torch.Tensor:
        return added(x, std, np.random.default_rng(0))

    monkeypatch.setattr(released_sums, "add_gaussian", again)
    assert evaluated(MOMENTS).refuted


def test_every_statistic_that_methods_release_has_a_trial_masked_or_not() -> None:
    assert release_sum.make_trials is release_masked_sum.make_trials is sum_trials
    ours = {kind for kind in Statistic.known.values() if kind.__module__.startswith("fedsynth.")}
    assert {type(statistic) for statistic in SUMMED} == ours
    assert len({statistic.about for statistic in SUMMED}) == len(SUMMED)
