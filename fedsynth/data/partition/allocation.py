"""Arithmetic shared by the partitioners: tables of counts (client x class) and how they are dealt out."""

import numpy as np


def deal(counts: np.ndarray, codes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Hand each client the number of examples of each class that `counts` says, chosen at random."""
    clients, classes = counts.shape
    shuffled = rng.permutation(len(codes))
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    supply = np.bincount(codes, minlength=classes)
    first = np.cumsum(supply) - supply
    taken = counts.sum(axis=0)
    chosen = np.concatenate([by_class[first[c] : first[c] + taken[c]] for c in range(classes)])
    owners = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    return cut(chosen[np.argsort(owners, kind="stable")], counts.sum(axis=1))


def cut(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Consecutive pieces of the given sizes."""
    ends = np.cumsum(sizes).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def apportion(total: int, shares: np.ndarray, least: int = 0) -> np.ndarray:
    """Whole numbers that add up to `total`, as proportional to `shares` as can be, each at least `least`.

    `total` must be at least `least` times the number of shares.
    """
    spare = total - least * len(shares)
    exact = spare * shares / shares.sum()
    whole = np.floor(exact).astype(np.int64)
    rest = spare - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return whole + least


def split_by_proportions(total: int, proportions: np.ndarray) -> np.ndarray:
    """Counts from running sums of proportions, as Hsu et al. and NIID-Bench cut a class."""
    ends = np.floor(np.cumsum(proportions) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def raise_to_minimum(counts: np.ndarray, minimum: int, rng: np.random.Generator) -> np.ndarray:
    """Move examples from the largest clients to those below the minimum, in one pass.

    Donors are cut down to a common level, losing classes in proportion. Donated examples are handed on
    donor by donor and class by class, so that a small client receives few classes and stays skewed.
    """
    sizes = counts.sum(axis=1)
    lacking = np.maximum(minimum - sizes, 0)
    if not lacking.any():
        return counts
    counts = counts.copy()
    given = _take_from_largest(sizes, int(lacking.sum()), minimum)
    donated = np.zeros_like(counts)
    for donor in np.flatnonzero(given):
        donated[donor] = _draw(counts[donor], int(given[donor]), rng)
    counts -= donated
    classes = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), donated.ravel())
    np.add.at(counts, (np.repeat(np.arange(len(counts)), lacking), classes), 1)
    return counts


def _take_from_largest(sizes: np.ndarray, amount: int, floor: int) -> np.ndarray:
    """How much each client gives so that `amount` is given and the largest become as equal as can be."""
    low, high = floor, int(sizes.max())
    while low < high:  # the highest level whose excess covers the amount
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= amount else (low, level - 1)
    given = np.maximum(sizes - low, 0)
    surplus = int(given.sum()) - amount  # less than one each of the donors
    given[np.argsort(-given, kind="stable")[:surplus]] -= 1
    return given


def _draw(counts: np.ndarray, amount: int, rng: np.random.Generator) -> np.ndarray:
    if amount == counts.sum():
        return counts.copy()
    return rng.multivariate_hypergeometric(counts, amount, method="marginals")


def fit_to_supply(counts: np.ndarray, supply: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Demands that the classes can meet; client sizes stay the same.

    A class asked for too often is shared out at random among those who asked; what a client loses it gets
    back from classes it already holds while they last, then from any class that has examples left.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for label in np.flatnonzero(counts.sum(axis=0) > supply):
        counts[:, label] = _draw(counts[:, label], int(supply[label]), rng)
    spare = supply - counts.sum(axis=0)
    for client in np.flatnonzero(sizes > counts.sum(axis=1)):
        for only_held in (True, False):
            available = np.where(counts[client] > 0, spare, 0) if only_held else spare
            lost = int(sizes[client] - counts[client].sum())
            refill = _draw(available, min(lost, int(available.sum())), rng)
            counts[client] += refill
            spare = spare - refill
    return counts


def share_classes(clients: int, per_client: int, limits: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """A table (client x class) of who holds what: exactly `per_client` each, classes used equally often.

    `limits` says how often a class may be used. None when no such table exists.
    """
    limits = np.minimum(limits, clients)
    wanted = clients * per_client
    if int(limits.sum()) < wanted or per_client > len(limits):
        return None
    quota = _level_quota(limits, wanted, rng)
    holds = np.zeros((clients, len(limits)), dtype=bool)
    for client in range(clients):
        # The classes with most uses left, ties at random: this greedy choice never runs into a dead end.
        order = np.lexsort((rng.random(len(quota)), -quota))[:per_client]
        holds[client, order] = True
        quota[order] -= 1
    return holds[rng.permutation(clients)]


def _level_quota(limits: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Uses per class, as equal as the limits permit, adding up to `wanted`."""
    low, high = 0, int(limits.max())
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.minimum(limits, level).sum() <= wanted else (low, level - 1)
    quota = np.minimum(limits, low)
    open_classes = rng.permutation(np.flatnonzero(limits > low))
    quota[open_classes[: wanted - int(quota.sum())]] += 1
    return quota
