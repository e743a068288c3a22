"""Training of a GAN on one data set: as many generator steps as asked for, from the weights and moments it is given.

A generator step takes one number from `rng`, which seeds all that the step draws. So training in two visits, with the
moments handed on, is training in one. Fast on a CPU: one pass of real and made images together, made images for all the
critic's steps at once, the penalty's gradient as a chain of transposed convolutions, channels_last, fused Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fedsynth.learning.effort import count_examples
from fedsynth.synthesis.gan_images import Draws, Images
from fedsynth.synthesis.gan_model import Gan, torch_generator
from fedsynth.synthesis.gan_nets import Critic, Encoder

Moments = dict[str, Tensor]
"""Adam's running means by name ("critic.first.score.weight"), and how many steps they are over ("critic.steps")."""


class GanTraining(BaseModel):
    """How a GAN is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch_size: PositiveInt = Field(default=32, description="Real images a critic step.")
    generator_lr: PositiveFloat = Field(default=2e-3, description="Adam's rate for the generator.")
    critic_lr: PositiveFloat = Field(default=2e-3, description="Adam's rate for the critic (or the encoder).")
    betas: tuple[float, float] = Field(default=(0.0, 0.9), description="How fast Adam forgets.")
    critic_steps: PositiveInt = Field(default=2, description="Critic steps before each generator step; not for vae.")
    penalty: NonNegativeFloat = Field(default=10.0, description="Weight of the gradient penalty of wgan_gp.")
    r1: NonNegativeFloat = Field(default=1.0, description="Weight of the R1 penalty of r1.")
    r1_every: PositiveInt = Field(default=8, description="The R1 penalty is taken in one of so many critic steps.")
    average: float = Field(
        default=0.99, ge=0, lt=1, description="How slowly the generator of r1 follows the one that learns."
    )
    kl: NonNegativeFloat = Field(
        default=4.0, description="Weight of the latents' KL in the loss of vae: 1 draws more freely, and often wrongly."
    )
    balanced: bool = Field(default=True, description="Whether all classes are drawn equally often.")


@dataclass(frozen=True)
class GanFit:
    """What a training did. Losses are means over its steps, nan when one was not finite (and it stopped there)."""

    steps: int
    generator_loss: float
    critic_loss: float
    moments: Moments = field(repr=False)


def train_gan(
    gan: Gan,
    x: Tensor,
    y: Tensor,
    training: GanTraining,
    steps: int,
    rng: np.random.Generator,
    moments: Moments | None = None,
    known: Tensor | None = None,
) -> GanFit:
    """Train the GAN in place for `steps` generator steps, on images x (n, C, H, W) in [0, 1] with labels y.

    `known` says which classes are known to be there (by default those in y): the generator is asked for no other, and
    images of others are left out. A class that nobody has would come out as rubbish.
    """
    images = Images(gan, x, y, training.balanced, known)
    if len(images) == 0 or steps == 0:
        return GanFit(0, 0.0, 0.0, moments or {})
    adam = optimizers(gan, training, moments)
    take = _Vae(gan, images, training, adam) if gan.spec.kind == "vae" else _Adversaries(gan, images, training, adam)
    done, sums = 0, np.zeros(2)
    while done < steps and np.isfinite(sums).all():
        sums += take.step(torch_generator(rng))
        done += 1
    count_examples(done * take.examples)
    gan.zero_grad(set_to_none=True)
    means = [value / done if math.isfinite(value) else math.nan for value in sums]
    return GanFit(done, means[0], means[1], saved(adam))


class Adam:
    """PyTorch's Adam for one network, fused, with moments that can be taken out and put back."""

    def __init__(self, network: nn.Module, rate: float, training: GanTraining) -> None:
        self.parameters = dict(network.named_parameters())
        self.trained = list(self.parameters.values())
        try:
            self.optimizer = torch.optim.Adam(self.trained, lr=rate, betas=training.betas, fused=True)
        except RuntimeError:  # this device or number type has no fused kernel
            self.optimizer = torch.optim.Adam(self.trained, lr=rate, betas=training.betas, foreach=True)
        self.steps = 0

    def minimise(self, loss: Tensor) -> float:
        """One step down; the loss before it."""
        for parameter, gradient in zip(self.trained, torch.autograd.grad(loss, self.trained), strict=True):
            parameter.grad = gradient
        self.step()
        return loss.item()

    def step(self) -> None:
        """One step by the gradients that are there."""
        self.optimizer.step()
        self.steps += 1

    def saved(self, part: str) -> Moments:
        """The moments, in the default memory format."""
        kept = {f"{part}.steps": torch.tensor(float(self.steps))}
        for name, parameter in self.parameters.items():
            state = self.optimizer.state[parameter]
            kept[f"{part}.first.{name}"] = state["exp_avg"].clone(memory_format=torch.contiguous_format)
            kept[f"{part}.second.{name}"] = state["exp_avg_sq"].clone(memory_format=torch.contiguous_format)
        return kept

    def load(self, moments: Moments, part: str) -> None:
        """Go on with moments that were saved; none leaves the optimiser fresh."""
        if not moments:
            return
        self.steps = int(moments[f"{part}.steps"])
        for name, parameter in self.parameters.items():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(self.steps)),
                "exp_avg": torch.empty_like(parameter).copy_(moments[f"{part}.first.{name}"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(moments[f"{part}.second.{name}"]),
            }


def optimizers(gan: Gan, training: GanTraining, moments: Moments | None) -> dict[str, Adam]:
    """Adam for each of the two networks, with the moments it had."""
    rates = {"generator": training.generator_lr, "critic": training.critic_lr}
    networks: dict[str, nn.Module] = {"generator": gan.learning, "critic": gan.critic}
    adam = {part: Adam(network, rates[part], training) for part, network in networks.items()}
    for part, optimizer in adam.items():
        optimizer.load(moments or {}, part)
    return adam


def saved(adam: Mapping[str, Adam]) -> Moments:
    """The moments of both networks."""
    return {name: entry for part, optimizer in adam.items() for name, entry in optimizer.saved(part).items()}


def generator_step(gan: Gan, draws: Draws, size: int, adam: Adam, draw: torch.Generator) -> float:
    """One step of the learning generator towards better scores; the loss before it."""
    labels = draws.labels(size, draw)
    scores = gan.critic(gan.learning(draws.latents(size, draw), labels), labels)
    return adam.minimise(-scores.mean() if gan.spec.kind == "wgan_gp" else F.softplus(-scores).mean())


class _Adversaries:
    """A generator step of wgan_gp or r1, with the critic's steps before it."""

    def __init__(self, gan: Gan, images: Images, training: GanTraining, adam: Mapping[str, Adam]) -> None:
        assert isinstance(gan.critic, Critic)
        self.gan, self.critic = gan, gan.critic
        self.images, self.training, self.adam = images, training, adam
        self.draws = Draws(gan, images.odds)
        self.examples = training.critic_steps * training.batch_size

    def step(self, draw: torch.Generator) -> tuple[float, float]:
        """The losses of the generator and (mean) of the critic."""
        size, critic_loss = self.training.batch_size, 0.0
        real, labels = self.images.real(self.examples, draw)
        with torch.no_grad():  # the generator stays as it is meanwhile: one pass makes the images of all steps
            made = self.gan.learning(self.draws.latents(self.examples, draw), labels)
        for at in range(0, self.examples, size):
            here = slice(at, at + size)
            loss = self.critic_loss(real[here], made[here], None if labels is None else labels[here], draw)
            critic_loss += self.adam["critic"].minimise(loss)
        generator_loss = generator_step(self.gan, self.draws, size, self.adam["generator"], draw)
        self._average()
        return generator_loss, critic_loss / self.training.critic_steps

    @torch.no_grad()
    def _average(self) -> None:
        """Bring the generator that draws nearer to the one that learns; faster in the first steps, when both are far
        from good."""
        if self.gan.learner is not None:
            done = self.adam["generator"].steps
            kept = min(self.training.average, done / (done + 10))
            pairs = zip(self.gan.generator.parameters(), self.gan.learner.parameters(), strict=True)
            for mean, learned in pairs:
                mean.lerp_(learned, 1 - kept)

    def critic_loss(self, real: Tensor, made: Tensor, labels: Tensor | None, draw: torch.Generator) -> Tensor:
        """What the critic minimises on one batch. A made image has the label of the real one beside it."""
        twice = None if labels is None else labels.repeat(2)
        on_real, on_made = self.critic(torch.cat([real, made]), twice).chunk(2)
        if self.gan.spec.kind == "wgan_gp":
            mix = torch.rand((len(real), 1, 1, 1), generator=draw).to(real)
            penalty = gradient_penalty(self.critic, real, made, labels, mix)
            return (on_made - on_real + self.training.penalty * penalty).mean()
        loss = (F.softplus(on_made) + F.softplus(-on_real)).mean()
        if self.adam["critic"].steps % self.training.r1_every == 0:
            weight = self.training.r1 / 2 * self.training.r1_every
            loss = loss + weight * r1_penalty(self.critic, real, labels).mean()
        return loss


def gradient_penalty(critic: Critic, real: Tensor, made: Tensor, labels: Tensor | None, mix: Tensor) -> Tensor:
    """(‖∇D(x̂)‖ − 1)² for each x̂ = mix · real + (1 − mix) · made (GANDALF, algorithm 1, lines 9 and 10)."""
    slope = critic.slope(torch.lerp(made, real, mix), labels)
    return (slope.flatten(1).norm(dim=1) - 1).square()


def r1_penalty(critic: Critic, real: Tensor, labels: Tensor | None) -> Tensor:
    """‖∇D(x)‖² for each real image (Mescheder et al. 2018)."""
    return critic.slope(real, labels).square().flatten(1).sum(1)


class _Vae:
    """A step of the decoder and the encoder together."""

    def __init__(self, gan: Gan, images: Images, training: GanTraining, adam: Mapping[str, Adam]) -> None:
        assert isinstance(gan.critic, Encoder)
        self.decoder, self.encoder = gan.generator, gan.critic
        self.images, self.training, self.adam = images, training, adam
        self.draws = Draws(gan, images.odds)
        self.examples = training.batch_size

    def step(self, draw: torch.Generator) -> tuple[float, float]:
        """The reconstruction loss and the KL."""
        x, labels = self.images.real(self.examples, draw)
        mean, log_variance = self.encoder(x, labels)
        z = mean + self.draws.latents(self.examples, draw) * (log_variance / 2).exp()
        drawn = self.decoder.logits(z, labels)
        reconstruction = F.binary_cross_entropy_with_logits(drawn, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        (reconstruction + self.training.kl * kl).backward()
        for optimizer in self.adam.values():
            optimizer.step()
            for parameter in optimizer.trained:
                parameter.grad = None
        return reconstruction.item(), kl.item()
