"""The parts of the variational auto-encoder fit any image, and learn to draw."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits

from fedsynth.learning.layers import LatentHeads, sample_latent
from fedsynth.synthesis.vae_classifier import Decoder, vae_loss


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 30, 17)])
@pytest.mark.parametrize("per_block", [1, 2])
def test_decoder_makes_images_of_the_shape_it_was_told(shape, per_block):
    decoder = Decoder(5, shape, widths=(16, 32), per_block=per_block)
    images = decoder(torch.rand(4, 5))
    assert images.shape == (4, *shape)
    assert 0 <= images.min() <= images.max() <= 1


def test_conditional_decoder_depends_on_the_class():
    decoder = Decoder(5, (1, 8, 8), widths=(8, 16), classes=3)
    z = torch.rand(1, 5)
    one, other = decoder(z, torch.tensor([0])), decoder(z, torch.tensor([2]))
    assert not torch.equal(one, other)


def test_latent_means_lie_in_the_unit_cube():
    heads = LatentHeads(7, 4)
    mean, log_variance = heads(100 * torch.randn(50, 7))
    assert 0 <= mean.min() <= mean.max() <= 1
    assert log_variance.shape == mean.shape == (50, 4)


def test_loss_by_hand():
    x, drawn = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5)
    mean, log_variance = torch.full((2, 3), 0.2), torch.full((2, 3), math.log(0.5))
    kl = -0.5 * (1 + math.log(0.5) - 0.04 - 0.5)
    assert vae_loss(x, drawn, mean, log_variance).item() == pytest.approx(kl + 4 * 0.25, rel=1e-6)


def test_latents_are_drawn_around_the_mean_with_the_given_spread():
    torch.manual_seed(0)
    z = sample_latent(torch.full((20000, 1), 0.3), torch.full((20000, 1), math.log(0.04)))
    assert z.mean().item() == pytest.approx(0.3, abs=0.01)
    assert z.std().item() == pytest.approx(0.2, abs=0.01)


def test_it_learns_to_reconstruct_digits():
    torch.manual_seed(0)
    x = torch.tensor(load_digits().images[:200] / 16, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(load_digits().target[:200])
    heads, decoder = LatentHeads(64, 8), Decoder(8, (1, 8, 8), widths=(8, 16), classes=10)
    optimizer = torch.optim.Adam([*heads.parameters(), *decoder.parameters()], lr=5e-3)
    losses = []
    for _ in range(150):
        mean, log_variance = heads(x.flatten(1))
        loss = vae_loss(x, decoder(sample_latent(mean, log_variance), y), mean, log_variance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
