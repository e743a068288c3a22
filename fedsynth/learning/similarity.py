"""How similar clients are (PFL-GAN, section 3.2.2): from embedded examples to distances, neighbours and groups.

Plain functions of tables; no federation here. The client itself is never its own neighbour, and enters neither τ_i nor
σ_i: the paper's sums run over all j with d_ii = 0 but are divided by N − 1, which for τ_i is the mean over the others
(its table 2 shows that), and for σ_i would add a τ_i² that says nothing of the others.
"""

from typing import Literal

import numpy as np
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Rule = Literal["mean", "2-means", "k-means", "spectral", "gap", "none"]
"""How neighbours are told from others; see `neighbours`."""

CLEAR = 2.5
"""Groups are apart for `gap` when the distance between them is more than so many times that inside of them."""

TINY = 1e-12  # keeps the logarithm of a share that is 0 finite


def profile(embeddings: Tensor) -> np.ndarray:
    """P_i (eq. 2 and 3): the mean of the softmaxed embeddings, a share for every feature of the latent space."""
    return np.asarray(embeddings.double().softmax(dim=1).mean(dim=0).numpy())


def divergences(profiles: np.ndarray) -> np.ndarray:
    """d_ij = KL(P_i ‖ P_j) (eq. 4), in nats. A client whose profile is not finite is infinitely far from everybody."""
    known = np.isfinite(profiles).all(axis=1)
    logs = np.log(np.clip(np.where(known[:, None], profiles, 1.0), TINY, None))
    shares = np.where(known[:, None], profiles, 0.0)
    found = (shares * logs).sum(axis=1)[:, None] - shares @ logs.T
    found = np.where(known[:, None] & known[None, :], np.clip(found, 0, None), np.inf)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def thresholds(distances: np.ndarray) -> np.ndarray:
    """τ_i (eq. 6): the mean distance to the others; those infinitely far do not count."""
    return np.array([others.mean() if len(others) else 0.0 for others in _rows(distances)])


def spreads(distances: np.ndarray) -> np.ndarray:
    """σ_i (eq. 7): the standard deviation of the distances to the others around τ_i."""
    return np.array([others.std() if len(others) else 0.0 for others in _rows(distances)])


def neighbours(distances: np.ndarray, rule: Rule, clusters: int | None = None) -> np.ndarray:
    """Which clients (columns) each client (row) takes samples from.

    mean: those nearer than τ_i (eq. 5). 2-means: the nearer of two clusters of the row (section 4.6). k-means and
    spectral: its cluster, of so many (Fig. 6). gap: its group, where groups are clearly apart; if not, everybody.
    none: everybody.
    """
    if rule == "mean":
        near = distances < thresholds(distances)[:, None]
    elif rule == "2-means":
        near = np.stack([_nearer_of_two(row, own) for own, row in enumerate(distances)])
    elif rule == "none":
        near = np.isfinite(distances)
    else:
        found = clear_groups(distances) if rule == "gap" else k_groups(distances, rule == "spectral", clusters)
        near = np.zeros(distances.shape, dtype=bool)
        for group in found:
            near[np.ix_(group, group)] = True
    near = near & np.isfinite(distances)
    np.fill_diagonal(near, False)
    return np.asarray(near)


def samples_to_take(distances: np.ndarray, near: np.ndarray, most: float | np.ndarray, rule: Rule) -> np.ndarray:
    """⌊S_ij⌋ (eq. 5): how many of j's synthetic examples client i is given.

    `most` is the paper's c, what a client at distance 0 gives: one for all, or one for each j. For the paper's rules
    (mean, 2-means, k-means) that falls with exp(−d²/2σ²). Members of one group give all: where groups are clear the
    kernel is nearly 1 within them, and where there is none σ is noise alone and shuts out clients that are all similar.
    """
    kernel = np.ones_like(distances)
    if rule in ("mean", "2-means", "k-means"):
        sigma = spreads(distances)[:, None]
        finite = np.where(np.isfinite(distances), distances, 0.0)
        kernel = np.exp(-np.divide(finite**2, 2 * sigma**2, out=np.zeros_like(finite), where=sigma > 0))
    return np.asarray(np.floor(most * kernel * near + 1e-9).astype(np.int64))


def groups(near: np.ndarray) -> list[list[int]]:
    """Who belongs together: clients that are each other's neighbours, directly or over others."""
    _, labels = connected_components(near & near.T, directed=False)
    return sorted(np.flatnonzero(labels == group).tolist() for group in np.unique(labels))


