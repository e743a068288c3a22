"""Which classes a client lacks, how much of each, and who is to generate it. Plain functions of class counts."""

from typing import Literal

import numpy as np
from scipy.optimize import nnls

Solver = Literal["least_squares", "pseudo_inverse"]
MOST_ASKED = 10  # times all that is lacking: nearly equal mixes have inverses that ask one generator for millions


def shortage_to_largest(counts: np.ndarray) -> np.ndarray:
    """What each class lacks to be as large as the largest (H in GANDALF's figure 4)."""
    counts = np.asarray(counts, dtype=np.int64)
    return np.asarray(counts.max() - counts)


def shortage_to_share(counts: np.ndarray, share: float) -> np.ndarray:
    """What each class lacks to this share of the largest."""
    counts = np.asarray(counts, dtype=np.int64)
    return np.maximum(0, round(share * int(counts.max())) - counts)


def even_shortage(counts: np.ndarray) -> np.ndarray:
    """How many examples of each class are missing to an even share of all."""
    even = int(np.ceil(counts.sum() / len(counts)))
    return np.maximum(0, even - counts)


def split_exactly(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to the weights that add up to `total`, by largest remainders; ties to the first.

    Without any weight all parts are equal. No part is larger than its exact share rounded up.
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


def abundant_classes(counts: np.ndarray, n: int) -> list[int]:
    """The n classes with the most examples, most first; classes without any are left out."""
    order = np.argsort(-counts, kind="stable")[:n]
    return [int(label) for label in order if counts[label] > 0]


def scarce_classes(counts: np.ndarray, n: int) -> list[int]:
    """The n classes with the fewest examples, fewest first."""
    return [int(label) for label in np.argsort(counts, kind="stable")[:n]]


def decidedly_scarce(counts: np.ndarray) -> int:
    """How many classes have decidedly fewer examples than the rest: less than half of an even share; at least one."""
    return max(1, int((counts < counts.sum() / len(counts) / 2).sum()))


def amounts(mixes: np.ndarray, shortage: np.ndarray, tau: float, solver: Solver = "least_squares") -> np.ndarray:
    """B: how many images each generator is to make so that H ≈ A·B, times τ.

    `mixes` are the columns of A (classes × generators), as shares or as counts that may have noise.
    By non-negative least squares. The paper's pseudo-inverse, B = A⁺·H, may ask for a negative number of images;
    cutting that off at 0 leaves the others too large, because they were to be balanced by it.
    """
    mixes = np.clip(np.asarray(mixes, dtype=np.float64), 0, None)
    totals = mixes.sum(axis=0)
    columns = np.divide(mixes, totals, out=np.zeros_like(mixes), where=totals > 0)
    lacking = np.asarray(shortage, dtype=np.float64)
    if solver == "pseudo_inverse":
        exact = np.clip(np.linalg.pinv(columns) @ lacking, 0, MOST_ASKED * lacking.sum())
    else:
        exact, _ = nnls(columns, lacking)
    return np.rint(tau * exact).astype(np.int64)


def share_out(shortage: np.ndarray, tau: float, known: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many images of each class each conditional generator is to make (generators × classes).

    A generator that can be told the class makes H = A·B diagonal: each class is filled by itself, and divided among the
    generators that know it in proportion to `weights`, what their groups have of it. A class that none knows stays
    unfilled.
    """
    known, weights = np.asarray(known, dtype=bool), np.clip(np.asarray(weights, dtype=np.float64), 0, None)
    wanted = np.rint(tau * np.asarray(shortage)).astype(np.int64)
    parts = np.zeros(known.shape, dtype=np.int64)
    for label in np.flatnonzero(known.any(axis=0)):
        knowing = np.flatnonzero(known[:, label])
        parts[knowing, label] = split_exactly(int(wanted[label]), weights[knowing, label])
    return parts


def wanted_of_scarce(counts: np.ndarray, classes: int | Literal["auto"], quota: int | Literal["even"]) -> np.ndarray:
    """How many examples of each class to draw: for the scarcest classes, `quota` each or up to an even share."""
    n = decidedly_scarce(counts) if classes == "auto" else classes
    wanted = np.zeros(len(counts), dtype=np.int64)
    scarce = scarce_classes(counts, n)
    wanted[scarce] = even_shortage(counts)[scarce] if quota == "even" else quota
    return wanted
