"""Models distilled into one on samples of a generator that is trained on these models (FedFTG). Plain PyTorch.

`teachers` below are scores (models, samples, classes), `shares` (models, classes) what each model weighs for a class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.weights import BATCH_NORMS
from fedsynth.synthesis.feature_generator import FeatureGenerator, sameness
from fedsynth.synthesis.gan_networks import Generator

HIDDEN = 128  # units of a generator of vectors


class SampleGenerator(nn.Module):
    """From noise and a class to an example: an image in [0, 1], or a vector."""

    def __init__(self, shape: tuple[int, ...], classes: int, latent: int, channels: int) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        self.net: nn.Module = FeatureGenerator(latent, classes, HIDDEN, math.prod(shape))
        if len(shape) == 3:
            self.net = Generator(latent, (shape[0], shape[1], shape[2]), classes, channels)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.net(noise, labels).view(len(labels), *self.shape)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(σ(teacher) ‖ σ(student)) of each sample, from scores whose last dimension are the classes."""
    known = teacher.log_softmax(-1)
    return (known.exp() * (known - student.log_softmax(-1))).sum(-1)


def discrepancy(teachers: Tensor, student: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """FedFTG's L_md: mean over samples of Σ_k α_k^y · KL(σ(D(x; w_k)) ‖ σ(D(x; w)))."""
    return (shares[:, labels] * divergence(teachers, student)).sum(0).mean()


def infidelity(teachers: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """FedFTG's L_cls: mean over samples of Σ_k α_k^y · CE(D(x; w_k), y)."""
    losses = F.cross_entropy(teachers.flatten(0, 1), labels.repeat(len(teachers)), reduction="none")
    return (shares[:, labels] * losses.view(len(teachers), -1)).sum(0).mean()


@dataclass(frozen=True)
class HardSamples:
    """How FedFTG trains generator and model in a round."""

    iterations: int = 10
    generator_steps: int = 1
    model_steps: int = 5
    batch_size: int = 50
    generator_lr: float = 0.01
    hardness: float = 1.0  # weight of −L_md in the generator's loss
    fidelity: float = 1.0  # λ_cls
    diversity: float = 1.0  # λ_dis
    noise: bool = False  # control: noise in place of what is generated


@dataclass
class Losses:
    """Means over the iterations of one round."""

    discrepancy: float = 0.0
    infidelity: float = 0.0
    sameness: float = 0.0


class HardSampleDistillation:
    """One round at the server: generator and model in turn, the one to raise the discrepancy, the other to lower it."""

    def __init__(
        self,
        generator: SampleGenerator,
        teachers: Sequence[nn.Module],
        student: nn.Module,
        shares: Tensor,
        how: HardSamples,
        training: LocalTraining,
    ) -> None:
        self.generator, self.student, self.shares, self.how = generator, student, shares, how
        self.teachers = [teacher.eval().requires_grad_(False) for teacher in teachers]
        keep_statistics(student)
        self.moves_generator = torch.optim.Adam(generator.parameters(), lr=how.generator_lr)
        self.moves_model = make_optimizer(student.parameters(), training)
        self.losses = Losses()

    def run(self, frequencies: Tensor, random: torch.Generator) -> Tensor:
        """All iterations; how many samples of each class were drawn."""
        drawn = torch.zeros(len(frequencies), dtype=torch.int64)
        for _ in range(self.how.iterations):
            labels = torch.multinomial(frequencies, self.how.batch_size, replacement=True, generator=random)
            noise = torch.randn((len(labels), self.generator.latent), generator=random)
            drawn += torch.bincount(labels, minlength=len(drawn))
            for _ in range(0 if self.how.noise else self.how.generator_steps):
                self.harden(noise, labels)
            with torch.no_grad():
                samples = self.generator(noise, labels)
                if self.how.noise:
                    samples = torch.rand(samples.shape, generator=random)
                teachers = self.scores(samples)
            for _ in range(self.how.model_steps):
                self.distil(samples, teachers, labels)
        return drawn

    def scores(self, samples: Tensor) -> Tensor:
        """What every model says."""
        return torch.stack([teacher(samples) for teacher in self.teachers])

    def harden(self, noise: Tensor, labels: Tensor) -> None:
        """A step of the generator: raise L_md, lower λ_cls L_cls + λ_dis L_dis."""
        samples = self.generator(noise, labels)
        teachers = self.scores(samples)
        apart = discrepancy(teachers, self.student(samples), labels, self.shares)
        unlike, same = infidelity(teachers, labels, self.shares), sameness(samples, noise)
        self.moves_generator.zero_grad()
        how = self.how
        (how.fidelity * unlike + how.diversity * same - how.hardness * apart).backward()
        self.moves_generator.step()
        for name, value in {"discrepancy": apart, "infidelity": unlike, "sameness": same}.items():
            mean = getattr(self.losses, name) + float(value.detach()) / (how.iterations * how.generator_steps)
            setattr(self.losses, name, mean)

    def distil(self, samples: Tensor, teachers: Tensor, labels: Tensor) -> None:
        """A step of the model: lower L_md."""
        self.moves_model.zero_grad()
        discrepancy(teachers, self.student(samples), labels, self.shares).backward()
        self.moves_model.step()


def keep_statistics(model: nn.Module) -> None:
    """Training mode, but for BatchNorm, which goes on with the statistics that it has stored."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, BATCH_NORMS):
            layer.eval()
