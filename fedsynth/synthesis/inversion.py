"""Inputs synthesised from a trained network: an input is changed until the network sees a class in it.

One call optimises a whole batch against one frozen network; every input goes its own way, as if it were alone, so that
the result does not depend on how inputs are batched (but for the statistics term, which is about the batch). Plain
PyTorch. Used by Fed-ZDA (zero-shot images, eq. 3) and AggEnhance (class interior points, eq. 11).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsynth.errors import ConfigError
from fedsynth.learning.answers import evaluating
from fedsynth.synthesis.image_priors import NO_PRIORS, Priors, priors_of, shifted

WINDOW = 10  # steps over which a loss is compared


@dataclass(frozen=True)
class Inversion:
    """How inputs are optimised."""

    steps: int = 100
    lr: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    low: float | None = 0.0  # inputs are kept at or above this after every step
    high: float | None = 1.0
    tolerance: float = 0.0  # an input whose cross-entropy falls below this is left as it is
    statistics: float = 0.0  # weight of the BatchNorm statistics (eq. 3); the cross-entropy has weight 1
    reduction: Literal["sum", "mean"] = "sum"  # of the cross-entropy; mean: the statistics weigh alike for any batch
    priors: Priors = NO_PRIORS
    converged: float = 0.0  # stop when ten steps lower the loss of the batch by less than this share of it


Start = Literal["normal", "grey"]
"""What inputs start from: standard Gaussian noise, as published, or a grey in the middle of the data's range."""


def draw_start(kind: Start, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """So many starting points of this shape."""
    noise = torch.from_numpy(rng.standard_normal((count, *shape)).astype(np.float32))
    return noise if kind == "normal" else (0.4 + 0.1 * noise).clamp_(0, 1)


def invert(model: nn.Module, start: Tensor, labels: Tensor, how: Inversion) -> Tensor:
    """Inputs that the model takes for `labels`, from `start` (n, *shape). The model is not changed."""
    how.priors.check(start)
    x = start.detach().clone(memory_format=torch.channels_last if start.dim() == 4 else torch.contiguous_format)
    moving = torch.ones(len(x), dtype=torch.bool, device=x.device)
    step = _Adam(x, how.lr) if how.optimizer == "adam" else lambda x, gradient: x - how.lr * gradient
    watch = _Watch(how.converged)
    with _frozen(model), _tied_statistics(model, how.statistics, watch.terms):
        for index in range(how.steps):
            x.requires_grad_()
            seen = shifted(x, index, how.priors.shifts) if how.priors.shifts else x
            losses = F.cross_entropy(model(seen), labels, reduction="none")
            if how.tolerance > 0:
                moving &= losses.detach() >= how.tolerance
                if not moving.any():
                    break
            # A sum leaves every input the gradient it would have alone.
            loss = losses.sum() if how.reduction == "sum" else losses.mean()
            if how.priors.variation or how.priors.likeness:
                loss = loss + priors_of(x, labels, how.priors)
            (gradient,) = torch.autograd.grad(loss, x)
            with torch.no_grad():
                moved = step(x, gradient)
                if how.tolerance > 0:
                    moved = torch.where(moving.view(-1, *[1] * (x.dim() - 1)), moved, x)
                x = moved if how.low is None and how.high is None else moved.clamp(how.low, how.high)
            if watch.settled(loss):
                break
    return x.detach()


class _Watch:
    """Looks whether the loss of the batch still falls: its mean over ten steps against that of the ten before."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.terms: list[Tensor] | None = [] if least else None  # of the BatchNorm statistics, of the step under way
        self.losses: list[float] = []

    def settled(self, loss: Tensor) -> bool:
        """Take in one step; whether to stop after it. Asked every ten steps, so that a batch is not read every time."""
        if self.terms is None:
            return False
        self.losses.append(float(loss.detach() + sum(self.terms)))
        self.terms.clear()
        if len(self.losses) % WINDOW or len(self.losses) < 2 * WINDOW:
            return False
        before, now = sum(self.losses[-2 * WINDOW : -WINDOW]), sum(self.losses[-WINDOW:])
        return now > (1 - self.least) * before


class _Adam:
    """Adam (0.9, 0.999), element by element, so that inputs do not know of each other."""

    def __init__(self, x: Tensor, lr: float) -> None:
        self.lr, self.count = lr, 0
        self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)

    def __call__(self, x: Tensor, gradient: Tensor) -> Tensor:
        self.count += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = math.sqrt(1 - 0.999**self.count)
        return x - (self.lr / (1 - 0.9**self.count)) * self.first / (self.second.sqrt().div_(scale).add_(1e-8))


class _Tied(torch.autograd.Function):
    """Passes on what enters a BatchNorm layer; on the way back adds the gradient of w (‖μ̄ − μ‖² + ‖σ̄ − σ‖²) (eq. 3).

    Written out, because autograd goes over the activations a dozen times for it: half of the time of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, mean: Tensor, deviation: Tensor, eps: float, weight: float, terms: list[Tensor] | None
    ) -> Tensor:
        normal, of_batch, inverse = torch.native_batch_norm(z, None, None, None, None, True, 0.0, eps)
        off, wide = of_batch - mean, 1 / inverse - deviation
        if terms is not None:
            terms.append(weight * (off.square().sum() + wide.square().sum()))
        scale = 2 * weight * z.shape[1] / z.numel()
        ctx.save_for_backward(normal, scale * off, scale * wide)
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normal, towards_mean, towards_deviation = ctx.saved_tensors
        channels = [1, -1, *[1] * (gradient.dim() - 2)]
        own = torch.addcmul(towards_mean.view(channels), normal, towards_deviation.view(channels))
        return own.add_(gradient), None, None, None, None, None


@contextmanager
def _tied_statistics(model: nn.Module, weight: float, terms: list[Tensor] | None) -> Iterator[None]:
    """Gradients inside have the statistics term of every BatchNorm layer added to them; `terms` gets its values."""

    def tie(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(layer, _BatchNorm)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        stored = (layer.running_var + layer.eps).sqrt()
        return _Tied.apply(inputs[0], layer.running_mean, stored, layer.eps, weight, terms)

    hooks = [layer.register_forward_pre_hook(tie) for layer in require_batch_norm(model)] if weight else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def require_batch_norm(model: nn.Module) -> list[_BatchNorm]:
    """The layers of a model that store statistics of what they see, or an error that names the fix."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        raise ConfigError(
            "Zero-shot images need the statistics that BatchNorm layers store, and this model has none: "
            'choose model.name = "zda_cnn", or model.norm = "batch".'
        )
    return layers


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients of its own; put back as it was afterwards."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with evaluating(model):
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def consensus(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Score of each candidate (AggEnhance, algorithm 2, lines 9 to 17): the summed probability of its class over the
    models that predict its class. `probabilities` is (models, candidates, classes)."""
    own = probabilities.gather(2, labels.view(1, -1, 1).expand(len(probabilities), -1, 1)).squeeze(2)
    agree = probabilities.argmax(2) == labels
    return (own * agree).sum(0)


def choose_by_consensus(candidates: Tensor, scores: Tensor) -> Tensor:
    """For each class the candidate with the best score: `candidates` is (models, classes, *shape)."""
    best = scores.view(candidates.shape[0], candidates.shape[1]).argmax(0)
    return candidates[best, torch.arange(candidates.shape[1])]
