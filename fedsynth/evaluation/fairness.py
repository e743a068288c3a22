"""Measures as people ask for them: on average, for the worst client, per class, and how uneven they are.

Variances are in percent² (shares are taken in percent), as the fairness papers print them.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedsynth.evaluation.measures import (
    ASKED,
    Measured,
    all_values,
    confusion_matrix,
    measure,
    reliability,
    sensitivity,
    specificity,
)
from fedsynth.evaluation.scores import LESS, ClientScore, ClientScores, GlobalScores, MeasureName, MeasureScores
from fedsynth.learning.answers import class_probabilities
from fedsynth.learning.training import Tally, tally_answers

MOST_CONFUSED = 100  # classes of a confusion matrix that is kept


def score_classes(tally: Tally) -> GlobalScores:
    """Accuracy on one test set, and how evenly it is spread over the classes."""
    classes = tally.per_class()
    seen = classes[~np.isnan(classes)]
    return GlobalScores(
        accuracy=tally.accuracy,
        loss=tally.loss / max(1, int(tally.total.sum())),
        class_variance=_percent_variance(seen),
        worst_class=float(seen.min()) if len(seen) else math.nan,
        class_accuracy=[None if math.isnan(value) else float(value) for value in classes],
        examples=int(tally.total.sum()),
    )


def score_answers(scores: Tensor, y: Tensor) -> GlobalScores:
    """The same, and all other measures, of a model's scores on one test set."""
    classes = scores.shape[1]
    tally, found = tally_answers(scores, y, classes), measure(scores, y, classes, ASKED)
    labels, answers = y.cpu().numpy(), scores.argmax(1).cpu().numpy()
    more: dict[str, object] = {"measures": all_values(tally, found)}
    if found.answered is not None:
        more["specificity"] = specificity(tally, found.answered)
    if classes <= MOST_CONFUSED:
        more["confusion"] = confusion_matrix(labels, answers, classes).tolist()
    if len(labels) and found.values["brier"] is not None:
        more["reliability"] = reliability(class_probabilities(scores).numpy(), labels, answers)
    return score_classes(tally).model_copy(update=more)


def score_client(tally: Tally, found: Measured | None) -> ClientScore:
    """One client's numbers; those that the counts of its classes tell, and what it has measured."""
    by_class = {"sensitivity": sensitivity(tally)}
    if found is not None and found.answered is not None:
        by_class["specificity"] = specificity(tally, found.answered)
    examples = int(tally.total.sum())
    return ClientScore(accuracy=tally.accuracy, examples=examples, **all_values(tally, found), **by_class)


def score_clients(tallies: Mapping[str, Tally], found: Mapping[str, Measured] | None = None) -> ClientScores:
    """Accuracy, and what the clients have measured, over those that have examples; each client counts the same."""
    evaluated = {client: tally for client, tally in tallies.items() if tally.total.sum() > 0}
    if not evaluated:
        return ClientScores(n=0)
    values = np.array([tally.accuracy for tally in evaluated.values()])
    order = np.sort(values)
    tenth = max(1, round(len(order) / 10))
    measured = {client: (found or {}).get(client) for client in evaluated}
    together, answers = _pooled(evaluated, measured)
    return ClientScores(
        n=len(values),
        mean=float(values.mean()),
        variance=_percent_variance(values),
        worst=float(order[0]),
        worst_client=min(evaluated, key=lambda client: evaluated[client].accuracy),
        best=float(order[-1]),
        worst_tenth=float(order[:tenth].mean()),
        best_tenth=float(order[-tenth:].mean()),
        deciles=[float(value) for value in np.quantile(values, np.linspace(0, 1, 11))],
        pooled=together.accuracy,
        measures=_over_clients(evaluated, measured, all_values(together, answers)),
        sensitivity=sensitivity(together),
        specificity=[] if answers is None or answers.answered is None else specificity(together, answers.answered),
    )


def _pooled(tallies: Mapping[str, Tally], found: Mapping[str, Measured | None]) -> tuple[Tally, Measured | None]:
    """All examples together, as far as counts tell: the tally, and how often each class was answered."""
    first = next(iter(tallies.values()))
    together = sum(tallies.values(), start=Tally(np.zeros_like(first.correct), np.zeros_like(first.total), 0.0))
    answered = [of.answered for of in found.values() if of is not None and of.answered is not None]
    whole = len(answered) == len(tallies)  # of all, or it says nothing about all
    return together, Measured(np.sum(answered, axis=0), {}) if whole else None


def _over_clients(
    tallies: Mapping[str, Tally], found: Mapping[str, Measured | None], together: Mapping[MeasureName, float | None]
) -> dict[MeasureName, MeasureScores]:
    """Each measure over the clients for which it is defined.

    Balanced accuracy and F1 are pooled by their counts. AUROC, AUPRC and ECE of all examples would need the answers
    themselves, which stay at the clients: `pooled` is the mean weighted by examples, which for Brier is the same.
    """
    by_client = {client: all_values(tally, found[client]) for client, tally in tallies.items()}
    result = {}
    for name in dict.fromkeys(name for values in by_client.values() for name in values):
        known = {client: value for client, values in by_client.items() if (value := values.get(name)) is not None}
        weights = {client: int(tallies[client].total.sum()) for client in known}
        result[name] = _measure_scores(known, weights, name, together.get(name))
    return result


def _measure_scores(
    known: Mapping[str, float], weights: Mapping[str, int], name: MeasureName, pooled: float | None
) -> MeasureScores:
    if not known:
        return MeasureScores(n=0)
    worst = (max if name in LESS else min)(known, key=lambda client: known[client])
    if pooled is None:
        pooled = math.fsum(weights[client] * known[client] for client in known) / sum(weights.values())
    return MeasureScores(
        n=len(known),
        mean=math.fsum(known.values()) / len(known),
        variance=_percent_variance(list(known.values())),
        worst=known[worst],
        worst_client=worst,
        pooled=pooled,
    )


def _percent_variance(values: Sequence[float] | np.ndarray) -> float:
    return float(np.var(100 * np.asarray(values))) if len(values) else math.nan
