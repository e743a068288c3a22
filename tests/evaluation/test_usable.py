"""A run that ends without a usable model says why, and one with a weak model does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.evaluation.fairness import score_answers, score_client, score_clients
from fedsynth.evaluation.measures import ASKED, measure
from fedsynth.evaluation.scores import ClientScores, Evaluation, GlobalScores
from fedsynth.evaluation.usable import FEW, find_problem
from fedsynth.learning.training import tally_answers

MODEL = {"weight": torch.ones(2, 2), "seen": torch.tensor(3)}
COUNTS = np.array([[5, 5, 0], [0, 5, 5]])
LABELS = torch.arange(24) % 3
NAMES = ("cat", "dog", "owl")


def answered(*labels: int) -> torch.Tensor:
    """Scores of a model that answers these classes in turn, for 24 examples."""
    return torch.nn.functional.one_hot(torch.tensor(labels).repeat(24)[:24], 3).float()


def on_test(scores: torch.Tensor, y: torch.Tensor = LABELS) -> Evaluation:
    return Evaluation(test=score_answers(scores, y), clients=ClientScores(n=0), validation=ClientScores(n=0))


def by_clients(*clients: tuple[torch.Tensor, torch.Tensor], view: str = "personal") -> Evaluation:
    tallies = {str(k): tally_answers(*of, 3) for k, of in enumerate(clients)}
    found = {str(k): measure(*of, 3, ASKED) for k, of in enumerate(clients)}
    scores = score_clients(tallies, found).model_copy(update={"view": view})
    rows = {client: score_client(tally, found[client]) for client, tally in tallies.items()}
    return Evaluation(
        test=GlobalScores(accuracy=None, reason="none"),
        clients=scores,
        validation=scores,
        per_client={f"{view}/test": rows},
    )


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_no_model(number: float) -> None:
    broken = MODEL | {"bias": torch.tensor([0.0, number])}
    assert "not finite: lower train.lr" in find_problem(on_test(answered(0, 1)), broken, COUNTS)
    assert find_problem(on_test(answered(0, 1)), MODEL, COUNTS) == ""


def test_a_model_that_takes_everything_for_one_class_is_none() -> None:
    found = find_problem(on_test(answered(1)), MODEL, COUNTS, NAMES)
    assert found.startswith("the model takes each of 24 test examples for one class (dog): ")


def test_two_classes_are_enough_however_wrong() -> None:
    assert find_problem(on_test(answered(1, 2)), MODEL, COUNTS) == ""
    wrong = (LABELS + 1) % 3
    assert find_problem(on_test(answered(*wrong.tolist())), MODEL, COUNTS) == ""


def test_few_examples_and_a_test_set_of_one_class_say_nothing() -> None:
    few = slice(0, FEW - 1)
    assert find_problem(on_test(answered(1)[few], LABELS[few]), MODEL, COUNTS) == ""
    assert find_problem(on_test(answered(1), torch.ones(24, dtype=torch.int64)), MODEL, COUNTS) == ""


def test_one_class_in_the_training_data_is_nothing_to_learn() -> None:
    alone = np.array([[0, 0, 5], [0, 0, 7]])
    expected = "all examples are of one class (owl): there is nothing to tell apart"
    assert find_problem(on_test(answered(2)), MODEL, alone, NAMES) == expected


def test_without_counts_the_parts_that_clients_evaluate_on_tell() -> None:
    owls = torch.full((24,), 2)
    assert "of one class (owl)" in find_problem(by_clients((answered(2), owls)), None, None, NAMES)
    assert find_problem(by_clients((answered(0, 2), LABELS)), None, None, NAMES) == ""


def test_personal_models_may_each_know_one_class_but_not_all_the_same() -> None:
    ones, twos = torch.ones(24, dtype=torch.int64), torch.full((24,), 2)
    assert find_problem(by_clients((answered(1), ones), (answered(2), twos)), None, COUNTS) == ""
    found = find_problem(by_clients((answered(1), ones), (answered(1), twos)), None, COUNTS)
    assert found.startswith("all clients' models take each of 48 test examples for one class (1)")


def test_without_a_test_set_the_clients_judge_the_global_model() -> None:
    found = find_problem(by_clients((answered(1), LABELS), (answered(1), LABELS), view="global"), MODEL, None)
    assert found.startswith("the model takes each of 48 test examples for one class (1)")


def test_where_nobody_was_asked_nothing_is_known() -> None:
    nobody = Evaluation(
        test=GlobalScores(accuracy=None, reason="none"), clients=ClientScores(n=0), validation=ClientScores(n=0)
    )
    assert find_problem(nobody, None, None) == ""
