"""How fast and how calmly an accuracy rises over the rounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

WINDOW = 5  # rounds in a running mean


def first_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """The first round (counted from 1) at or above the target; None when there is none. A lucky round counts."""
    return next((number for number, value in enumerate(accuracies, 1) if value >= target), None)


def steady_crossing(accuracies: Sequence[float], target: float, window: int = WINDOW) -> int | None:
    """The first round at which the mean of the last `window` rounds is at or above the target."""
    for number in range(window, len(accuracies) + 1):
        if sum(accuracies[number - window : number]) / window >= target:
            return number
    return None


def mean_change(accuracies: Sequence[float]) -> float:
    """How much the accuracy moves from round to round, up or down, on average: small is calm."""
    steps = [abs(after - before) for before, after in itertools.pairwise(accuracies)]
    return sum(steps) / len(steps) if steps else 0.0
