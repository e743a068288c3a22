"""Turned, shifted and mirrored images: exact cases by hand, bounds for all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.synthesis.static import MOST, Static, augment, fill_classes, transform


def images(n: int, channels: int = 1, height: int = 6, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand((n, channels, height, width), generator=torch.Generator().manual_seed(seed))


def one(angle: float = 0, right: float = 0, down: float = 0, mirrored: bool = False) -> list[np.ndarray]:
    return [np.array([angle]), np.array([right]), np.array([down]), np.array([mirrored])]


def test_nothing_moved_is_the_image():
    x = images(1, channels=3)
    assert torch.allclose(transform(x, *one()), x, atol=1e-6)


def test_a_quarter_turn_is_anticlockwise():
    x = images(1, height=5, width=5)
    assert torch.allclose(transform(x, *one(angle=90)), torch.rot90(x, 1, (2, 3)), atol=1e-5)


def test_a_half_turn_of_an_image_that_is_not_square():
    x = images(1, height=4, width=9)
    assert torch.allclose(transform(x, *one(angle=180)), x.flip(2, 3), atol=1e-5)


def test_a_circle_stays_round_in_an_image_that_is_not_square():
    """A dot three pixels right of the middle comes to lie three pixels above it."""
    x = torch.zeros((1, 1, 9, 13))
    x[0, 0, 4, 9] = 1
    assert torch.allclose(transform(x, *one(angle=90))[0, 0, 1, 6], torch.tensor(1.0), atol=1e-5)


def test_shifts_go_right_and_down_and_the_edge_or_nothing_comes_in():
    x = images(1, height=5, width=4)
    zero = transform(x, *one(right=0.25, down=0.2), padding="zero")
    assert torch.allclose(zero[..., 1:, 1:], x[..., :-1, :-1], atol=1e-5)
    assert zero[..., 0, :].abs().max() < 1e-5
    assert zero[..., :, 0].abs().max() < 1e-5
    edge = transform(x, *one(right=0.25))
    assert torch.allclose(edge[..., 0], x[..., 0], atol=1e-5)
    assert torch.allclose(edge[..., 1:], x[..., :-1], atol=1e-5)


def test_a_turned_image_is_shifted_after_the_turn():
    x = images(1, height=5, width=5)
    turned = torch.rot90(x, 1, (2, 3))
    assert torch.allclose(transform(x, *one(angle=90, right=0.2))[..., 1:], turned[..., :-1], atol=1e-5)


def test_mirrored_is_left_and_right():
    x = images(1)
    assert torch.allclose(transform(x, *one(mirrored=True)), x.flip(3), atol=1e-6)


def test_flips_are_off_unless_asked_for():
    x = images(40)
    still = Static(rotate=0, shift=0)
    rng = np.random.default_rng(0)
    plain = augment(x, 40, rng, still)
    assert all((x - copy).flatten(1).abs().amax(1).min() < 1e-5 for copy in plain)
    flipped = augment(x, 40, rng, Static(rotate=0, shift=0, flip=True))
    same = sum(bool((x - copy).flatten(1).abs().amax(1).min() < 1e-5) for copy in flipped)
    assert 5 < same < 35


def test_every_original_is_used_equally_often_and_at_most_twice():
    x = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 1, 6, 6) / 5
    for count, expected in ((3, 3), (10, 10), (99, 5 * MOST), (0, 0)):
        copies = augment(x, count, np.random.default_rng(1))
        assert len(copies) == expected
        used = torch.round(copies[:, 0, 0, 0] * 5).long().bincount(minlength=5)
        assert used.max() - used.min() <= 1
    assert augment(x[:0], 4, np.random.default_rng(1)).shape == (0, 1, 6, 6)


def test_classes_are_filled_one_by_one():
    x, y = images(6), torch.tensor([0, 2, 2, 0, 2, 1])
    made, labels = fill_classes(x, y, np.array([1, 9, 3, 5]), np.random.default_rng(0), Static(rotate=0, shift=0))
    assert labels.tolist() == [0, 1, 1, 2, 2, 2]  # of class 1 there is one image, of class 3 none
    for copy, label in zip(made, labels, strict=True):
        assert (x[y == label] - copy).flatten(1).abs().amax(1).min() < 1e-5
    none, no_labels = fill_classes(x, y, np.zeros(3, dtype=int), np.random.default_rng(0))
    assert (none.shape, len(no_labels)) == ((0, 1, 6, 8), 0)


@given(
    seed=st.integers(0, 50),
    rotate=st.floats(0, 180),
    shift=st.floats(0, 0.5),
    flip=st.booleans(),
    padding=st.sampled_from(["edge", "zero"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
)
def test_copies_stay_in_bounds_and_follow_the_seed(seed, rotate, shift, flip, padding, shape):
    x = images(3, *shape, seed=seed)
    how = Static(rotate=rotate, shift=shift, flip=flip, padding=padding)
    made = augment(x, 5, np.random.default_rng(seed), how)
    assert made.shape == (5, *shape)
    assert made.dtype == torch.float32
    assert 0 <= made.min() <= made.max() <= 1
    if padding == "edge":
        assert x.min() <= made.min() <= made.max() <= x.max()
    assert torch.equal(made, augment(x, 5, np.random.default_rng(seed), how))


@pytest.mark.parametrize("padding", ["edge", "zero"])
def test_the_originals_are_not_changed(padding):
    x = images(4)
    before = x.clone()
    augment(x, 8, np.random.default_rng(0), Static(padding=padding))
    assert torch.equal(x, before)
