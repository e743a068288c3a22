"""Measures beside accuracy, each computed exactly: from counts of right and given answers, or from probabilities.

AUROC and AUPRC are those of the second class where there are two; with more they are means over the classes, each
against all others. What is not defined on the examples at hand is None: AUROC where all are of one class, for instance.
No result depends on the order of examples or clients: counts are integers, sums of fractions are exact (`math.fsum`).
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedsynth.evaluation.scores import AskedMeasure, MeasureName, ReliabilityBin
from fedsynth.learning.answers import class_probabilities
from fedsynth.learning.training import Tally

ASKED: tuple[AskedMeasure, ...] = ("f1", "auroc", "auprc", "ece", "brier")
"""What a tally of right answers per class does not hold."""
BINS = 15  # of confidence, as Guo et al. (2017) take them


@dataclass
class Measured:
    """What a model's answers say beside a tally: how often each class was answered, and the values of measures."""

    answered: np.ndarray | None
    values: dict[AskedMeasure, float | None]


def measure(scores: Tensor, y: Tensor, classes: int, wanted: Collection[AskedMeasure]) -> Measured:
    """The wanted measures of a model's scores; those of probabilities only where all are finite."""
    labels, probabilities = y.cpu().numpy(), class_probabilities(scores).numpy()
    answers = scores.argmax(1).cpu().numpy()
    usable = len(labels) > 0 and bool(np.isfinite(probabilities).all())
    values: dict[AskedMeasure, float | None] = {
        name: of(probabilities, labels, answers) if usable else None
        for name, of in OF_PROBABILITIES.items()
        if name in wanted
    }
    return Measured(np.bincount(answers, minlength=classes) if "f1" in wanted else None, values)


# -- from counts ----------------------------------------------------------------------------------------------------


def confusion_matrix(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """How often examples of a class (row) were taken for a class (column)."""
    return np.bincount(labels * classes + answers, minlength=classes * classes).reshape(classes, classes)


def macro_f1(tally: Tally, answered: np.ndarray) -> float | None:
    """The mean over the classes that are there or were answered of F1: of each class, twice its right answers by the
    number of its examples and of the answers that name it."""
    both = tally.total + answered
    if not tally.total.sum():
        return None
    return math.fsum(2 * right / n for right, n in zip(tally.correct, both, strict=True) if n) / int((both > 0).sum())


def sensitivity(tally: Tally) -> list[float | None]:
    """For each class, the share of its examples that were recognised; None where there are none."""
    return [float(right / n) if n else None for right, n in zip(tally.correct, tally.total, strict=True)]


def specificity(tally: Tally, answered: np.ndarray) -> list[float | None]:
    """For each class, the share of the examples of others that were not taken for it; None where there are none."""
    others, mistaken = tally.total.sum() - tally.total, answered - tally.correct
    return [float(1 - wrong / n) if n else None for wrong, n in zip(mistaken, others, strict=True)]


# -- from probabilities ---------------------------------------------------------------------------------------------


def auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The chance that a positive example has a higher score than a negative one; a tie counts one half."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return None
    _, place, times = np.unique(scores, return_inverse=True, return_counts=True)
    twice_rank = 2 * np.cumsum(times) - times + 1  # twice the mean rank of tied scores is a whole number
    return (int(twice_rank[place[positive]].sum()) - n * (n + 1)) / (2 * n * m)


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The precision at every threshold, weighted by the recall that it adds: AUPRC without interpolation."""
    n = int(positive.sum())
    if not n:
        return None
    values, place = np.unique(scores, return_inverse=True)
    found = np.bincount(place[positive], minlength=len(values))[::-1]  # from the highest score down
    precision = np.cumsum(found) / np.cumsum(np.bincount(place, minlength=len(values))[::-1])
    return math.fsum(precision * found) / n


def _over_classes(of: Callable[[np.ndarray, np.ndarray], float | None], p: np.ndarray, y: np.ndarray) -> float | None:
    """For the second class of two; otherwise the mean over the classes that have examples."""
    which = [1] if p.shape[1] == 2 else np.unique(y)
    known = [value for label in which if (value := of(p[:, label], y == label)) is not None]
    return math.fsum(known) / len(known) if known else None


def reliability(p: np.ndarray, y: np.ndarray, answers: np.ndarray) -> list[ReliabilityBin]:
    """By confidence in the answer, in equal bins: how sure the model was and how often it was right."""
    confidence, right = p[np.arange(len(y)), answers], answers == y
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return [
        ReliabilityBin(
            examples=int(here.sum()),
            confidence=math.fsum(confidence[here]) / int(here.sum()),
            accuracy=float(right[here].mean()),
        )
        for here in (bins == number for number in range(BINS))
        if here.any()
    ]


def expected_calibration_error(p: np.ndarray, y: np.ndarray, answers: np.ndarray) -> float:
    """How far confidence and accuracy are apart, on average over the examples, bin by bin."""
    return math.fsum(b.examples * abs(b.confidence - b.accuracy) for b in reliability(p, y, answers)) / len(y)


def brier_score(p: np.ndarray, y: np.ndarray) -> float:
    """The mean squared error of the probabilities: of the second class of two; summed over the classes of more."""
    wrong = p - (y[:, None] == np.arange(p.shape[1]))
    return math.fsum(np.square(wrong[:, 1:] if p.shape[1] == 2 else wrong).ravel()) / len(y)


OfProbabilities = Callable[[np.ndarray, np.ndarray, np.ndarray], float | None]
OF_PROBABILITIES: dict[AskedMeasure, OfProbabilities] = {
    "auroc": lambda p, y, answers: _over_classes(auroc, p, y),
    "auprc": lambda p, y, answers: _over_classes(average_precision, p, y),
    "ece": expected_calibration_error,
    "brier": lambda p, y, answers: brier_score(p, y),
}


# -- together -------------------------------------------------------------------------------------------------------


def all_values(tally: Tally, found: Measured | None) -> dict[MeasureName, float | None]:
    """Every measure beside accuracy that was looked at; None where it is not defined on these examples."""
    values: dict[MeasureName, float | None] = {
        "balanced_accuracy": tally.balanced_accuracy if tally.total.sum() else None
    }
    if found is None:
        return values
    if found.answered is not None:
        values["f1"] = macro_f1(tally, found.answered)
    values.update(found.values.items())
    return values
