"""Measures agree with scikit-learn and with the definitions, ties included, and do not depend on any order."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedsynth.evaluation.fairness import score_answers, score_clients
from fedsynth.evaluation.measures import (
    ASKED,
    Measured,
    all_values,
    auroc,
    average_precision,
    confusion_matrix,
    macro_f1,
    measure,
    reliability,
    sensitivity,
    specificity,
)
from fedsynth.evaluation.scores import LESS, WORDS
from fedsynth.learning.answers import class_probabilities
from fedsynth.learning.training import Tally, tally_answers

Answers = tuple[torch.Tensor, torch.Tensor]


@st.composite
def answers(draw: st.DrawFn, classes: int = 0, least: int = 1) -> Answers:
    """Scores of a few distinct values, so that many are tied, and labels, some classes perhaps missing."""
    many = classes or draw(st.integers(2, 5))
    n = draw(st.integers(least, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.sampled_from([2, 5, 1000]))
    scores = rng.integers(0, steps, (n, many)) * (4.0 / steps)
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(rng.integers(0, many, n))


def numbers(given: Answers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores, y = given
    return class_probabilities(scores).numpy(), y.numpy(), scores.argmax(1).numpy()


def everything(given: Answers) -> dict[str, float | None]:
    scores, y = given
    classes = scores.shape[1]
    return {**all_values(tally_answers(scores, y, classes), measure(scores, y, classes, ASKED))}


# -- against scikit-learn -------------------------------------------------------------------------------------------


@given(answers())
def test_counted_measures_are_those_of_scikit_learn(given: Answers) -> None:
    (p, y, answered), found = numbers(given), everything(given)
    classes = p.shape[1]
    tally = tally_answers(*given, classes)
    matrix = confusion_matrix(y, answered, classes)
    assert matrix.tolist() == sk.confusion_matrix(y, answered, labels=range(classes)).tolist()
    assert tally.accuracy == pytest.approx(sk.accuracy_score(y, answered))
    assert found["f1"] == pytest.approx(sk.f1_score(y, answered, average="macro", zero_division=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes that were answered and are not there
        assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, answered))
    counts = np.bincount(answered, minlength=classes)
    for label in range(classes):
        true, said = y == label, answered == label
        recall = sk.recall_score(true, said) if true.any() else None
        others = sk.recall_score(~true, ~said) if (~true).any() else None
        assert sensitivity(tally)[label] == (None if recall is None else pytest.approx(recall))
        assert specificity(tally, counts)[label] == (None if others is None else pytest.approx(others))


@given(answers(classes=2, least=2))
def test_measures_of_two_classes_are_those_of_scikit_learn(given: Answers) -> None:
    (p, y, _), found = numbers(given), everything(given)
    assert found["brier"] == pytest.approx(sk.brier_score_loss(y, p[:, 1], pos_label=1))
    if len(np.unique(y)) == 1:
        assert found["auroc"] is None
        return
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    assert found["auprc"] == pytest.approx(sk.average_precision_score(y, p[:, 1]))


@given(answers(classes=4, least=30))
def test_measures_of_several_classes_are_those_of_scikit_learn(given: Answers) -> None:
    (p, y, _), found = numbers(given), everything(given)
    truth = np.eye(4)[y]
    assert found["brier"] == pytest.approx(np.mean(np.sum((p - truth) ** 2, axis=1)))
    if len(np.unique(y)) == 4:
        assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr", average="macro"))
        assert found["auprc"] == pytest.approx(sk.average_precision_score(truth, p, average="macro"))


# -- by definition --------------------------------------------------------------------------------------------------


@given(answers(classes=2))
def test_auroc_counts_pairs_and_a_tie_is_half_a_pair(given: Answers) -> None:
    p, y, _ = numbers(given)
    above, below = p[y == 1, 1], p[y == 0, 1]
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in above for b in below]
    assert auroc(p[:, 1], y == 1) == (sum(pairs) / len(pairs) if pairs else None)


@given(answers(), st.integers(0, 2**32 - 1))
def test_no_measure_depends_on_the_order_of_examples(given: Answers, seed: int) -> None:
    scores, y = given
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    assert everything((scores[order], y[order])) == everything(given)


@given(answers())
def test_measures_lie_where_they_must(given: Answers) -> None:
    found = everything(given)
    assert set(found) == set(WORDS) - {"accuracy"}
    for name, value in found.items():
        assert value is None or 0 <= value <= (2 if name == "brier" else 1)


def test_a_perfect_and_a_reversed_model() -> None:
    y = torch.tensor([0, 0, 1, 1, 1])
    right = torch.stack([-1000.0 * y, 1000.0 * y], dim=1) + torch.tensor([500.0, -500.0])
    best, worst = everything((right, y)), everything((-right, y))
    assert best == {"balanced_accuracy": 1, "f1": 1, "auroc": 1, "auprc": 1, "ece": 0, "brier": 0}
    assert (worst["auroc"], worst["f1"], worst["ece"], worst["brier"]) == (0, 0, 1, 1)


def test_average_precision_takes_tied_scores_together() -> None:
    positive = np.array([True, False, True, False])
    # One threshold takes the first two (precision 1/2, recall 1/2), the next one all (precision 1/2, recall 1).
    assert average_precision(np.array([0.9, 0.9, 0.1, 0.1]), positive) == 0.5
    assert average_precision(np.array([0.9, 0.1]), np.array([False, False])) is None


def test_calibration_by_hand() -> None:
    p = np.array([[0.95, 0.05], [0.97, 0.03], [0.3, 0.7], [0.6, 0.4]])
    bins = reliability(p, np.array([0, 1, 1, 0]), p.argmax(1))
    assert [row.examples for row in bins] == [1, 1, 2]  # (8/15, 9/15], (10/15, 11/15], (14/15, 1]
    assert [row.accuracy for row in bins] == [1, 1, 0.5]
    assert [row.confidence for row in bins] == pytest.approx([0.6, 0.7, 0.96])
    found = measure(torch.log(torch.tensor(p)), torch.tensor([0, 1, 1, 0]), 2, ["ece"])
    assert found.values["ece"] == pytest.approx((0.4 + 0.3 + 2 * 0.46) / 4)
    assert found.answered is None, "nothing is told that was not asked for"


def test_scores_that_are_not_finite_define_nothing() -> None:
    scores, y = torch.tensor([[math.nan, 1.0], [0.0, 1.0]]), torch.tensor([0, 1])
    assert set(measure(scores, y, 2, ASKED).values.values()) == {None}
    view = score_answers(scores, y)
    assert view.reliability == []
    assert np.sum(view.confusion) == 2


def test_nothing_is_defined_without_examples() -> None:
    found = everything((torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)))
    assert set(found.values()) == {None}


# -- over clients ---------------------------------------------------------------------------------------------------


@given(st.lists(answers(classes=3), min_size=1, max_size=6), st.randoms())
def test_over_clients(clients: list[Answers], random: object) -> None:
    tallies = {str(k): tally_answers(*of, 3) for k, of in enumerate(clients)}
    measured = {str(k): measure(*of, 3, ASKED) for k, of in enumerate(clients)}
    found = score_clients(tallies, measured)
    whole = everything((torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])))
    for name in ("balanced_accuracy", "f1", "brier"):
        assert found.measures[name].pooled == pytest.approx(whole[name]), name
    for name, scores in found.measures.items():
        known = {
            client: value
            for client in tallies
            if (value := all_values(tallies[client], measured[client])[name]) is not None
        }
        assert scores.n == len(known)
        if known:
            assert scores.worst == (max if name in LESS else min)(known.values())
            assert known[scores.worst_client] == scores.worst
            assert scores.mean == pytest.approx(np.mean(list(known.values())))
    shuffled = list(tallies)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = score_clients({c: tallies[c] for c in shuffled}, {c: measured[c] for c in shuffled})
    for name, scores in found.measures.items():
        assert (again.measures[name].mean, again.measures[name].pooled) == (scores.mean, scores.pooled)
    assert (again.sensitivity, again.specificity) == (found.sensitivity, found.specificity)


def test_auroc_of_clients_is_weighted_by_their_examples_and_leaves_out_those_of_one_class() -> None:
    tallies = {"a": Tally(np.array([1, 1]), np.array([2, 2]), 0.0), "b": Tally(np.array([3, 4]), np.array([6, 6]), 0.0)}
    measured = {"a": Measured(None, {"auroc": 1.0}), "b": Measured(None, {"auroc": 0.5})}
    alone = {"c": Tally(np.array([5, 0]), np.array([5, 0]), 0.0)}
    found = score_clients(tallies | alone, measured | {"c": Measured(None, {"auroc": None})}).measures["auroc"]
    assert (found.n, found.mean, found.worst, found.worst_client) == (2, 0.75, 0.5, "b")
    assert found.pooled == (4 * 1.0 + 12 * 0.5) / 16


def test_f1_is_not_pooled_where_a_client_did_not_tell_what_it_answered() -> None:
    tallies = {"a": Tally(np.array([1, 1]), np.array([2, 2]), 0.0), "b": Tally(np.array([3, 4]), np.array([6, 6]), 0.0)}
    found = score_clients(tallies, {"a": Measured(np.array([2, 2]), {})})
    assert found.specificity == []
    assert found.measures["f1"].pooled == found.measures["f1"].mean == macro_f1(tallies["a"], np.array([2, 2]))
