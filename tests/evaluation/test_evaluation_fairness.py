"""The numbers of a result on examples small enough to work by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.evaluation.fairness import score_classes, score_clients
from fedsynth.evaluation.scores import ClientScores
from fedsynth.learning.training import Tally


def tally(correct: list[int], total: list[int], loss: float = 0.0) -> Tally:
    return Tally(np.array(correct), np.array(total), loss)


def test_scores_of_clients_by_hand() -> None:
    result = score_clients({"a": tally([3, 1], [4, 4]), "b": tally([1, 0], [1, 0]), "c": tally([0, 1], [2, 2])})
    # Accuracies: 4/8 = 50 %, 1/1 = 100 %, 1/4 = 25 %.
    assert result.n == 3
    assert result.mean == pytest.approx((0.5 + 1 + 0.25) / 3)
    middle = 175 / 3
    assert result.variance == pytest.approx(((50 - middle) ** 2 + (100 - middle) ** 2 + (25 - middle) ** 2) / 3)
    assert (result.worst, result.worst_client, result.best) == (0.25, "c", 1.0)
    assert result.pooled == pytest.approx(6 / 13)  # every example counts the same, not every client


def test_worst_and_best_tenth_and_deciles_of_twenty_clients() -> None:
    clients = {str(i): tally([5 * i], [100]) for i in range(1, 21)}  # 5 %, 10 %, …, 100 %
    result = score_clients(clients)
    assert result.worst_tenth == pytest.approx((0.05 + 0.10) / 2)
    assert result.best_tenth == pytest.approx((0.95 + 1.00) / 2)
    assert len(result.deciles) == 11
    assert (result.deciles[0], result.deciles[-1]) == (0.05, 1.0)
    assert result.deciles[5] == pytest.approx(0.525)  # the median of twenty
    assert result.deciles[1] == pytest.approx(0.05 + 0.05 * 1.9)  # a tenth of the way from 1st to 20th


def test_a_tenth_of_few_clients_is_one_client() -> None:
    result = score_clients({"a": tally([1], [4]), "b": tally([3], [4])})
    assert (result.worst_tenth, result.best_tenth) == (0.25, 0.75)


def test_clients_without_examples_are_not_evaluated() -> None:
    result = score_clients({"a": tally([1, 0], [2, 0]), "empty": tally([0, 0], [0, 0])})
    assert (result.n, result.worst_client, result.variance) == (1, "a", 0.0)
    assert score_clients({"empty": tally([0], [0])}) == score_clients({}) == ClientScores(n=0)


def test_scores_of_classes_by_hand() -> None:
    view = score_classes(tally([5, 2, 0], [5, 4, 0], loss=18.0))
    assert view.accuracy == pytest.approx(7 / 9)
    assert view.loss == 2.0
    assert view.class_accuracy == [1.0, 0.5, None]  # a class without examples has no accuracy
    assert view.worst_class == 0.5
    assert view.class_variance == pytest.approx(625.0)  # of 100 % and 50 %, in percent²
    assert view.examples == 9


def test_an_empty_test_set_has_no_accuracy() -> None:
    view = score_classes(tally([0, 0], [0, 0]))
    assert math.isnan(view.accuracy)
    assert math.isnan(view.class_variance)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=30))
def test_summary_keeps_its_order_and_equals_numpy(rows: list[tuple[int, int]]) -> None:
    clients = {str(i): tally([min(right, n)], [n]) for i, (right, n) in enumerate(rows)}
    values = np.array([one.accuracy for one in clients.values()])
    result = score_clients(clients)
    assert result.variance == pytest.approx(np.var(100 * values))
    assert result.worst <= result.worst_tenth <= result.mean + 1e-12
    assert result.mean <= result.best_tenth + 1e-12
    assert result.best_tenth <= result.best
    assert result.deciles == sorted(result.deciles)
    total = sum(int(one.total.sum()) for one in clients.values())
    assert result.pooled == pytest.approx(sum(one.accuracy * one.total.sum() for one in clients.values()) / total)
