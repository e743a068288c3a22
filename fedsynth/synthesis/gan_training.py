"""Training of a GAN on one data set: as many generator steps as asked for, from the weights and moments it is given.

A generator step takes one number from `rng`, which seeds all that the step draws. So training in two visits, with the
moments handed on, is training in one. Fast on a CPU: one pass of real and generated images together, generated images
for all the critic's steps at once, the penalty's gradient as a chain of transposed convolutions, channels_last, fused
Adam.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fedsynth.learning.effort import count_examples
from fedsynth.learning.optimizers import build_fused
from fedsynth.synthesis.gan import Gan, TrainingImages, torch_generator
from fedsynth.synthesis.gan_augment import Change, augment
from fedsynth.synthesis.gan_networks import Critic, Encoder

Moments = dict[str, Tensor]
"""Adam's running means by name ("critic.first.score.weight"), and how many steps they are over ("critic.steps")."""


class GanTraining(BaseModel, frozen=True, extra="forbid"):
    """How a GAN is trained."""

    batch_size: PositiveInt = Field(32, description="Real images a critic step.")
    generator_lr: PositiveFloat = Field(2e-3, description="Adam's rate for the generator.")
    critic_lr: PositiveFloat = Field(2e-3, description="Adam's rate for the critic (or the encoder).")
    betas: tuple[float, float] = Field((0.0, 0.9), description="How fast Adam forgets.")
    critic_steps: PositiveInt = Field(2, description="Critic steps before each generator step; not for vae.")
    penalty: NonNegativeFloat = Field(10.0, description="Weight of the gradient penalty of wgan_gp.")
    r1: NonNegativeFloat = Field(1.0, description="Weight of the R1 penalty of r1.")
    r1_every: PositiveInt = Field(8, description="The R1 penalty is taken in one of so many critic steps.")
    average: float = Field(0.99, ge=0, lt=1, description="How slowly an averaged generator follows the other.")
    augment: tuple[Change, ...] = Field(
        (), description="How the critic sees real and generated images changed: translation, cutout; not for vae."
    )
    kl: NonNegativeFloat = Field(
        4.0, description="Weight of the latents' KL in the loss of vae: 1 draws more freely, and often wrongly."
    )
    balanced: bool = Field(True, description="Whether all classes are drawn equally often.")


@dataclass(frozen=True)
class GanFit:
    """What a training did. Losses are means over its steps, nan when one was not finite (and it stopped there)."""

    steps: int
    generator_loss: float
    critic_loss: float
    moments: Moments = field(repr=False)


def train_gan(
    gan: Gan,
    images: TrainingImages,
    training: GanTraining,
    steps: int,
    rng: np.random.Generator,
    moments: Moments | None = None,
) -> GanFit:
    """Train the GAN in place for `steps` generator steps, from the moments of an earlier training where given."""
    batches = ImageBatches(gan, images, training.balanced)
    if len(batches) == 0 or steps == 0:
        return GanFit(0, 0.0, 0.0, moments or {})
    adam = build_optimizers(gan, training, moments)
    kind = _VaeSteps if gan.spec.kind == "vae" else _AdversarialSteps
    take = kind(gan, batches, training, adam)
    done, sums = 0, np.zeros(2)
    while done < steps and np.isfinite(sums).all():
        sums += take.step(torch_generator(rng))
        done += 1
    count_examples(done * take.examples)
    gan.zero_grad(set_to_none=True)
    means = [value / done if math.isfinite(value) else math.nan for value in sums]
    return GanFit(done, means[0], means[1], collect_moments(adam))


