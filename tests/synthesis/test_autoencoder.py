"""The auto-encoder: any image shape, reproducible, and it learns what it is shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.data.readers import arrays
from fedsynth.errors import UserError
from fedsynth.learning.weights import weights_of
from fedsynth.synthesis.autoencoder import (
    build_autoencoder,
    embed,
    load_autoencoder,
    read_public_images,
    reconstruction_errors,
    train_autoencoder,
)


def stripes(count: int, seed: int = 0) -> torch.Tensor:
    """8x8 images with one bright row each."""
    x = torch.zeros((count, 1, 8, 8))
    x[torch.arange(count), 0, torch.from_numpy(np.random.default_rng(seed).integers(8, size=count))] = 1
    return x


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 5, 9), (1, 1, 1), (3, 65, 40)])
def test_any_shape_comes_back_in_its_shape(shape):
    net = build_autoencoder(shape, 7, seed=0)
    x = torch.rand((3, *shape))
    assert net(x).shape == x.shape
    assert net(x).min() >= 0
    assert net(x).max() <= 1
    assert embed(net, x).shape == (3, 7)
    assert embed(net, x[:0]).shape == (0, 7)


def test_the_seed_alone_decides_the_weights_and_they_can_be_loaded():
    one, other = build_autoencoder((1, 8, 8), 4, 3), build_autoencoder((1, 8, 8), 4, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    x = stripes(5)
    again = load_autoencoder((1, 8, 8), 4, weights_of(one))
    assert torch.equal(embed(again, x), embed(one, x))
    fresh = build_autoencoder((1, 8, 8), 4, 4)
    assert not torch.equal(embed(fresh, x), embed(one, x))


def test_it_learns_to_reconstruct_and_is_surprised_by_other_images():
    net = build_autoencoder((1, 8, 8), 16, 0)
    x = stripes(200)
    before = float(reconstruction_errors(net, x).mean())
    train_autoencoder(net, x, 300, np.random.default_rng(0))
    after = float(reconstruction_errors(net, stripes(50, seed=1)).mean())
    columns = float(reconstruction_errors(net, stripes(50, seed=1).transpose(2, 3)).mean())
    assert after < 0.2 * before
    assert columns > 3 * after


def test_training_on_nothing_does_nothing():
    net = build_autoencoder((1, 8, 8), 4, 0)
    before = weights_of(net)
    assert np.isnan(train_autoencoder(net, stripes(0), 5, np.random.default_rng(0)))
    assert all(torch.equal(before[name], entry) for name, entry in weights_of(net).items())


def test_vectors_are_refused():
    with pytest.raises(UserError, match="for images"):
        build_autoencoder((12,), 4, 0)


def test_public_images_are_read_in_the_usual_layouts(tmp_path):
    grey = np.random.default_rng(0).integers(256, size=(6, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", y_train=np.zeros(6), x_train=grey)
    assert torch.equal(read_public_images(str(tmp_path / "grey.npz"), (1, 8, 8))[:, 0], torch.from_numpy(grey) / 255)
    colours = np.random.default_rng(0).random((6, 5, 7, 3)).astype(np.float32)
    np.savez(tmp_path / "colours.npz", colours)
    read = read_public_images(str(tmp_path / "colours.npz"), (3, 5, 7))
    assert torch.equal(read, torch.from_numpy(colours).permute(0, 3, 1, 2))


def test_public_images_that_do_not_fit_are_refused_in_words(tmp_path):
    np.savez(tmp_path / "small.npz", x=np.zeros((4, 6, 6), np.uint8))
    with pytest.raises(UserError, match=r"\(1, 6, 6\), and the clients' \(1, 8, 8\)"):
        read_public_images(str(tmp_path / "small.npz"), (1, 8, 8))
    (tmp_path / "text.npz").write_text("no")
    for name in ("text.npz", "absent.npz"):
        with pytest.raises(UserError, match="cannot be read"):
            read_public_images(str(tmp_path / name), (1, 8, 8))


def test_public_images_that_would_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_UNPACKED", 1000)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((40, 8, 8), np.uint8))
    with pytest.raises(UserError, match="would unpack to"):
        read_public_images(str(tmp_path / "bomb.npz"), (1, 8, 8))
