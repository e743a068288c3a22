"""Rounds to a target and calm, on curves one can follow by hand."""

from __future__ import annotations

import pytest

from fedsynth.evaluation.convergence import first_crossing, last_mean, mean_change, steady_crossing

CURVE = [0.1, 0.6, 0.2, 0.5, 0.5, 0.5, 0.55, 0.6]


def test_a_lucky_round_crosses_first_and_a_mean_later():
    assert first_crossing(CURVE, 0.5) == 2
    assert steady_crossing(CURVE, 0.5) == 8  # (.5 + .5 + .5 + .55 + .6) / 5
    assert steady_crossing(CURVE, 0.45) == 6
    assert first_crossing(CURVE, 0.9) is None
    assert steady_crossing(CURVE, 0.9) is None
    assert steady_crossing(CURVE[:4], 0.1) is None


def test_change_and_last_mean():
    assert mean_change([0.1, 0.3, 0.2]) == pytest.approx(0.15)
    assert mean_change([0.4]) == 0
    assert last_mean(CURVE, 2) == pytest.approx(0.575)
    assert last_mean([0.2]) == pytest.approx(0.2)
