"""Groups of clients by classes (GANDALF): similar, to train one generator, or balanced, to train sequentially; and two
parts of a group by similarities (Clustered FL).

Plain functions of tables with a row per client; no federation here.
"""

import math
import warnings

import numpy as np

SMOOTHING = 1e-6
"""Added to every class share before a divergence is taken, or a missing class would make it infinite."""

TRIES = 20
"""Starts of K-means before the sizes of the groups are repaired by hand."""

Groups = list[list[int]]


def shares(counts: np.ndarray) -> np.ndarray:
    """Class shares of every row, smoothed. What noise has made negative counts as nothing; an empty row is uniform."""
    positive = np.clip(np.asarray(counts, dtype=np.float64), 0, None)
    total = positive.sum(axis=-1, keepdims=True)
    smoothed = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0) + SMOOTHING
    return np.asarray(smoothed / smoothed.sum(axis=-1, keepdims=True))


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Kullback–Leibler divergence of p from q over the last axis, in nats; both may be counts or shares."""
    p, q = shares(p), shares(q)
    return np.asarray((p * np.log(p / q)).sum(axis=-1))


def balanced_groups(counts: np.ndarray, groups: int) -> Groups:
    """Algorithm 4: fill one group after the other with the client that brings its mix nearest to uniform.

    P are counts, not shares: a group trains on the union of its data, so a large client weighs more in its mix. Where
    all clients have the same size, as in the paper, that is the same. A group has at most ⌈K / groups⌉ clients, so that
    there may be fewer groups than asked for. Ties go to the client that comes first.
    """
    counts = np.clip(np.asarray(counts, dtype=np.float64), 0, None)
    clients, classes = counts.shape
    most = math.ceil(clients / groups)
    left, made = list(range(clients)), Groups()
    while left:
        group, mix = list[int](), np.zeros(classes)
        while left and len(group) < most:
            distance = np.round(kl(mix + counts[left], np.ones(classes)), 12)  # rounding errors must not break ties
            best = left[int(np.argmin(distance))]
            group.append(best)
            mix += counts[best]
            left.remove(best)
        made.append(group)
    return made


def similar_groups(distributions: np.ndarray, groups: int, rng: np.random.Generator) -> Groups:
    """Algorithm 2: K-means with fresh starts until the sizes of the groups differ by less than their number.

    After `TRIES` starts the most even grouping is repaired: of the largest group, the client whose move costs least
    goes to the smallest. No group is empty; with fewer clients than groups everybody has one to itself. Groups come in
    the order of their first clients.
    """
    points = np.asarray(distributions, dtype=np.float64)
    groups = min(groups, len(points))
    best: np.ndarray | None = None
    rank = (math.inf, math.inf)
    for _ in range(TRIES):
        found, spread = _k_means(points, groups, rng)
        sizes = np.bincount(found, minlength=groups)
        if _admissible(sizes):
            return _as_lists(found)
        if (int(np.ptp(sizes)), spread) < rank:
            best, rank = found, (int(np.ptp(sizes)), spread)
    assert best is not None
    return _as_lists(_repaired(points, best, groups))


def bipartition(similar: np.ndarray) -> tuple[list[int], list[int], float]:
    """The cut in two parts across which the largest similarity is smallest, and that similarity.

    Single linkage finds it: the most similar pair is joined again and again until two parts are left.
    """
    part = np.arange(len(similar))
    rows, columns = np.triu_indices(len(similar), 1)
    for pair in np.argsort(-similar[rows, columns], kind="stable"):
        i, j = rows[pair], columns[pair]
        if part[i] == part[j]:
            continue
        if len(np.unique(part)) == 2:
            one = np.flatnonzero(part == part[0])
            return one.tolist(), np.flatnonzero(part != part[0]).tolist(), float(similar[i, j])
        part[part == part[j]] = part[i]
    raise ValueError("two parts need two clients")


def choose_generators(client_mix: np.ndarray, mixes: list[np.ndarray], j: int) -> list[int]:
    """The J groups whose class mix diverges most from the client's, the farthest first; all where there are fewer.

    KL(group ‖ client) is large where a group has what the client lacks. The other way round it would be large where the
    group lacks what the client has, which is of no use to it.
    """
    divergence = kl(np.stack(mixes), np.asarray(client_mix))
    return [int(group) for group in np.argsort(-divergence, kind="stable")[:j]]


def _k_means(points: np.ndarray, groups: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Group of every point, and the sum of squared distances to the centres, from one random start."""
    from sklearn.cluster import KMeans  # takes a second to import, and few runs need it

    start = int(rng.integers(2**31))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than groups: the repair fills the empty ones
        found = KMeans(groups, n_init=1, random_state=start).fit(points)
    return found.labels_.astype(np.int64), float(found.inertia_)


def _admissible(sizes: np.ndarray) -> bool:
    """Whether no group is empty and sizes differ by less than the number of groups."""
    return int(sizes.min()) > 0 and int(np.ptp(sizes)) < len(sizes)


def _repaired(points: np.ndarray, found: np.ndarray, groups: int) -> np.ndarray:
    """Move clients from the largest group to the smallest until the sizes are admissible."""
    found = found.copy()
    while not _admissible(sizes := np.bincount(found, minlength=groups)):
        largest, smallest = int(sizes.argmax()), int(sizes.argmin())
        members = np.flatnonzero(found == largest)
        cost = -_squared_distances(points[members], points[members].mean(axis=0))
        if sizes[smallest]:
            cost = cost + _squared_distances(points[members], points[found == smallest].mean(axis=0))
        found[members[int(cost.argmin())]] = smallest
    return found


def _squared_distances(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return np.asarray(((points - centre) ** 2).sum(axis=1))


def _as_lists(found: np.ndarray) -> Groups:
    return sorted([np.flatnonzero(found == group).tolist() for group in np.unique(found)])