def clear_groups(distances: np.ndarray) -> list[list[int]]:
    """Groups that are clearly apart; everybody together where nothing is.

    Average linkage gives a partition for every number of groups. The one counts whose nearest two groups are farthest
    apart, measured by what is near in it (see `_near`), if that is more than `CLEAR` times. Two clients stay together:
    nothing tells what is far.
    """
    away, usable, alone = _symmetric(distances)
    parts, best, answer = [[i] for i in usable], CLEAR, [usable] if usable else []
    while len(parts) > 1 and len(usable) > 2:
        pairs = [(a, b) for a in range(len(parts)) for b in range(a + 1, len(parts))]
        between = [away[np.ix_(parts[a], parts[b])].mean() for a, b in pairs]
        apart = min(between) / max(_near(away, parts), TINY)
        if apart > best:
            best, answer = apart, [sorted(part) for part in parts]
        a, b = pairs[int(np.argmin(between))]
        parts = [part for k, part in enumerate(parts) if k not in (a, b)] + [parts[a] + parts[b]]
    return sorted([*alone, *answer])


def k_groups(distances: np.ndarray, spectral: bool, number: int | None = None) -> list[list[int]]:
    """Clusters of the clients, so many, by K-means of the rows or spectral (section 4.6, Fig. 6).

    Spectral needs no number: it is then where the eigenvalues of the Laplacian leave the largest gap.
    """
    from sklearn.cluster import KMeans  # takes a second to import, and few runs need it

    away, usable, found = _symmetric(distances)
    inner = away[np.ix_(usable, usable)]
    if len(usable) < (3 if spectral else 1):
        return sorted([*found, usable] if usable else found)
    points, number = _spectral_points(inner, number) if spectral else (inner, number)
    assert number is not None
    number = min(number, len(np.unique(points, axis=0)))
    labels = KMeans(number, n_init=10, random_state=0).fit(points).labels_
    return sorted([*found, *([usable[i] for i in np.flatnonzero(labels == k)] for k in np.unique(labels))])


def _spectral_points(away: np.ndarray, number: int | None) -> tuple[np.ndarray, int]:
    """Clients as points in the space of the Laplacian's first eigenvectors, and how many clusters they form."""
    scale = np.clip(np.sort(away, axis=1)[:, 2], TINY, None)  # to the second nearest other: what is near, around here
    affinity = np.exp(-(away**2) / (scale[:, None] * scale[None, :]))
    np.fill_diagonal(affinity, 0.0)
    degree = 1 / np.sqrt(np.clip(affinity.sum(axis=1), TINY, None))
    values, vectors = np.linalg.eigh(np.eye(len(away)) - degree[:, None] * affinity * degree[None, :])
    if number is None:
        number = int(np.argmax(np.diff(values[: len(values) // 2 + 1]))) + 1
    number = min(number, len(away))
    return vectors[:, :number] / np.clip(np.linalg.norm(vectors[:, :number], axis=1, keepdims=True), TINY, None), number


def _rows(distances: np.ndarray) -> list[np.ndarray]:
    """Each row's finite distances to the others."""
    rows = [np.delete(row, own) for own, row in enumerate(distances)]
    return [row[np.isfinite(row)] for row in rows]


def _nearer_of_two(row: np.ndarray, own: int) -> np.ndarray:
    """The nearer of two clusters of one row's distances: the cut of the sorted row with the least squares, exactly.

    As in the paper the client's own 0 is one of the points: it says where near is.
    """
    others = [j for j in np.argsort(row, kind="stable") if j != own and np.isfinite(row[j])]
    near = np.zeros(len(row), dtype=bool)
    if others:
        values = np.array([0.0, *row[others]])
        costs = [_squares(values[:cut]) + _squares(values[cut:]) for cut in range(2, len(values))]
        near[others[: int(np.argmin(costs)) + 1 if costs else 1]] = True
    return near


def _squares(values: np.ndarray) -> float:
    return float(((values - values.mean()) ** 2).sum())


def _symmetric(distances: np.ndarray) -> tuple[np.ndarray, list[int], list[list[int]]]:
    """The distances both ways averaged, the clients that have any, and each of the others as a group of its own."""
    away = (distances + distances.T) / 2
    lost = [i for i in range(len(away)) if len(away) > 1 and not np.isfinite(np.delete(away[i], i)).any()]
    return away, [i for i in range(len(away)) if i not in lost], [[i] for i in lost]


def _near(away: np.ndarray, parts: list[list[int]]) -> float:
    """What is near: the mean over clients of the distance to their own group, for a client alone to the nearest one.

    So clients that stand alone speak against a partition: two that are very similar do not make all others outsiders.
    """
    everybody = [i for part in parts for i in part]
    distances = []
    for part in parts:
        for i in part:
            others = [away[i, j] for j in part if j != i]
            distances.append(np.mean(others) if others else min(away[i, j] for j in everybody if j != i))
    return float(np.mean(distances))
