"""DP-SGD (Abadi et al. 2016): every record's gradient is clipped, their sum gets noise, batches are Poisson samples.

What it proves is about one record, added or removed. The number of examples is taken as known: it decides the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedsynth.errors import ConfigError, UserError
from fedsynth.privacy.guarantee import SampledGaussianEvent
from fedsynth.privacy.mechanisms import clip_rows

Loss = Callable[[Tensor, Tensor], Tensor]
Gradients = dict[str, Tensor]

CHUNK_BYTES = 64 * 2**20  # of gradients, one per record, held at a time
CHUNK_RECORDS = 128


class Stepper(Protocol):
    """An optimiser of the model's parameters; all that is needed of it is that it takes a step."""

    def step(self) -> Any: ...


@dataclass(frozen=True)
class PrivateFit:
    """What a private training did. It reports no loss: that would be a release of its own."""

    steps: int
    examples: int  # that were trained on, each time they were
    event: SampledGaussianEvent | None  # None without noise: then nothing is proven
    loss: None = None


def dp_fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    clip: float,
    noise: float,
    rng: np.random.Generator,
    optimizer: Stepper | None = None,
    lr: float | None = None,
    loss: Loss = F.cross_entropy,
) -> PrivateFit:
    """Train the model in place, privately per record.

    A step takes every example by itself with chance q = batch_size / n (at most 1). There are epochs · ⌈n / batch_size⌉
    steps. The clipped gradients are summed, get Gaussian noise of standard deviation noise · clip, and are divided by
    the expected size of a batch, q · n. A batch that happens to be empty takes a step of pure noise.
    Give an `optimizer` of the model's parameters, or `lr` alone for plain gradient descent.
    `loss` gets the scores and labels of one example as a batch of one.
    """
    check_model(model)
    if len(x) != len(y):
        raise UserError(f"There are {len(x)} examples but {len(y)} labels; every example needs one.")
    rate = dp_rate(len(x), batch_size)
    steps = dp_steps(len(x), batch_size, epochs)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    stepper = optimizer or torch.optim.SGD(trained.values(), lr=_given(lr))
    like = next(iter(trained.values()))
    x, y = x.to(like.device, like.dtype), y.to(like.device)
    summed = _ClippedSum(model, loss, clip)
    model.train()
    seen = 0
    for _ in range(steps):
        rows = np.flatnonzero(rng.random(len(x)) < rate)
        seen += len(rows)
        totals = summed(x, y, rows)
        for name, parameter in trained.items():
            drawn = rng.standard_normal(tuple(parameter.shape), dtype=np.float32)
            noisy = totals[name] + noise * clip * torch.from_numpy(drawn).to(parameter.device, parameter.dtype)
            parameter.grad = torch.empty_like(parameter).copy_(noisy / (rate * len(x)))
        stepper.step()
    model.zero_grad(set_to_none=True)
    event = SampledGaussianEvent(rate=rate, noise=noise, steps=steps) if noise > 0 else None
    return PrivateFit(steps, seen, event)


def dp_rate(examples: int, batch_size: int) -> float:
    """The chance of every example to be in a batch."""
    return min(1.0, batch_size / examples) if examples else 0.0


def dp_steps(examples: int, batch_size: int, epochs: int) -> int:
    """How many steps `dp_fit` takes: none without examples."""
    return epochs * math.ceil(examples / batch_size)


def check_model(model: nn.Module) -> None:
    """Refuse layers that mix the records of a batch or keep statistics of them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            isinstance(module, nn.modules.batchnorm._BatchNorm) or module.track_running_stats
        ):
            raise ConfigError(
                f'Private training cannot use the layer "{name}" ({type(module).__name__}): it mixes the examples of '
                'a batch. Set model.norm = "group" (or "none").'
            )


class _ClippedSum:
    """The sum of the clipped gradients of some records, a few records at a time."""

    def __init__(self, model: nn.Module, loss: Loss, clip: float) -> None:
        self.clip = clip
        self.model = model
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.fixed = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        self.fixed |= dict(model.named_buffers())
        size = sum(p.numel() * p.element_size() for p in self.trained.values())
        self.chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // max(1, size)))

        def loss_of_one(trained: Gradients, fixed: Gradients, x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(model, {**trained, **fixed}, (x.unsqueeze(0),)), y.unsqueeze(0))

        self.gradients = vmap(grad(loss_of_one), in_dims=(None, None, 0, 0), randomness="different")

    def __call__(self, x: Tensor, y: Tensor, rows: np.ndarray) -> Gradients:
        now = {name: p.detach() for name, p in self.trained.items()}
        totals = {name: torch.zeros_like(p) for name, p in now.items()}
        for chunk in torch.from_numpy(rows).to(y.device).split(self.chunk):
            if len(chunk) == 0:
                continue
            each = self.gradients(now, self.fixed, x[chunk], y[chunk])
            flat = torch.cat([g.reshape(len(chunk), -1) for g in each.values()], dim=1)
            total = clip_rows(flat, self.clip).sum(0)
            for name, part in zip(each, total.split([now[name].numel() for name in each]), strict=True):
                totals[name] += part.reshape(now[name].shape)
        return totals


def _given(lr: float | None) -> float:
    if lr is None:
        raise ConfigError("Private training needs an optimizer or a learning rate.")
    return lr
