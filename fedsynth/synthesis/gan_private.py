"""A WGAN-GP whose critic learns privately (DP-SGD): every record's gradient is clipped, their sum gets noise.

The term of a record is all that the record takes part in: its own score, the score of the image made beside it and the
penalty between them. The generator learns from the critic alone and from labels that do not depend on the data, so it
is post-processing of the noisy sums. What is proven is about one record, added or removed; the number of records is
taken as known, since it decides the rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedsynth.errors import ConfigError
from fedsynth.learning.effort import count_examples
from fedsynth.synthesis.gan_images import Draws, check_images
from fedsynth.synthesis.gan_model import Gan, torch_generator
from fedsynth.synthesis.gan_nets import Critic
from fedsynth.synthesis.gan_training import (
    Adam,
    GanTraining,
    Moments,
    generator_step,
    gradient_penalty,
    optimizers,
    saved,
)

CHUNK_BYTES = 64 * 2**20  # of gradients, one per record, held at a time


@dataclass(frozen=True)
class PrivateGanFit:
    """What a private training did, with the numbers that accounting needs. It reports no loss: that would be a release.

    Each of `critic_steps` took every record with chance `rate` and added noise of `noise` times the clip to the sum.
    """

    steps: int
    critic_steps: int
    rate: float
    noise: float
    moments: Moments = field(repr=False)


def train_gan_private(
    gan: Gan,
    x: Tensor,
    y: Tensor,
    training: GanTraining,
    steps: int,
    clip: float,
    noise: float,
    rng: np.random.Generator,
    noise_rng: np.random.Generator,
    known: Tensor,
    moments: Moments | None = None,
) -> PrivateGanFit:
    """Train a WGAN-GP in place for `steps` generator steps, privately per record.

    `known` says which classes images are made for. It must not come from these records unless a guarantee of its own
    covers it; records of other classes add nothing. `noise_rng` decides the noise and who is in a batch: both must stay
    secret. `training.balanced` has no meaning here, where every record has the same chance.
    """
    _check(gan, clip, noise, known)
    check_images(gan, x, y)
    rate = min(1.0, training.batch_size / len(x)) if len(x) else 0.0
    if len(x) == 0 or steps == 0:
        return PrivateGanFit(0, 0, rate, noise, moments or {})
    adam = optimizers(gan, training, moments)
    draws = Draws(gan, known)
    records = _Records(gan, x, y, known, training.penalty, clip)
    for _ in range(steps):
        draw = torch_generator(rng)
        for _ in range(training.critic_steps):
            rows = torch.from_numpy(np.flatnonzero(noise_rng.random(len(x)) < rate))
            mix = torch.rand((len(rows), 1, 1, 1), generator=draw)
            total = records.clipped_sum(rows, draws.latents(len(rows), draw), mix)
            _noisy_step(adam["critic"], total, noise * clip, rate * len(x), noise_rng)
        generator_step(gan, draws, training.batch_size, adam["generator"], draw)
    # What is expected, not what was drawn: the number of records in the batches is not for others to know.
    count_examples(steps * training.critic_steps * min(training.batch_size, len(x)))
    gan.zero_grad(set_to_none=True)
    return PrivateGanFit(steps, steps * training.critic_steps, rate, noise, saved(adam))


def _noisy_step(adam: Adam, total: Tensor, std: float, expected: float, noise_rng: np.random.Generator) -> None:
    """Add the noise, divide by the expected size of a batch, step. An empty batch is a step of pure noise."""
    drawn = torch.from_numpy(noise_rng.standard_normal(len(total), dtype=np.float32))
    mean = (total + std * drawn.to(total)) / expected
    parts = mean.split([parameter.numel() for parameter in adam.trained])
    for parameter, part in zip(adam.trained, parts, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))
    adam.step()


class _RecordLoss(nn.Module):
    """What one record adds to the critic's loss."""

    def __init__(self, critic: Critic, penalty: float) -> None:
        super().__init__()
        self.critic, self.penalty = critic, penalty

    def forward(self, real: Tensor, made: Tensor, label: Tensor, mix: Tensor) -> Tensor:
        y = None if self.critic.by_class is None else label
        penalty = gradient_penalty(self.critic, real, made, y, mix)
        return (self.critic(made, y) - self.critic(real, y) + self.penalty * penalty).sum()


class _Records:
    """The records, and the sum of the clipped gradients of some of them."""

    def __init__(self, gan: Gan, x: Tensor, y: Tensor, known: Tensor, penalty: float, clip: float) -> None:
        assert isinstance(gan.critic, Critic)
        like = gan.generator.linear.weight
        self.x, self.y = x.to(like), y.to(like.device)
        self.heard = known.bool().to(like.device)
        self.generator, self.clip = gan.generator, clip
        self.loss = _RecordLoss(gan.critic, penalty)
        self.chunk = max(1, CHUNK_BYTES // (like.element_size() * sum(p.numel() for p in gan.critic.parameters())))

        def of_one(weights: dict[str, Tensor], *record: Tensor) -> Tensor:
            return functional_call(self.loss, weights, tuple(part.unsqueeze(0) for part in record))

        self.gradients = vmap(grad(of_one), in_dims=(None, 0, 0, 0, 0))

    def clipped_sum(self, rows: Tensor, z: Tensor, mix: Tensor) -> Tensor:
        """One long vector. Records of classes that are not known add zeros, and so do broken ones.

        Every record has a latent of its own in `z`, from which the image beside it is made, and a place between both.
        """
        weights = {name: p.detach() for name, p in self.loss.named_parameters()}
        total = torch.zeros(sum(p.numel() for p in weights.values())).to(self.x)
        for start in range(0, len(rows), self.chunk):
            here = slice(start, start + self.chunk)
            x, y = self.x[rows[here]], self.y[rows[here]]
            with torch.no_grad():
                made = self.generator(z[here], y if self.generator.classes else None)
            each = self.gradients(weights, x, made, y, mix[here].to(x))
            flat = torch.cat([gradient.reshape(len(x), -1) for gradient in each.values()], dim=1)
            total += clip_rows(flat * self.heard[y].unsqueeze(1), self.clip).sum(0)
        return total


def clip_rows(rows: Tensor, norm: float) -> Tensor:
    """Shorten every row that is longer than `norm`; one that is not finite becomes zeros."""
    lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    # A little below one, so that rounding leaves no row longer than the norm.
    factors = (norm / lengths * (1 - 4 * torch.finfo(rows.dtype).eps)).clamp(max=1.0)
    shortened = rows * factors.to(rows.dtype).unsqueeze(1)
    return torch.where(torch.isfinite(lengths).unsqueeze(1), shortened, torch.zeros_like(rows))


def _check(gan: Gan, clip: float, noise: float, known: Tensor) -> None:
    if gan.spec.kind != "wgan_gp":
        raise ConfigError(f'A GAN of kind "{gan.spec.kind}" cannot be trained privately; choose kind = "wgan_gp".')
    if not clip > 0 or not noise >= 0:
        raise ConfigError(f"Private training needs a clip above 0 and a noise of 0 or more, not {clip} and {noise}.")
    if len(known) != gan.classes or not known.any():
        raise ConfigError(f"Private training must be told which of the {gan.classes} classes images are made for.")
