"""What a split really is, in numbers: hashes, counts per client and class, and the realised skew."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import numpy as np
from pydantic import JsonValue

SAMPLE = 200
SMOOTHING = 1e-3
FULL_COUNTS = 2000


class Skew(TypedDict):
    """How different the clients are."""

    missing_classes_mean: float
    kl_mean: float
    kl_smoothing: float
    hellinger_mean: float
    clients_compared: int


class Sizes(TypedDict):
    """How many training examples clients have."""

    min: int
    median: float
    max: int


class Counts(TypedDict):
    """Examples per class in each part: of all clients together, and of each client."""

    per_class: NotRequired[dict[str, list[int]]]
    per_client: dict[str, dict[str, list[int]]] | None


class Manifest(TypedDict):
    """A split as it is written into a run's folder. What only a simulation knows is absent for sites of a network."""

    data: NotRequired[dict[str, JsonValue]]
    partition: NotRequired[dict[str, JsonValue]]
    seed: NotRequired[int]
    sites: NotRequired[dict[str, dict[str, JsonValue]]]
    fingerprint: dict[str, str]
    shape: list[int]
    classes: list[str]
    clients: int
    clients_per_source: NotRequired[dict[str, int]]
    examples: NotRequired[dict[str, int]]
    train_sizes: NotRequired[Sizes]
    skew: NotRequired[Skew]
    counts: NotRequired[Counts]


def split_fingerprint(ids: Sequence[str], rows: np.ndarray, bounds: np.ndarray, held_out: np.ndarray) -> str:
    """sha256 of who has which example in which part; the same on every machine."""
    digest = hashlib.sha256("\n".join(ids).encode())
    for array in (bounds, rows, held_out):
        digest.update(b"\0" + np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()


def measure_skew(counts: np.ndarray) -> Skew:
    """How different the clients are, from their counts (client x class).

    Divergences are means over ordered pairs of at most 200 clients, evenly spaced in the order of ids:
    Kullback-Leibler as in AggEnhance, eq. 18, with 0.001 added to every class frequency before
    normalising (a missing class would make it infinite), and Hellinger without smoothing.
    """
    sample = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), SAMPLE)).round().astype(np.int64))
    shares = counts[sample] / np.maximum(counts[sample].sum(axis=1, keepdims=True), 1)
    smooth = shares + SMOOTHING
    smooth /= smooth.sum(axis=1, keepdims=True)
    divergence = (smooth * np.log(smooth)).sum(axis=1)[:, None] - smooth @ np.log(smooth).T
    roots = np.sqrt(shares)
    hellinger = np.sqrt(np.clip(1 - roots @ roots.T, 0, 1))
    return {
        "missing_classes_mean": float((counts == 0).sum(axis=1).mean()),
        "kl_mean": _mean_of_pairs(divergence),
        "kl_smoothing": SMOOTHING,
        "hellinger_mean": _mean_of_pairs(hellinger),
        "clients_compared": len(sample),
    }


def _mean_of_pairs(table: np.ndarray) -> float:
    clients = len(table)
    if clients < 2:
        return 0.0
    return float(np.maximum((table.sum() - np.trace(table)) / (clients * (clients - 1)), 0))


def summarise_sizes(sizes: np.ndarray) -> Sizes:
    """Smallest, median and largest."""
    return {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())}


def tabulate_counts(ids: Sequence[str], counts: Mapping[str, np.ndarray]) -> Counts:
    """Counts per client and class for every part; only totals when there are more than 2,000 clients."""
    totals = {part: table.sum(axis=0).tolist() for part, table in counts.items()}
    if len(ids) > FULL_COUNTS:
        return {"per_class": totals, "per_client": None}
    tables = {part: table.tolist() for part, table in counts.items()}
    per_client = {client: {part: tables[part][position] for part in counts} for position, client in enumerate(ids)}
    return {"per_class": totals, "per_client": per_client}
