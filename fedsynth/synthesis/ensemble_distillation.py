"""An ensemble distilled into one model on samples of a generator that is trained on it (DENSE). Plain PyTorch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsynth.learning.layers import Ensemble
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.synthesis.distillation import SampleGenerator, divergence


@dataclass(frozen=True)
class Distillation:
    """How DENSE trains generator and model."""

    epochs: int = 40
    generator_steps: int = 10
    batch_size: int = 64
    generator_lr: float = 0.001
    statistics: float = 1.0  # λ1
    boundary: float = 0.5  # λ2
    pool: bool = True  # the model goes over all batches so far in each epoch, not over the last alone
    noise: bool = False  # control: noise in place of what is generated


@dataclass
class Parts:
    """The parts of the generator's loss, as they were in its last step."""

    infidelity: float = 0.0
    statistics: float = 0.0
    boundary: float = 0.0


def boundary_loss(ensemble: Tensor, student: Tensor) -> Tensor:
    """Eq. 4, L_div: −ω KL(D ‖ f_S), the mean over samples; ω is 1 where the two differ in their answer, else 0."""
    differ = ensemble.argmax(1) != student.argmax(1)
    return -(differ * divergence(ensemble, student)).mean()


def statistics_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """A layer's part of eq. 3, L_BN: ‖μ(x̂) − μ‖ + ‖σ²(x̂) − σ²‖."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    others = [dim for dim in range(inputs.dim()) if dim != 1]
    means, variances = inputs.mean(others), inputs.var(others, unbiased=False)
    apart = (means - layer.running_mean, variances - layer.running_var)
    return torch.linalg.vector_norm(apart[0]) + torch.linalg.vector_norm(apart[1])


@contextmanager
def watched_statistics(models: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Gaps of all BatchNorm layers of the models, added to the list by every pass over them."""
    gaps: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        gaps.append(statistics_gap(layer, inputs[0]))

    layers = [m for model in models for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


class EnsembleDistillation:
    """The two stages of DENSE in turn: data generation and model distillation (algorithm 1)."""

    def __init__(
        self,
        generator: SampleGenerator,
        teachers: Sequence[nn.Module],
        student: nn.Module,
        how: Distillation,
        training: LocalTraining,
    ) -> None:
        self.generator, self.student, self.how = generator, student, how
        self.ensemble = Ensemble(teachers, "scores").eval().requires_grad_(False)  # eq. 1
        self.moves_generator = torch.optim.Adam(generator.parameters(), lr=how.generator_lr)
        self.moves_model = make_optimizer(student.parameters(), training)
        self.parts = Parts()

    def run(self, classes: int, random: torch.Generator) -> Tensor:
        """All epochs; how many samples of each class were made."""
        made = torch.zeros(classes, dtype=torch.int64)
        pool: list[tuple[Tensor, Tensor]] = []
        for _ in range(self.how.epochs):
            labels = torch.randint(classes, (self.how.batch_size,), generator=random)
            noise = torch.randn((len(labels), self.generator.latent), generator=random)
            samples = self.generate(noise, labels, random)
            made += torch.bincount(labels, minlength=classes)
            with torch.no_grad():
                batch = samples, self.ensemble(samples)
            pool = [*pool, batch] if self.how.pool else [batch]
            self.student.train()
            for row in torch.randperm(len(pool), generator=random).tolist():
                self.distil(*pool[row])
        return made

    def generate(self, noise: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
        """Data generation: steps of the generator on one batch of noise and labels, then what it makes of it."""
        if self.how.noise:
            return torch.rand((len(labels), *self.generator.shape), generator=random)
        self.student.eval()
        for _ in range(self.how.generator_steps):
            self.moves_generator.zero_grad()
            self.loss(noise, labels).backward()
            self.moves_generator.step()
        with torch.no_grad():
            return self.generator(noise, labels)

    def loss(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Eq. 5, L_gen = L_CE + λ1 L_BN + λ2 L_div."""
        samples = self.generator(noise, labels)
        with watched_statistics(list(self.ensemble.members)) as gaps:
            scores = self.ensemble(samples)
        same = F.cross_entropy(scores, labels)  # eq. 2
        statistics = sum(gaps, samples.new_zeros(())) / len(self.ensemble.members)
        boundary = boundary_loss(scores, self.student(samples))
        self.parts = Parts(float(same.detach()), float(statistics.detach()), float(boundary.detach()))
        return same + self.how.statistics * statistics + self.how.boundary * boundary

    def distil(self, samples: Tensor, scores: Tensor) -> None:
        """Model distillation: a step down KL(D ‖ f_S) (eq. 6)."""
        self.moves_model.zero_grad()
        divergence(scores, self.student(samples)).mean().backward()
        self.moves_model.step()
