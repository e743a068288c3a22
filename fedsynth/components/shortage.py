"""What a client lacks of each class, and how it is shared out. Plain functions of class counts."""

from __future__ import annotations

import numpy as np


def shortage_to_largest(counts: np.ndarray) -> np.ndarray:
    """What each class lacks to be as large as the largest (H in GANDALF's figure 4)."""
    counts = np.asarray(counts, dtype=np.int64)
    return np.asarray(counts.max() - counts)


def even_shortage(counts: np.ndarray) -> np.ndarray:
    """How many examples of each class are missing to an even share of all."""
    even = int(np.ceil(counts.sum() / len(counts)))
    return np.maximum(0, even - counts)


def split_exactly(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to the weights that add up to `total`, by largest remainders; ties to the first.

    Without any weight all parts are alike. No part is larger than its exact share rounded up.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if not weights.sum() > 0:
        weights = np.ones(len(weights))
    exact = total * (weights / weights.sum())
    parts = np.floor(exact).astype(np.int64)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts


def drop_surplus(labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Rows to keep so that no class has more than is wanted of it: the first that came."""
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    earlier = np.arange(len(labels)) - np.searchsorted(ordered, ordered)  # of the same class, before this one
    return np.asarray(np.sort(order[earlier < np.asarray(wanted)[ordered]]))
