"""Audits: exact intervals, bounds that hold, claims that do not, and attacks evaluated honestly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from fedsynth.audit.bounds import audit_mechanism, clopper_pearson, evaluate_attack, profile
from fedsynth.errors import ConfigError
from fedsynth.privacy import GaussianEvent, gaussian_epsilon, gaussian_sigma

DELTA = 1e-5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (1, 10), (7, 10), (10, 10), (3, 500)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_clopper_pearson_is_scipys_exact_interval(hits: int, count: int, confidence: float) -> None:
    known = binomtest(hits, count).proportion_ci(confidence, method="exact")
    assert clopper_pearson(hits, count, confidence) == pytest.approx((known.low, known.high))


def test_clopper_pearson_by_hand() -> None:
    """After no hit in n, the upper end p solves (1 − p)^n = 2.5 %."""
    assert clopper_pearson(0, 500) == pytest.approx((0, 1 - 0.025 ** (1 / 500)))


def test_data_sets_that_never_look_similar_give_the_largest_bound_that_so_many_runs_can() -> None:
    found = audit_mechanism(lambda which, r: which, 1000, DELTA, rng())
    rare = 1 - 0.025 ** (1 / 500)
    assert found.epsilon == pytest.approx(math.log((1 - rare - DELTA) / rare)) == pytest.approx(4.9056, abs=1e-4)
    assert (found.runs, found.confidence) == (1000, 0.95)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("swap", [False, True])
def test_all_directions_are_tried(sign: int, swap: bool) -> None:
    """An event that happens on one data set alone is found wherever it lies."""

    def draw(which: int, r: np.random.Generator) -> float:
        return sign * (5.0 if (which == 1) != swap and r.random() < 0.3 else r.random())

    assert audit_mechanism(draw, 2000, DELTA, rng()).epsilon > 3


def test_the_bound_is_too_large_as_seldom_as_it_says() -> None:
    """Randomised response with ε = 1 exactly."""
    lie = 1 / (1 + math.e)
    bounds = [audit_mechanism(lambda w, r: w ^ (r.random() < lie), 200, 0.0, rng(seed)).epsilon for seed in range(200)]
    assert np.mean([bound > 1 for bound in bounds]) <= 0.05
    assert max(bounds) > 0.7  # and it is not idle


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_half_of_the_noise_is_refuted_and_all_of_it_is_not(epsilon: float) -> None:
    sigma = gaussian_sigma(epsilon, DELTA)
    claim = profile([GaussianEvent(mu=1 / sigma)], DELTA)
    assert claim[DELTA] == pytest.approx(epsilon)

    def refuted(share: float, seed: int) -> bool:
        found = audit_mechanism(lambda w, r: r.normal(w, share * sigma), 1000, DELTA, rng(seed), claim=claim)
        assert found.epsilon <= gaussian_epsilon(1 / (share * sigma), DELTA)
        return found.refutes(claim)

    assert [refuted(1.0, seed) for seed in range(5)] == [False] * 5
    assert [refuted(0.5, seed) for seed in range(5)] == [True] * 5


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 20"):
        audit_mechanism(lambda w, r: w, 10, DELTA, rng())
    with pytest.raises(ConfigError, match="nan"):
        audit_mechanism(lambda w, r: math.nan, 40, DELTA, rng())
    with pytest.raises(ConfigError, match="two members"):
        evaluate_attack(np.ones(1), np.ones(5))


def test_membership_by_hand() -> None:
    """Ten others below 10; at a rate of one in ten the threshold is the second highest, 8."""
    found = evaluate_attack(np.array([8.5, 9.5, 3.5, 8.0]), np.arange(10.0), fpr=0.1)
    assert (found.threshold, found.tpr, found.enough) == (8.0, 0.5, True)
    assert found.auc == pytest.approx((9 + 10 + 4 + 8.5) / 40)
    assert found.tpr_low < 0.5 < found.tpr_high
    assert found.fpr_high > 0.1


def test_few_others_cannot_show_a_low_rate_and_that_is_said() -> None:
    r = rng()
    few, many = (evaluate_attack(r.normal(2, 1, 500), r.normal(0, 1, n)) for n in (100, 5000))
    assert (few.enough, many.enough) == (False, True)
    assert few.fpr_high > 0.03 > 0.003 > many.fpr_high
    assert few.found
    assert many.found


def test_scores_that_say_nothing_find_nobody() -> None:
    same = evaluate_attack(np.zeros(50), np.zeros(50))
    assert (same.tpr, same.auc, same.found) == (0.0, 0.5, False)
    alarms = [evaluate_attack(rng(k).normal(size=400), rng(k + 1000).normal(size=100)).found for k in range(200)]
    assert np.mean(alarms) <= 0.05


def test_a_few_members_that_stand_out_are_found_although_the_whole_looks_alike() -> None:
    r = rng()
    scores = r.normal(size=1000)
    scores[:60] = 50
    found = evaluate_attack(scores, r.normal(0.2, 1, 2000))
    assert found.auc < 0.55
    assert found.found