class GeneratorInputs:
    """What images are generated from: labels with the given odds for each class, and random vectors."""

    def __init__(self, gan: Gan, odds: Tensor) -> None:
        self.odds = odds.double().cpu()
        self.conditional, self.latent = gan.spec.conditional, gan.spec.latent
        self.like = gan.generator.linear.weight.detach()

    def labels(self, count: int, draw: torch.Generator) -> Tensor | None:
        """Labels, for a conditional generator."""
        if not self.conditional:
            return None
        return torch.multinomial(self.odds, count, replacement=True, generator=draw).to(self.like.device)

    def latents(self, count: int, draw: torch.Generator) -> Tensor:
        """Random vectors."""
        return torch.randn((count, self.latent), generator=draw).to(self.like)


class ImageBatches:
    """The real images of known classes, in order of class, so that a batch of any classes is one gather."""

    def __init__(self, gan: Gan, images: TrainingImages, balanced: bool) -> None:
        images.check(gan)
        x, y, known = images.x, images.y.cpu(), images.known
        counts = torch.bincount(y, minlength=gan.classes)
        known = counts > 0 if known is None else known.bool().cpu()
        order = torch.argsort(y, stable=True)
        order = order[known[y[order]]].to(x.device)
        # Stored (n, height, width, channels); seen as NCHW that is channels_last.
        self.x = x[order].to(gan.generator.linear.weight).permute(0, 2, 3, 1).contiguous()
        self.counts = counts * known
        self.ends = self.counts.cumsum(0)
        self.classes = torch.nonzero(self.counts).flatten()
        self.balanced, self.conditional = balanced, gan.spec.conditional
        self.odds = known if balanced else self.counts

    def __len__(self) -> int:
        return len(self.x)

    def real(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Images, and their labels if they are of use; drawn with replacement."""
        if self.balanced:
            labels = self.classes[torch.randint(len(self.classes), (count,), generator=draw)]
            back = torch.rand(count, generator=draw, dtype=torch.float64) * self.counts[labels]
            rows = self.ends[labels] - 1 - back.long()
        else:
            rows = torch.randint(len(self.x), (count,), generator=draw)
            labels = torch.searchsorted(self.ends, rows, right=True)
        x = self.x.index_select(0, rows.to(self.x.device)).permute(0, 3, 1, 2)
        return x, labels.to(x.device) if self.conditional else None


class Adam:
    """PyTorch's Adam for one network, fused, with moments that can be taken out and put back."""

    def __init__(self, network: nn.Module, rate: float, training: GanTraining) -> None:
        self.parameters = dict(network.named_parameters())
        self.trained = list(self.parameters.values())
        self.optimizer = build_fused(partial(torch.optim.Adam, self.trained, lr=rate, betas=training.betas))
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

    def moments(self, part: str) -> Moments:
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


def build_optimizers(gan: Gan, training: GanTraining, moments: Moments | None) -> dict[str, Adam]:
    """Adam for each of the two networks, with the moments it had."""
    adam = {
        "generator": Adam(gan.learning, training.generator_lr, training),
        "critic": Adam(gan.critic, training.critic_lr, training),
    }
    for part, optimizer in adam.items():
        optimizer.load(moments or {}, part)
    return adam


def collect_moments(adam: Mapping[str, Adam]) -> Moments:
    """The moments of both networks."""
    return {name: entry for part, optimizer in adam.items() for name, entry in optimizer.moments(part).items()}


def generator_step(
    gan: Gan, inputs: GeneratorInputs, training: GanTraining, adam: Adam, draw: torch.Generator
) -> float:
    """One step of the learning generator towards better scores; the loss before it."""
    labels = inputs.labels(training.batch_size, draw)
    generated = gan.learning(inputs.latents(training.batch_size, draw), labels)
    scores = gan.critic(augment(generated, training.augment, draw), labels)
    loss = adam.minimise(-scores.mean() if gan.spec.kind == "wgan_gp" else F.softplus(-scores).mean())
    gan.follow(training.average)
    return loss


class _AdversarialSteps:
    """A generator step of wgan_gp or r1, with the critic's steps before it."""

    def __init__(self, gan: Gan, images: ImageBatches, training: GanTraining, adam: Mapping[str, Adam]) -> None:
        assert isinstance(gan.critic, Critic)
        self.gan, self.critic = gan, gan.critic
        self.images, self.training, self.adam = images, training, adam
        self.inputs = GeneratorInputs(gan, images.odds)
        self.examples = training.critic_steps * training.batch_size

    def step(self, draw: torch.Generator) -> tuple[float, float]:
        """The losses of the generator and (mean) of the critic."""
        size, critic_loss = self.training.batch_size, 0.0
        real, labels = self.images.real(self.examples, draw)
        with torch.no_grad():  # the generator stays as it is meanwhile: one pass draws the images of all steps
            generated = self.gan.learning(self.inputs.latents(self.examples, draw), labels)
        real, generated = (augment(images, self.training.augment, draw) for images in (real, generated))
        for at in range(0, self.examples, size):
            here = slice(at, at + size)
            loss = self.critic_loss(real[here], generated[here], None if labels is None else labels[here], draw)
            critic_loss += self.adam["critic"].minimise(loss)
        generator_loss = generator_step(self.gan, self.inputs, self.training, self.adam["generator"], draw)
        return generator_loss, critic_loss / self.training.critic_steps

    def critic_loss(self, real: Tensor, generated: Tensor, labels: Tensor | None, draw: torch.Generator) -> Tensor:
        """What the critic minimises on one batch. A generated image has the label of the real one beside it."""
        twice = None if labels is None else labels.repeat(2)
        on_real, on_generated = self.critic(torch.cat([real, generated]), twice).chunk(2)
        if self.gan.spec.kind == "wgan_gp":
            mix = torch.rand((len(real), 1, 1, 1), generator=draw).to(real)
            penalty = gradient_penalty(self.critic, real, generated, labels, mix)
            return (on_generated - on_real + self.training.penalty * penalty).mean()
        loss = (F.softplus(on_generated) + F.softplus(-on_real)).mean()
        if self.adam["critic"].steps % self.training.r1_every == 0:
            weight = self.training.r1 / 2 * self.training.r1_every
            loss = loss + weight * r1_penalty(self.critic, real, labels).mean()
        return loss


def gradient_penalty(critic: Critic, real: Tensor, generated: Tensor, labels: Tensor | None, mix: Tensor) -> Tensor:
    """(‖∇D(x̂)‖ − 1)² for each x̂ = mix · real + (1 − mix) · generated (GANDALF, algorithm 1, lines 9 and 10)."""
    slope = critic.slope(torch.lerp(generated, real, mix), labels)
    return (slope.flatten(1).norm(dim=1) - 1).square()


def r1_penalty(critic: Critic, real: Tensor, labels: Tensor | None) -> Tensor:
    """‖∇D(x)‖² for each real image (Mescheder et al. 2018)."""
    return critic.slope(real, labels).square().flatten(1).sum(1)


class _VaeSteps:
    """A step of the decoder and the encoder together."""

    def __init__(self, gan: Gan, images: ImageBatches, training: GanTraining, adam: Mapping[str, Adam]) -> None:
        assert isinstance(gan.critic, Encoder)
        self.gan, self.decoder, self.encoder = gan, gan.learning, gan.critic
        self.images, self.training, self.adam = images, training, adam
        self.inputs = GeneratorInputs(gan, images.odds)
        self.examples = training.batch_size

    def step(self, draw: torch.Generator) -> tuple[float, float]:
        """The reconstruction loss and the KL."""
        x, labels = self.images.real(self.examples, draw)
        mean, log_variance = self.encoder(x, labels)
        z = mean + self.inputs.latents(self.examples, draw) * (log_variance / 2).exp()
        drawn = self.decoder.logits(z, labels)
        reconstruction = F.binary_cross_entropy_with_logits(drawn, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        (reconstruction + self.training.kl * kl).backward()
        for optimizer in self.adam.values():
            optimizer.step()
            for parameter in optimizer.trained:
                parameter.grad = None
        self.gan.follow(self.training.average)
        return reconstruction.item(), kl.item()
