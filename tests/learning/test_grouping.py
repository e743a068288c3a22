"""Groups of clients: algorithms 2 and 4 on worked examples, and what holds for any federation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.learning.grouping import balanced_groups, kl, shares, similar_groups


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_kl_by_hand_and_with_zeros():
    assert kl(np.array([1, 1]), np.array([1, 3])) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), abs=1e-5)
    assert kl(np.array([5, 0]), np.array([0, 5])) == pytest.approx(np.log(1e6), rel=1e-3)  # finite
    assert kl(np.array([2, 4, 0]), np.array([10, 20, 0])) == pytest.approx(0, abs=1e-12)  # counts or shares: the same
    assert kl(np.eye(3), np.ones(3)).shape == (3,)


def test_negative_counts_are_none_and_no_counts_are_uniform():
    assert np.allclose(shares(np.array([-3.0, 1, 1])), [0, 0.5, 0.5], atol=1e-5)
    assert np.allclose(shares(np.zeros(4)), 0.25)


def test_balanced_groups_bring_together_what_completes_each_other():
    counts = np.array([[9, 0, 0], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9], [0, 0, 9]])
    groups = balanced_groups(counts, 2)
    assert [counts[group].sum(0).tolist() for group in groups] == [[9, 9, 9], [9, 9, 9]]
    assert groups[0][0] == 0  # a tie goes to the first


def test_sizes_weigh_in_balanced_groups():
    """As shares, clients 1 and 2 would be equally good partners of client 0; as counts only 2 balances it."""
    counts = np.array([[100, 90], [0, 100], [0, 10], [10, 0]])
    assert balanced_groups(counts, 2) == [[0, 2], [1, 3]]


def test_greedy_choice_by_hand():
    # First the most even client (3), then the one that makes the sum most even: [9, 8] + [1, 2] = [10, 10].
    counts = np.array([[5, 0], [1, 2], [4, 3], [9, 8]])
    assert balanced_groups(counts, 2) == [[3, 1], [2, 0]]


tables = st.tuples(st.integers(1, 14), st.integers(2, 5)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(-3, 40))
)


@given(counts=tables, groups=st.integers(1, 16))
def test_balanced_groups_hold_everybody_once_and_none_too_many(counts, groups):
    made = balanced_groups(counts, groups)
    assert sorted(client for group in made for client in group) == list(range(len(counts)))
    most = -(-len(counts) // groups)
    assert all(len(group) == most for group in made[:-1])
    assert 1 <= len(made[-1]) <= most
    assert len(made) <= groups


def test_similar_clients_are_together():
    one, two = np.array([0.9, 0.1, 0]), np.array([0, 0.1, 0.9])
    points = np.stack([one, two, one, two, one, two]) + rng().normal(0, 0.01, (6, 3))
    assert similar_groups(points, 2, rng()) == [[0, 2, 4], [1, 3, 5]]


def test_groups_too_unequal_are_repaired_by_the_cheapest_move():
    """K-means can only find five and one; the two clients nearest to the lonely one join it."""
    points = np.array([[0.0, 0], [0.1, 0], [0.2, 0], [0.3, 0], [0.6, 0], [9, 0]])
    assert similar_groups(points, 2, rng()) == [[0, 1, 2], [3, 4, 5]]  # sizes less than two apart


def test_fewer_clients_than_groups_and_equal_clients():
    assert similar_groups(np.eye(3), 7, rng()) == [[0], [1], [2]]
    equal = similar_groups(np.ones((7, 4)), 3, rng())  # K-means leaves two of three groups empty
    assert sorted(client for group in equal for client in group) == list(range(7))
    assert len(equal) == 3


@settings(max_examples=40, deadline=None)
@given(counts=tables, groups=st.integers(1, 6), seed=st.integers(0, 3))
def test_similar_groups_hold_everybody_once_with_sizes_within_the_bound(counts, groups, seed):
    made = similar_groups(shares(counts), groups, rng(seed))
    assert sorted(client for group in made for client in group) == list(range(len(counts)))
    sizes = [len(group) for group in made]
    assert len(made) == min(groups, len(counts))
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) < len(made)
    assert made == similar_groups(shares(counts), groups, rng(seed))
    assert made == sorted(made)
