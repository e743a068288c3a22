"""Did a run end with a model that anybody can use? What looks like a result and is none is said before all else."""

from collections.abc import Sequence

import numpy as np
import torch

from fedsynth.evaluation.scores import Evaluation
from fedsynth.learning.weights import Weights

FEW = 10  # test examples; that fewer are all taken for one class says nothing

ByClass = Sequence[float | None]


def find_problem(
    evaluation: Evaluation, model: Weights | None, counts: np.ndarray | None, names: Sequence[str] = ()
) -> str:
    """Why there is no usable model, in a sentence without its end; empty where there is one, as far as can be told.

    `counts` are the training examples of each client and class, where they are known.
    """
    if model is not None and not all(bool(torch.isfinite(entry).all()) for entry in model.values()):
        return "training ended with numbers that are not finite: lower train.lr, or set train.max_grad_norm"
    alone = _only_class(evaluation, counts)
    if alone is not None:
        return f"all examples are of one class ({_name(alone, names)}): there is nothing to tell apart"
    return _one_answer(evaluation, names)


def _only_class(evaluation: Evaluation, counts: np.ndarray | None) -> int | None:
    """The class that all training examples have; where they are not known, those that clients evaluate on."""
    if counts is not None:
        there = np.flatnonzero(counts.sum(axis=0))
    else:
        parts = evaluation.clients.sensitivity, evaluation.validation.sensitivity
        there = np.unique([label for part in parts for label, value in enumerate(part) if value is not None])
    return int(there[0]) if len(there) == 1 else None


def _one_answer(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Whether everything is taken for one class, by the models that the method is evaluated by."""
    clients, test = evaluation.clients, evaluation.test
    if clients.view == "global" and test.accuracy is not None:
        examples, who = test.examples, "the model takes"
        there, found = test.class_accuracy, _answered(test.class_accuracy, test.specificity)
    else:
        own = evaluation.per_client.get(f"{clients.view}/test", {})
        examples = sum(row.examples for row in own.values())
        there, found = clients.sensitivity, _answered(clients.sensitivity, clients.specificity)
        who = "the model takes" if clients.view == "global" else "all clients' models take"
    if examples < FEW or len(found) != 1 or sum(value is not None for value in there) < 2:
        return ""
    return (
        f"{who} each of {examples:,} test examples for one class ({_name(found[0], names)}): too few rounds, a "
        "train.lr that does not fit, or values that are not scaled"
    )


def _answered(sensitivity: ByClass, specificity: ByClass) -> list[int]:
    """The classes that some example was taken for: of its own, or of others."""
    both = enumerate(zip(sensitivity, specificity, strict=True)) if specificity else ()
    return [label for label, (own, others) in both if (own or 0.0) > 0 or (1.0 if others is None else others) < 1]


def _name(label: int, names: Sequence[str]) -> str:
    return names[label] if label < len(names) else str(label)
