"""A WGAN-GP whose critic learns privately (DP-SGD): every record's gradient is clipped, their sum gets noise.

The term of a record is all that the record takes part in: its own score, the score of the image generated beside it
and the penalty between them. The generator learns from the critic alone and from labels and latents that do not depend
on the data, so it is post-processing of the noisy sums. What is proven is about one record, added or removed, beside a
number of records that is public: it decides the sampling rate and the divisor.

All randomness is secret, also the latent and the mixing weight of each record: were they public and dealt by position
in the batch, one record more would change the terms of all later ones. The generator draws from a stream of its own, so
that nothing which it draws depends on how many records were in a batch.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedsynth.errors import ConfigError
from fedsynth.learning.effort import count_examples
from fedsynth.privacy.dpsgd import DpSgdNoise, dp_rate, noisy_sum, poisson_batch, set_gradients
from fedsynth.privacy.mechanisms import clip_rows
from fedsynth.synthesis.gan import Gan, TrainingImages, torch_generator
from fedsynth.synthesis.gan_networks import Critic
from fedsynth.synthesis.gan_training import (
    GanTraining,
    GeneratorInputs,
    Moments,
    build_optimizers,
    collect_moments,
    generator_step,
    gradient_penalty,
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
    images: TrainingImages,
    training: GanTraining,
    steps: int,
    noise: DpSgdNoise,
    rng: np.random.Generator,
    moments: Moments | None = None,
) -> PrivateGanFit:
    """Train a WGAN-GP in place for `steps` generator steps, privately per record. `rng` must be secret.

    `images.known` says which classes images are generated for. It must not come from these records unless a guarantee
    of its own covers it; records of other classes add nothing. `training.balanced` has no meaning here, where every
    record has the same chance.
    """
    known = _check(gan, images, training)
    size = len(images.x) if images.public_size is None else images.public_size
    rate = dp_rate(size, training.batch_size)
    if size == 0 or steps == 0:
        return PrivateGanFit(0, 0, rate, noise.noise, moments or {})
    adam = build_optimizers(gan, training, moments)
    inputs = GeneratorInputs(gan, known)
    records = _Records(gan, images.x, images.y, known, training.penalty, noise.clip)
    for _ in range(steps):
        of_records, of_generator = (np.random.default_rng(int.from_bytes(rng.bytes(32))) for _ in range(2))
        for _ in range(training.critic_steps):
            rows = torch.from_numpy(poisson_batch(len(images.x), rate, of_records))
            total = records.clipped_sum(rows, *records.drawn(len(rows), of_records))
            set_gradients(adam["critic"].trained, noisy_sum(total, noise.std, of_records) / (rate * size))
            adam["critic"].step()
        generator_step(gan, inputs, training, adam["generator"], torch_generator(of_generator))
    # What is expected, not what was drawn: the number of records in the batches is not for others to know.
    count_examples(round(steps * training.critic_steps * rate * size))
    gan.zero_grad(set_to_none=True)
    return PrivateGanFit(steps, steps * training.critic_steps, rate, noise.noise, collect_moments(adam))


def _check(gan: Gan, images: TrainingImages, training: GanTraining) -> Tensor:
    """Refuse what cannot be trained privately; the classes that images are generated for."""
    if training.augment:
        raise ConfigError("Private training has no augmentation: remove it.")
    if gan.spec.kind != "wgan_gp":
        raise ConfigError(f'A GAN of kind "{gan.spec.kind}" cannot be trained privately; choose kind = "wgan_gp".')
    known = images.known
    if known is None or len(known) != gan.classes or not known.any():
        raise ConfigError(f"Private training must know which of the {gan.classes} classes images are generated for.")
    images.check(gan)
    return known


class _RecordLoss(nn.Module):
    """What one record adds to the critic's loss."""

    def __init__(self, critic: Critic, penalty: float) -> None:
        super().__init__()
        self.critic, self.penalty = critic, penalty

    def forward(self, real: Tensor, generated: Tensor, label: Tensor, mix: Tensor) -> Tensor:
        y = None if self.critic.by_class is None else label
        penalty = gradient_penalty(self.critic, real, generated, y, mix)
        return (self.critic(generated, y) - self.critic(real, y) + self.penalty * penalty).sum()


class _Records:
    """The records, and the sum of the clipped gradients of some of them."""

    def __init__(self, gan: Gan, x: Tensor, y: Tensor, known: Tensor, penalty: float, clip: float) -> None:
        assert isinstance(gan.critic, Critic)
        like = gan.generator.linear.weight
        self.x, self.y = x.to(like), y.to(like.device)
        self.heard = known.bool().to(like.device)
        self.generator, self.clip = gan.learning, clip
        self.loss = _RecordLoss(gan.critic, penalty)
        self.chunk = max(1, CHUNK_BYTES // (like.element_size() * sum(p.numel() for p in gan.critic.parameters())))

        def of_one(weights: dict[str, Tensor], *record: Tensor) -> Tensor:
            return functional_call(self.loss, weights, tuple(part.unsqueeze(0) for part in record))

        self.gradients = vmap(grad(of_one), in_dims=(None, 0, 0, 0, 0))

    def drawn(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """For each of so many records a latent, from which the image beside it is generated, and a place between both.

        By numpy: PyTorch takes 32 bits of a seed, which can be guessed.
        """
        z = torch.from_numpy(rng.standard_normal((count, self.generator.latent), dtype=np.float32))
        return z.to(self.x), torch.from_numpy(rng.random((count, 1, 1, 1), dtype=np.float32)).to(self.x)

    def clipped_sum(self, rows: Tensor, z: Tensor, mix: Tensor) -> Tensor:
        """One long vector. Records of classes that are not known add zeros, and so do broken ones."""
        weights = {name: p.detach() for name, p in self.loss.named_parameters()}
        total = torch.zeros(sum(p.numel() for p in weights.values()), dtype=torch.float64, device=self.x.device)
        for start in range(0, len(rows), self.chunk):
            here = slice(start, start + self.chunk)
            x, y = self.x[rows[here]], self.y[rows[here]]
            with torch.no_grad():
                generated = self.generator(z[here], y if self.generator.classes else None)
            each = self.gradients(weights, x, generated, y, mix[here].to(x))
            flat = torch.cat([gradient.reshape(len(x), -1) for gradient in each.values()], dim=1)
            flat = torch.where(self.heard[y].unsqueeze(1), flat, 0.0)
            total += clip_rows(flat, self.clip).sum(0, dtype=torch.float64)
        return total
