"""Accuracy as people ask for it: on average, for the worst client, per class, and how uneven it is.

Variances are in percent² (accuracies are taken in percent), as the fairness papers print them.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedsynth.evaluation.results import ClientScores, GlobalScores
from fedsynth.learning.training import Tally


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


def score_clients(tallies: Mapping[str, Tally]) -> ClientScores:
    """Accuracy over the clients that have examples to be evaluated on; each client counts the same."""
    evaluated = {client: tally for client, tally in tallies.items() if tally.total.sum() > 0}
    if not evaluated:
        return ClientScores(n=0)
    values = np.array([tally.accuracy for tally in evaluated.values()])
    order = np.sort(values)
    tenth = max(1, round(len(order) / 10))
    pooled = sum(evaluated.values(), start=_nothing(next(iter(evaluated.values()))))
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
        pooled=pooled.accuracy,
    )


def _percent_variance(values: np.ndarray) -> float:
    return float(np.var(100 * values)) if len(values) else math.nan


def _nothing(like: Tally) -> Tally:
    return Tally(np.zeros_like(like.correct), np.zeros_like(like.total), 0.0)
