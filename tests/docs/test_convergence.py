"""Rounds to a target and calm, on curves one can follow by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

CURVE = [0.1, 0.6, 0.2, 0.5, 0.5, 0.5, 0.55, 0.6]


@pytest.fixture
def measures(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import convergence

    return convergence


def test_a_lucky_round_crosses_first_and_a_mean_later(measures):
    assert measures.first_crossing(CURVE, 0.5) == 2
    assert measures.steady_crossing(CURVE, 0.5) == 8  # (.5 + .5 + .5 + .55 + .6) / 5
    assert measures.steady_crossing(CURVE, 0.45) == 6
    assert measures.first_crossing(CURVE, 0.9) is None
    assert measures.steady_crossing(CURVE, 0.9) is None
    assert measures.steady_crossing(CURVE[:4], 0.1) is None


def test_change_from_round_to_round(measures):
    assert measures.mean_change([0.1, 0.3, 0.2]) == pytest.approx(0.15)
    assert measures.mean_change([0.4]) == 0
