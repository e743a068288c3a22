"""Similarity of clients: the equations by hand, the paper's own tables, and what holds for any matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.learning.similarity import (
    clear_groups,
    divergences,
    groups,
    k_groups,
    neighbours,
    profile,
    samples_to_take,
    spreads,
    thresholds,
)

RULES = ["mean", "2-means", "spectral", "gap", "none"]

LETTERS = np.array(
    [
        [0.0, 0.0380, 0.0371, 0.0507, 0.0503, 0.0946, 0.0711, 0.1013, 0.0919, 0.0915],
        [0.0404, 0.0, 0.0252, 0.0272, 0.0326, 0.0963, 0.0856, 0.1054, 0.0914, 0.0990],
        [0.0389, 0.0236, 0.0, 0.0183, 0.0318, 0.0637, 0.0510, 0.0634, 0.0550, 0.0601],
        [0.0522, 0.0259, 0.0188, 0.0, 0.0324, 0.0940, 0.0658, 0.0820, 0.0729, 0.0830],
        [0.0544, 0.0323, 0.0328, 0.0347, 0.0, 0.0959, 0.0777, 0.0862, 0.0843, 0.0963],
        [0.0835, 0.0808, 0.0556, 0.0768, 0.0802, 0.0, 0.0211, 0.0331, 0.0251, 0.0162],
        [0.0634, 0.0756, 0.0464, 0.0601, 0.0725, 0.0201, 0.0, 0.0237, 0.0112, 0.0134],
        [0.0925, 0.0993, 0.0590, 0.0756, 0.0843, 0.0357, 0.0242, 0.0, 0.0187, 0.0264],
        [0.0805, 0.0821, 0.0485, 0.0644, 0.0807, 0.0249, 0.0112, 0.0176, 0.0, 0.0141],
        [0.0829, 0.0871, 0.0542, 0.0724, 0.0882, 0.0153, 0.0130, 0.0261, 0.0146, 0.0],
    ]
)
"""Table 2 of the paper: five clients with capital letters, five with small ones."""

THREE_SETS = np.array(
    [
        [0.0, 0.01023, 0.01141, 0.17699, 0.24844, 0.21341, 0.16230, 0.16417, 0.14307],
        [0.01154, 0.0, 0.00544, 0.17117, 0.23906, 0.20770, 0.15102, 0.15236, 0.13201],
        [0.01227, 0.00522, 0.0, 0.16685, 0.23642, 0.20491, 0.14910, 0.14949, 0.12832],
        [0.30456, 0.28857, 0.27949, 0.0, 0.02060, 0.01250, 0.18363, 0.16642, 0.15163],
        [0.43842, 0.42275, 0.41663, 0.02167, 0.0, 0.01034, 0.23723, 0.22106, 0.21039],
        [0.38459, 0.36722, 0.35898, 0.01311, 0.01037, 0.0, 0.24137, 0.22295, 0.20571],
        [0.21845, 0.20279, 0.20579, 0.13883, 0.17009, 0.17476, 0.0, 0.00705, 0.01343],
        [0.21407, 0.19840, 0.19806, 0.13212, 0.16430, 0.16891, 0.00697, 0.0, 0.00549],
        [0.18561, 0.17073, 0.16929, 0.12022, 0.15119, 0.15386, 0.01396, 0.00540, 0.0],
    ]
)
"""Table 5 of the paper: three data sets, three clients each."""

TWO = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
THREE = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def similar(clients: int, seed: int) -> np.ndarray:
    """Distances of clients that differ by chance alone."""
    rng = np.random.default_rng(seed)
    return divergences(rng.dirichlet(np.full(64, 50.0), size=clients))


def test_a_profile_is_the_mean_of_softmaxed_rows():
    rows = torch.tensor([[0.0, np.log(3.0)], [np.log(4.0), 0.0]])
    assert profile(rows) == pytest.approx([(0.25 + 0.8) / 2, (0.75 + 0.2) / 2])


def test_divergences_are_those_of_kullback_and_leibler():
    d = divergences(np.array([[0.5, 0.5], [0.25, 0.75]]))
    forth, back = 0.5 * np.log(2) + 0.5 * np.log(2 / 3), 0.25 * np.log(0.5) + 0.75 * np.log(1.5)
    assert d == pytest.approx(np.array([[0, forth], [back, 0]]))


def test_thresholds_are_the_mean_column_of_table_2():
    printed = [0.0696, 0.0670, 0.0451, 0.0586, 0.0661, 0.0525, 0.0429, 0.0573, 0.0471, 0.0504]
    assert thresholds(LETTERS) == pytest.approx(printed, abs=1e-4)


def test_samples_by_hand():
    d = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 3.0], [3.0, 3.0, 0.0]])
    assert thresholds(d) == pytest.approx([2, 2, 3])
    assert spreads(d) == pytest.approx([1, 1, 0])
    near = neighbours(d, "mean")
    assert near.tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    assert samples_to_take(d, near, 1000, "mean").tolist() == [[0, 606, 0], [606, 0, 0], [0, 0, 0]]  # 1000 · exp(−1/2)


@pytest.mark.parametrize("rule", ["mean", "2-means", "spectral", "gap"])
def test_the_letters_of_the_paper_fall_into_two_groups(rule):
    assert groups(neighbours(LETTERS, rule)) == TWO


@pytest.mark.parametrize("rule", ["k-means", "spectral"])
def test_k_clusters_are_the_data_sets_of_the_paper(rule):
    """Fig. 6: K groups, by K-means or spectral; the rest of eq. 5 stays as it is."""
    assert groups(neighbours(LETTERS, rule, 2)) == TWO
    assert groups(neighbours(THREE_SETS, rule, 3)) == THREE
    assert len(groups(neighbours(THREE_SETS, rule, 4))) == 4
    assert groups(neighbours(THREE_SETS, rule, 1)) == [list(range(9))]
    assert len(groups(neighbours(THREE_SETS, rule, 20))) == 9
    near = neighbours(LETTERS, "k-means", 2)
    given, all_near = samples_to_take(LETTERS, near, 1000, "k-means"), samples_to_take(LETTERS, near, 1000, "gap")
    kernel = np.exp(-(LETTERS**2) / (2 * spreads(LETTERS)[:, None] ** 2))
    assert (given == np.floor(all_near * kernel + 1e-9)).all()


@pytest.mark.parametrize("rule", ["2-means", "spectral", "gap"])
def test_three_data_sets_fall_into_three_groups(rule):
    near = neighbours(THREE_SETS, rule)
    assert groups(near) == THREE
    assert near.sum() == 9 * 2


def test_the_mean_lets_an_outsider_in_where_there_are_three_data_sets():
    """Why the paper has an alternative: τ_7 = .1414 lies above the distance to client 4."""
    assert neighbours(THREE_SETS, "mean")[6].tolist() == [False] * 3 + [True] + [False] * 3 + [True, True]


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_are_similar_are_kept_together_by_gap_and_cut_by_the_mean(seed):
    d = similar(12, seed)
    assert clear_groups(d) == [list(range(12))]
    assert neighbours(d, "gap").sum() == 12 * 11
    assert neighbours(d, "mean").sum() < 12 * 11 * 0.8
    assert samples_to_take(d, neighbours(d, "gap"), 50, "gap")[0].tolist() == [0] + [50] * 11


@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_data_sets_is_found(seed):
    rng = np.random.default_rng(seed)
    kinds = [rng.dirichlet(np.full(64, 3.0)) for _ in range(4)]
    sizes = rng.integers(2, 7, size=4)
    profiles = [rng.dirichlet(500 * kind + 1e-3) for kind, n in zip(kinds, sizes, strict=True) for _ in range(n)]
    ends = np.cumsum(sizes)
    found = clear_groups(divergences(np.array(profiles)))
    assert found == [list(range(end - n, end)) for end, n in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_matrix(rule, seed):
    """Nobody is its own neighbour, outsiders give nothing, nearer gives no less, and order does not matter."""
    rng = np.random.default_rng(seed)
    d = similar(7, seed) + 0.05 * rng.random((7, 7))
    np.fill_diagonal(d, 0)
    near = neighbours(d, rule)
    given = samples_to_take(d, near, 200, rule)
    assert not near.diagonal().any()
    assert ((given > 0) <= near).all()
    assert given.max() <= 200
    for row, amounts in zip(d, given, strict=True):
        order = [j for j in np.argsort(row) if amounts[j]]
        assert (np.diff(amounts[order]) <= 0).all()
    shuffled = rng.permutation(7)
    again = neighbours(d[np.ix_(shuffled, shuffled)], rule)
    assert (again == near[np.ix_(shuffled, shuffled)]).all()
    assert sorted(i for group in groups(near) for i in group) == list(range(7))


@pytest.mark.parametrize("rule", [*RULES, "k-means"])
def test_a_client_without_a_usable_profile_is_nobodys_neighbour(rule):
    profiles = np.random.default_rng(0).dirichlet(np.ones(8), size=5)
    profiles[2] = np.nan
    d = divergences(profiles)
    near = neighbours(d, rule, 1 if rule == "k-means" else None)
    assert not near[2].any()
    assert not near[:, 2].any()
    assert near.any()
    assert [2] in groups(near)
    assert np.isfinite(samples_to_take(d, near, 10, rule)).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clients", [1, 2])
def test_very_few_clients_do_no_harm(rule, clients):
    d = similar(clients, 0)
    near = neighbours(d, rule)
    expected = 0 if rule == "mean" else clients * (clients - 1)  # with one other, d < mean d never holds
    assert near.sum() == expected
    if rule not in ("mean", "2-means"):
        assert samples_to_take(d, near, 10, rule).sum() == 10 * expected


def test_equal_clients_are_one_group():
    assert clear_groups(np.zeros((4, 4))) == [[0, 1, 2, 3]]
    assert k_groups(np.zeros((4, 4)), spectral=True) == [[0, 1, 2, 3]]


def test_groups_join_only_those_who_choose_each_other():
    near = np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0]], dtype=bool)
    assert groups(near) == [[0], [1, 2]]
