"""What is lacking and who generates it: figure 4 by hand, and what holds for any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.synthesis.class_balance import (
    abundant_classes,
    amounts,
    decidedly_scarce,
    drop_surplus,
    scarce_classes,
    share_out,
    shortage_to_largest,
    split_exactly,
    wanted_of_scarce,
)

HEARTS, STARS, TRIANGLES = 0, 1, 2


def test_figure_4():
    lacking = shortage_to_largest(np.array([4, 2, 0]))
    assert lacking.tolist() == [0, 2, 4]
    stars_and_triangles = np.array([[0, 0], [1, 0], [0, 1]])
    assert amounts(stars_and_triangles, lacking, 1.0).tolist() == [2, 4]
    assert amounts(stars_and_triangles, lacking, 0.5).tolist() == [1, 2]


def test_no_negative_amounts_where_the_pseudo_inverse_has_some():
    mixes, lacking = np.array([[0.9, 0.6], [0.1, 0.4]]), np.array([0, 10])
    inverse = np.linalg.pinv(mixes) @ lacking
    assert inverse.min() < -1  # −20 of the first, to take away what the second makes too much of
    # Alone, the second does best with b = 0.4·10 / (0.6² + 0.4²) = 7.7; clipping would have asked it for 30.
    assert np.allclose(inverse, [-20, 30])
    assert amounts(mixes, lacking, 1.0).tolist() == [0, 8]
    assert amounts(mixes, lacking, 1.0, "pseudo_inverse").tolist() == [0, 30]
    assert amounts(mixes, lacking, 0.5, "pseudo_inverse").tolist() == [0, 15]


def test_the_pseudo_inverse_fills_figure_4_too_and_never_asks_for_millions():
    stars_and_triangles = np.array([[0, 0], [1, 0], [0, 1]])
    assert amounts(stars_and_triangles, np.array([0, 2, 4]), 1.0, "pseudo_inverse").tolist() == [2, 4]
    nearly_equal = np.array([[0.5, 0.5 + 1e-9], [0.5, 0.5 - 1e-9]])
    assert amounts(nearly_equal, np.array([0, 9]), 1.0, "pseudo_inverse").max() <= 90


def test_a_class_that_nobody_has_is_not_generated():
    mixes = np.array([[1.0, 0], [0, 1], [0, 0]])
    assert amounts(mixes, np.array([3, 5, 7]), 1.0).tolist() == [3, 5]
    assert amounts(np.zeros((3, 2)), np.array([3, 5, 7]), 1.0).tolist() == [0, 0]


def test_conditional_generators_share_each_class_by_what_they_saw_of_it():
    lacking, known = np.array([0, 10, 7, 6]), np.array([[True, True, True, False], [True, False, True, False]])
    seen = np.array([[9, 5, 30, 0], [1, 99, 10, 0]])
    assert share_out(lacking, 1.0, known, seen).tolist() == [[0, 10, 5, 0], [0, 0, 2, 0]]
    assert share_out(lacking, 0.5, known, np.zeros((2, 4))).tolist() == [[0, 5, 2, 0], [0, 0, 2, 0]]


def test_largest_remainders_by_hand():
    assert split_exactly(10, np.array([1, 1, 1])).tolist() == [4, 3, 3]
    assert split_exactly(5, np.array([0.2, 0.3, 0.5])).tolist() == [1, 2, 2]  # exact: 1, 1.5, 2.5; a tie
    assert split_exactly(0, np.array([3, 4])).tolist() == [0, 0]


def test_surplus_goes_and_the_first_stay():
    labels = np.array([2, 0, 2, 1, 2, 0, 1])
    assert drop_surplus(labels, np.array([1, 5, 2])).tolist() == [0, 1, 2, 3, 6]
    assert drop_surplus(labels, np.zeros(3, dtype=int)).tolist() == []
    assert drop_surplus(labels[:0], np.ones(3, dtype=int)).tolist() == []


numbers = st.integers(0, 300)


@st.composite
def problems(draw):
    classes, generators = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    lacking = draw(arrays(np.int64, classes, elements=numbers))
    known = draw(arrays(bool, (generators, classes)))
    weights = draw(arrays(np.float64, (generators, classes), elements=st.floats(-5, 1000, allow_subnormal=False)))
    return lacking, known, weights, draw(st.floats(0, 1))


@given(problems())
def test_shares_add_up_to_what_is_wanted_where_somebody_knows_the_class(problem):
    lacking, known, weights, tau = problem
    parts = share_out(lacking, tau, known, weights)
    assert parts.min() >= 0
    assert not parts[~known].any()
    assert np.array_equal(parts.sum(0), np.where(known.any(0), np.rint(tau * lacking), 0))
    for label in range(len(lacking)):
        positive = np.clip(weights[:, label], 0, None) * known[:, label]
        if positive.sum() > 0:
            exact = np.rint(tau * lacking[label]) * positive / positive.sum()
            assert (np.abs(parts[:, label] - exact) < 1 + 1e-9).all()


@given(problems())
def test_amounts_are_never_negative_and_never_worse_than_nothing(problem):
    lacking, _, weights, tau = problem
    made = amounts(weights.T, lacking, 1.0)
    assert (made >= 0).all()
    assert (amounts(weights.T, lacking, tau) <= made + 1).all()
    mixes = np.clip(weights, 0, None).T
    mixes = np.divide(mixes, mixes.sum(0), out=np.zeros_like(mixes), where=mixes.sum(0) > 0)
    # Never worse than making nothing, but for the rounding to whole images.
    assert np.linalg.norm(mixes @ made - lacking) <= np.linalg.norm(lacking) + 0.5 * len(made) + 1e-6


@given(labels=arrays(np.int64, st.integers(0, 40), elements=st.integers(0, 3)), limit=st.integers(0, 12))
def test_no_class_has_more_than_wanted_after_the_drop(labels, limit):
    wanted = np.array([limit, 0, 40, limit])
    kept = drop_surplus(labels, wanted)
    counts = np.bincount(labels, minlength=4)
    assert np.array_equal(np.bincount(labels[kept], minlength=4), np.minimum(counts, wanted))
    assert (np.diff(kept) > 0).all()


def test_lists_of_classes():
    counts = np.array([5, 0, 9, 1, 0])
    assert abundant_classes(counts, 2) == [2, 0]
    assert abundant_classes(counts, 5) == [2, 0, 3]
    assert scarce_classes(counts, 3) == [1, 4, 3]
    assert decidedly_scarce(counts) == 3
    assert decidedly_scarce(np.array([4, 4, 4])) == 1


@pytest.mark.parametrize("n", [1, 4])
def test_ties_between_classes_fall_to_the_first(n):
    assert scarce_classes(np.zeros(6, dtype=int), n) == list(range(n))


def test_scarce_classes_are_wanted_up_to_the_quota_or_an_even_share():
    counts = np.array([0, 10, 2, 28])
    assert wanted_of_scarce(counts, "auto", "even").tolist() == [10, 0, 8, 0]
    assert wanted_of_scarce(counts, 1, 5).tolist() == [5, 0, 0, 0]
    assert wanted_of_scarce(counts, 3, "even").tolist() == [10, 0, 8, 0]
