"""DP-SGD (Abadi et al. 2016): every record's gradient is clipped, their sum gets noise, batches are Poisson samples.

What it proves is about one record, added or removed, beside a number of records that is public: that number decides
the sampling rate, the number of steps and the divisor, whatever the true one is.

All that is random here is part of the proof and must be secret: who is in a batch, the noise, and what the network
draws for each record (dropout, a sampled latent). Were it known and dealt by position in the batch, one record more
would change what all later ones get.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedsynth.errors import ConfigError, UserError
from fedsynth.privacy.guarantee import SampledGaussianEvent
from fedsynth.privacy.mechanisms import clip_rows
from fedsynth.seeding import seed_torch

Loss = Callable[[Tensor, Tensor], Tensor]
Gradients = dict[str, Tensor]

CHUNK_BYTES = 64 * 2**20  # of gradients, one per record, held at a time
CHUNK_RECORDS = 128


class Stepper(Protocol):
    """An optimiser of the model's parameters; all that is needed of it is that it takes a step."""

    def step(self) -> Any: ...


class DpSgdNoise(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How much one record may add to a sum of gradients, and the noise that hides it."""

    clip: PositiveFloat = Field(description="longest gradient of a record; the rest is cut")
    noise: NonNegativeFloat = Field(description="noise multiplier: its standard deviation divided by the clip")

    @property
    def std(self) -> float:
        """The standard deviation of the noise."""
        return self.noise * self.clip


class DpSgdTraining(DpSgdNoise):
    """A private training. The number of examples is the public one, whatever the true one is."""

    examples: NonNegativeInt = Field(description="public number of examples: decides the rate, steps and the divisor")
    batch_size: PositiveInt = Field(description="examples of a batch, on average")
    epochs: NonNegativeInt = Field(description="passes over the data, on average")

    @property
    def rate(self) -> float:
        """The chance of every example to be in a batch."""
        return dp_rate(self.examples, self.batch_size)

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        return dp_steps(self.examples, self.batch_size, self.epochs)

    @property
    def event(self) -> SampledGaussianEvent | None:
        """What it costs; None without noise, which proves nothing."""
        return SampledGaussianEvent(rate=self.rate, noise=self.noise, steps=self.steps) if self.noise > 0 else None


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
    training: DpSgdTraining,
    optimizer: Stepper,
    rng: np.random.Generator,
    loss: Loss = F.cross_entropy,
) -> PrivateFit:
    """Train the model in place, privately per record, by an optimiser of its parameters.

    A step takes every example by itself with chance q = `training.rate`. The clipped gradients are summed, get Gaussian
    noise, and are divided by q · n, where n is the public number of examples. A batch that happens to be empty takes a
    step of pure noise. `loss` gets the scores and labels of one example as a batch of one. `rng` must be secret.
    """
    check_model(model)
    if len(x) != len(y):
        raise UserError(f"There are {len(x)} examples but {len(y)} labels; every example needs one.")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    x, y = x.to(trained[0].device, trained[0].dtype), y.to(trained[0].device)
    clipped_sum = _ClippedSum(model, loss, training.clip)
    model.train()
    seen = 0
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        for _ in range(training.steps):
            rows = poisson_batch(len(x), training.rate, rng)
            seen += len(rows)
            seed_torch(int(rng.integers(2**63)))  # for what the network draws, record by record
            noisy = noisy_sum(clipped_sum(x, y, rows), training.std, rng)
            set_gradients(trained, noisy / (training.rate * training.examples))
            optimizer.step()
    model.zero_grad(set_to_none=True)
    return PrivateFit(training.steps, seen, training.event)


def poisson_batch(examples: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """The rows of a batch: every example by itself, with the same chance."""
    return np.flatnonzero(rng.random(examples) < rate)


def noisy_sum(total: Tensor, std: float, rng: np.random.Generator) -> Tensor:
    """A sum of clipped gradients with its noise, in float64: rounding must not add to what one record can move."""
    drawn = torch.from_numpy(rng.standard_normal(len(total), dtype=np.float32))
    return total.double() + std * drawn.to(total.device)


def set_gradients(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Give every parameter its part of one long vector as its gradient."""
    parts = gradient.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))


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

    def __call__(self, x: Tensor, y: Tensor, rows: np.ndarray) -> Tensor:
        """One long vector, the parameters one after the other."""
        now = {name: p.detach() for name, p in self.trained.items()}
        total = torch.zeros(sum(p.numel() for p in now.values()), dtype=torch.float64, device=y.device)
        for chunk in torch.from_numpy(rows).to(y.device).split(self.chunk):
            if len(chunk) == 0:
                continue
            each = self.gradients(now, self.fixed, x[chunk], y[chunk])
            flat = torch.cat([each[name].reshape(len(chunk), -1) for name in now], dim=1)
            total += clip_rows(flat, self.clip).sum(0, dtype=torch.float64)
        return total
