"""Who is to make how much of what a client lacks (GANDALF, section 4.2)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from fedsynth.components.grouping import kl
from fedsynth.components.shortage import split_exactly


def choose_generators(client_mix: np.ndarray, mixes: list[np.ndarray], j: int) -> list[int]:
    """The J groups whose class mix diverges most from the client's, the farthest first; all where there are fewer.

    KL(group ‖ client) is large where a group has what the client lacks. The other way round it would be large where the
    group lacks what the client has, which is of no use to it.
    """
    divergence = kl(np.stack(mixes), np.asarray(client_mix))
    return [int(group) for group in np.argsort(-divergence, kind="stable")[:j]]


def amounts(mixes: np.ndarray, shortage: np.ndarray, tau: float) -> np.ndarray:
    """B: how many images each generator is to make so that H ≈ A·B, times τ.

    `mixes` are the columns of A (classes × generators), as shares or as counts that may have noise.
    By non-negative least squares. The paper's pseudo-inverse may ask for a negative number of images; cutting that off
    at 0 leaves the others too large, because they were to be balanced by it.
    """
    mixes = np.clip(np.asarray(mixes, dtype=np.float64), 0, None)
    totals = mixes.sum(axis=0)
    columns = np.divide(mixes, totals, out=np.zeros_like(mixes), where=totals > 0)
    exact, _ = nnls(columns, np.asarray(shortage, dtype=np.float64))
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
