"""The private critic: one record moves the sum by no more than the clip, the noise is as large as it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsynth.errors import ConfigError
from fedsynth.privacy.dpsgd import DpSgdNoise, check_model
from fedsynth.privacy.mechanisms import clip_rows
from fedsynth.synthesis.gan import Gan, GanSpec, TrainingImages, build_gan
from fedsynth.synthesis.gan_private import _Records, train_gan_private
from fedsynth.synthesis.gan_training import GanTraining, gradient_penalty

CLIP = 0.7
TRAINING = GanTraining(batch_size=5, critic_steps=2)
ALL = torch.ones(3, dtype=torch.bool)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(multiplier: float) -> DpSgdNoise:
    return DpSgdNoise(clip=CLIP, noise=multiplier)


def small(conditional: bool = True) -> Gan:
    spec = GanSpec(kind="wgan_gp", conditional=conditional, channels=4, latent=5)
    return build_gan(spec, (1, 8, 8), 3, seed=0).double()


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand((n, 1, 8, 8), generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def drawn(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn((n, 5), generator=draw).double(), torch.rand((n, 1, 1, 1), generator=draw)


@pytest.mark.parametrize("conditional", [True, False])
def test_the_sum_is_that_of_clipped_gradients_taken_one_by_one(conditional):
    """Real, made and penalty of a record together, by plain autograd; in chunks or at once."""
    gan, (x, y), (z, mix) = small(conditional), images(7), drawn(7)
    wanted = 0.0
    lengths = []
    for k in range(7):
        label = y[k : k + 1] if conditional else None
        real, made = x[k : k + 1].double(), gan.generator(z[k : k + 1], label).detach()
        penalty = gradient_penalty(gan.critic, real, made, label, mix[k : k + 1].double())
        loss = (gan.critic(made, label) - gan.critic(real, label) + 10 * penalty).sum()
        gradients = torch.autograd.grad(loss, list(gan.critic.parameters()))
        flat = torch.cat([g.flatten() for g in gradients])
        lengths.append(float(flat.norm()))
        wanted = wanted + flat * min(1.0, CLIP / lengths[-1])
    assert max(lengths) > CLIP
    records = _Records(gan, x, y, ALL, 10.0, CLIP)
    assert torch.allclose(records.clipped_sum(torch.arange(7), z, mix), wanted, rtol=0, atol=1e-9)
    records.chunk = 3
    assert torch.allclose(records.clipped_sum(torch.arange(7), z, mix), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("worst", [1.0, 1e6, float("nan")])
def test_one_record_moves_the_sum_by_at_most_the_clip(worst):
    gan, (x, y), (z, mix) = small(), images(6), drawn(6)
    x[3] *= worst
    records = _Records(gan, x, y, ALL, 10.0, CLIP)
    rest = torch.tensor([0, 1, 2, 4, 5])
    whole, without = records.clipped_sum(torch.arange(6), z, mix), records.clipped_sum(rest, z[rest], mix[rest])
    assert torch.isfinite(whole).all()
    moved = float((whole - without).norm())
    assert moved <= CLIP
    if worst == 1e6:
        assert moved > 0.99 * CLIP  # the clip is what holds it


def test_float32_rows_are_never_longer_than_the_clip():
    rows = torch.randn((200, 1000), generator=torch.Generator().manual_seed(0)) * 100
    assert clip_rows(rows, CLIP).double().norm(dim=1).max() <= CLIP
    assert torch.equal(clip_rows(rows * 1e-6, CLIP), rows * 1e-6)


def test_records_of_classes_that_are_not_known_add_nothing():
    gan, (x, y), (z, mix) = small(), images(6), drawn(6)
    known = torch.tensor([True, True, False])
    records = _Records(gan, x, y, known, 10.0, CLIP)
    heard = torch.nonzero(y < 2).flatten()
    some = records.clipped_sum(heard, z[heard], mix[heard])
    assert torch.allclose(records.clipped_sum(torch.arange(6), z, mix), some, atol=1e-12)


def test_the_generator_is_asked_for_known_labels_whatever_the_data(monkeypatch):
    """Its own batches take labels from `known` alone: class 1 too, which no record has."""
    gan, asked = small(), []
    inner = type(gan.generator).forward

    def noted(self, z, y=None):
        if torch.is_grad_enabled():
            asked.extend(y.tolist())
        return inner(self, z, y)

    monkeypatch.setattr(type(gan.generator), "forward", noted)
    x, _ = images(8)
    known = torch.tensor([True, True, False])
    train_gan_private(gan, TrainingImages(x, torch.tensor([0, 2] * 4), known), TRAINING, 10, noise(1.0), rng(1))
    assert set(asked) == {0, 1}


def test_the_noise_has_the_standard_deviation_that_accounting_is_told(monkeypatch):
    """With no class known to any record the sums are zero: what reaches Adam is noise alone, over the batch."""
    gan = small()
    gradients: list[torch.Tensor] = []
    inner = torch.optim.Adam.step

    def noted(self, *args):
        if len(gradients) < 2:
            gradients.append(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]))
        return inner(self, *args)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    x, _ = images(20)
    known = torch.tensor([True, False, False])
    y = torch.ones(20, dtype=torch.long)
    train_gan_private(gan, TrainingImages(x, y, known), TRAINING, 1, noise(3.0), rng(1))
    values = torch.cat(gradients)
    assert len(values) > 500
    assert float(values.std()) == pytest.approx(3.0 * CLIP / 5, rel=0.1)
    assert abs(float(values.mean())) < 0.1 * 3.0 * CLIP / 5


def test_what_accounting_needs_is_told_and_losses_are_not():
    x, y = images(20)
    fit = train_gan_private(small(), TrainingImages(x, y, ALL), TRAINING, 3, noise(1.5), rng(1))
    assert (fit.steps, fit.critic_steps, fit.rate, fit.noise) == (3, 6, 0.25, 1.5)
    assert not any("loss" in name for name in vars(fit))
    few = train_gan_private(small(), TrainingImages(x[:2], y[:2], ALL), TRAINING, 1, noise(1.5), rng(1))
    assert few.rate == 1.0


def test_batches_and_noise_come_from_the_secret_numbers():
    x, y = images(20)
    made = {}
    for name, secret in (("one", 1), ("same", 1), ("other", 2)):
        gan = small()
        train_gan_private(gan, TrainingImages(x, y, ALL), TRAINING, 2, noise(1.0), rng(secret))
        made[name] = gan.weights()["critic.score.weight"]
    assert torch.equal(made["one"], made["same"])
    assert not torch.equal(made["one"], made["other"])


def test_moments_travel():
    x, y = images(20)
    whole, parts = small(), small()
    train_gan_private(whole, TrainingImages(x, y, ALL), TRAINING, 4, noise(1.0), rng(1))
    secret = rng(1)
    first = train_gan_private(parts, TrainingImages(x, y, ALL), TRAINING, 1, noise(1.0), secret)
    train_gan_private(parts, TrainingImages(x, y, ALL), TRAINING, 3, noise(1.0), secret, first.moments)
    assert all(torch.equal(entry, parts.weights()[name]) for name, entry in whole.weights().items())


@pytest.mark.parametrize("part", ["critic", "generator"])
def test_no_layer_mixes_records(part):
    """What one record gives is the same alone and beside others; a layer that mixes them is refused."""
    gan, (x, y), (z, _) = small(), images(6), drawn(6)
    network, given = getattr(gan, part), {"critic": x.double(), "generator": z}[part]
    with torch.no_grad():
        together, apart = network(given, y), torch.cat([network(given[k : k + 1], y[k : k + 1]) for k in range(6)])
    assert torch.allclose(together, apart, rtol=0, atol=1e-12)
    check_model(gan)
    network.mixing = torch.nn.BatchNorm2d(4)
    with pytest.raises(ConfigError, match="BatchNorm"):
        check_model(gan)


def test_refusals():
    x, y = images(5)
    other = build_gan(GanSpec(kind="r1"), (1, 8, 8), 3, seed=0)
    with pytest.raises(ConfigError, match="wgan_gp"):
        train_gan_private(other, TrainingImages(x, y, ALL), TRAINING, 1, noise(1.0), rng())
    with pytest.raises(ConfigError, match="which of the 3 classes"):
        train_gan_private(small(), TrainingImages(x, y), TRAINING, 1, noise(1.0), rng())
    with pytest.raises(ConfigError, match="which of the 3 classes"):
        train_gan_private(small(), TrainingImages(x, y, torch.zeros(3)), TRAINING, 1, noise(1.0), rng())
