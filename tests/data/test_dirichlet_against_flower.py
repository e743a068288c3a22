"""Our Dirichlet split against that of Flower's flwr-datasets, and against what the distribution says of it.

flwr-datasets 0.6.0 cannot be installed beside the versions in constraints.txt (it wants rich < 14 and, by datasets, an
older fsspec), so what its `DirichletPartitioner` gave is written down here.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedsynth.data.partition import divide, parse_partition

LABELS = np.repeat(np.arange(4), [90, 60, 200, 37])


class InOrder(np.random.Generator):
    """Takes classes in the order of their numbers, as Flower does; proportions are drawn as always."""

    def permutation(self, x: int) -> np.ndarray:  # type: ignore[override]
        return np.arange(x)


# DirichletPartitioner(clients, "label", alpha, min_partition_size=1, self_balancing, shuffle=False, seed): examples of
# each class at each client.
FLOWERS = [
    (4, 0.3, False, 7, [[27, 47, 129, 33], [60, 2, 2, 3], [2, 1, 0, 0], [1, 10, 69, 1]]),
    (3, 2.0, False, 1, [[26, 12, 47, 4], [26, 27, 60, 10], [38, 21, 93, 23]]),
    (4, 0.5, True, 3, [[0, 8, 49, 11], [52, 10, 0, 0], [0, 37, 8, 25], [38, 5, 143, 1]]),
]


@pytest.mark.parametrize(("clients", "alpha", "balancing", "seed", "counts"), FLOWERS)
def test_the_same_draws_give_the_same_split_as_flower(
    clients: int, alpha: float, balancing: bool, seed: int, counts: list[list[int]]
) -> None:
    table = {"num_clients": clients, "alpha": alpha, "self_balancing": balancing, "min_size": 1}
    parts = divide(LABELS, parse_partition(table), InOrder(np.random.PCG64(seed)))
    assert [np.bincount(LABELS[part], minlength=4).tolist() for part in parts] == counts


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_shares_spread_as_the_distribution_says_and_not_as_with_another_alpha(alpha: float) -> None:
    """Of shares p that are Dirichlet(α) over k clients, the expected Σ p² is (α + 1) / (k α + 1)."""
    clients, classes, size = 5, 2000, 1000

    def expected(other: float) -> float:
        return (other + 1) / (clients * other + 1)

    labels = np.repeat(np.arange(classes), size)
    config = parse_partition({"num_clients": clients, "alpha": alpha, "min_size": 1})
    parts = divide(labels, config, np.random.default_rng(0))
    shares = np.stack([np.bincount(labels[part], minlength=classes) for part in parts]) / size
    found = (shares**2).sum(axis=0)
    error = 3 * found.std() / np.sqrt(classes)
    assert abs(found.mean() - expected(alpha)) < error
    for wrong in (0.8 * alpha, 1.25 * alpha):
        assert abs(found.mean() - expected(wrong)) > error
