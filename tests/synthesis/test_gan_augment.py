"""Differentiable augmentation: by hand, what it changes of real and of generated images, and that gradients pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.errors import ConfigError
from fedsynth.privacy.dpsgd import DpSgdNoise
from fedsynth.synthesis import gan_training
from fedsynth.synthesis.gan import GanSpec, TrainingImages, build_gan
from fedsynth.synthesis.gan_augment import augment
from fedsynth.synthesis.gan_private import train_gan_private
from fedsynth.synthesis.gan_training import GanTraining, train_gan

SMALL = GanSpec(channels=2, latent=4)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nothing_is_drawn_or_changed_without_changes():
    draw = draws()
    x = torch.rand(3, 1, 8, 8)
    assert augment(x, (), draw) is x
    assert torch.equal(draw.get_state(), draws().get_state())


def test_a_moved_image_is_the_image_elsewhere():
    """A dot in the middle moves by at most an eighth of the side, to every place within, and stays one dot."""
    x = torch.zeros(400, 2, 16, 8)
    x[:, 0, 8, 4], x[:, 1, 8, 4] = 1.0, 0.5
    moved = augment(x, ("translation",), draws())
    assert moved.shape == x.shape
    assert torch.equal(moved.sum((2, 3)), x.sum((2, 3)))
    assert torch.equal(moved[:, 0], 2 * moved[:, 1])  # channels together
    places = {tuple(place) for place in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(row, column) for row in range(6, 11) for column in range(3, 6)}


def test_what_moves_out_is_gone_and_what_comes_in_is_black():
    moved = augment(torch.ones(200, 1, 8, 8), ("translation",), draws())
    assert {int(total) for total in moved.sum((1, 2, 3))} == {64, 56, 49}  # no side, one side, a corner


def test_a_box_of_half_of_each_side_is_cut_out():
    cut = augment(torch.ones(300, 3, 8, 8), ("cutout",), draws())
    assert torch.equal(cut[:, 0], cut[:, 2])
    missing = [int((image == 0).sum()) for image in cut[:, 0]]
    assert max(missing) == 16
    assert min(missing) >= 4  # half of each side of the box, at a corner


@pytest.mark.parametrize("changes", [("translation",), ("cutout",), ("translation", "cutout")])
def test_gradients_are_those_of_the_pixels_that_stay(changes):
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    (slope,) = torch.autograd.grad((augment(x, changes, draws()) * weights).sum(), x)
    step = torch.rand_like(x)
    rise = (augment(x + step, changes, draws()) - augment(x, changes, draws())) * weights
    assert torch.allclose((slope * step).sum(), rise.sum())  # it is linear in the image


@pytest.mark.parametrize("kind", ["wgan_gp", "r1"])
def test_real_and_generated_images_are_changed_in_both_steps(kind, monkeypatch):
    seen: list[tuple[int, bool]] = []

    def noted(images, changes, draw):
        seen.append((len(images), images.requires_grad))
        return augment(images, changes, draw)

    monkeypatch.setattr(gan_training, "augment", noted)
    gan = build_gan(SMALL.model_copy(update={"kind": kind}), (1, 8, 8), 2, seed=0)
    before = gan.weights()
    training = GanTraining(batch_size=4, critic_steps=2, augment=("translation", "cutout"))
    data = TrainingImages(torch.rand(6, 1, 8, 8), torch.tensor([0, 1] * 3))
    train_gan(gan, data, training, 1, np.random.default_rng(0))
    assert seen == [(8, False), (8, False), (4, True)]  # real, generated; then the generator learns through it
    assert any(not torch.equal(before[name], entry) for name, entry in gan.weights().items())


def test_private_training_refuses_it():
    data = TrainingImages(torch.rand(6, 1, 8, 8), torch.tensor([0, 1] * 3), known=torch.ones(2))
    training, noise = GanTraining(augment=("cutout",)), DpSgdNoise(clip=1.0, noise=1.0)
    with pytest.raises(ConfigError, match="no augmentation"):
        train_gan_private(build_gan(SMALL, (1, 8, 8), 2, seed=0), data, training, 1, noise, np.random.default_rng(0))
