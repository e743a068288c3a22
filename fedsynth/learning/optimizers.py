"""The settings of one local training, its optimiser, and how the rate changes from round to round."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import torch
from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn
from torch.optim import Optimizer

from fedsynth.errors import ConfigError, nearest


class LocalTraining(BaseModel, frozen=True, extra="forbid"):
    """How one model is trained on one data set."""

    epochs: NonNegativeInt = Field(1, description="Passes over the data; 0 leaves the model as it is.")
    batch_size: PositiveInt = Field(32, description="Examples a step.")
    lr: PositiveFloat = Field(0.05, description="Learning rate.")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="The optimiser.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Weight decay.")
    max_grad_norm: PositiveFloat | None = Field(
        None, description="Longer gradients are shortened to this norm; none given means no limit."
    )


class PlainSGD:
    """SGD without momentum or decay: bit-identical to `torch.optim.SGD`, less its bookkeeping.

    For the small networks here that bookkeeping is a twentieth of a step.
    """

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        self.params, self.lr = params, lr

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.params:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """w ← w − lr · gradient."""
        pairs = [(parameter, parameter.grad) for parameter in self.params if parameter.grad is not None]
        torch._foreach_add_([p for p, _ in pairs], [gradient for _, gradient in pairs], alpha=-self.lr)


def make_optimizer(params: Iterable[nn.Parameter], training: LocalTraining) -> PlainSGD | Optimizer:
    """The optimiser of the settings, in its fused form (one kernel for all parameters) where possible."""
    trained = [parameter for parameter in params if parameter.requires_grad]
    if training.optimizer == "sgd" and not (training.momentum or training.weight_decay):
        return PlainSGD(trained, training.lr)
    if training.optimizer != "sgd" and training.momentum:
        raise ConfigError(
            f'momentum = {training.momentum} has no meaning for "{training.optimizer}"; '
            'remove it or choose optimizer = "sgd".'
        )
    kinds: dict[str, Callable[..., Optimizer]] = {
        "sgd": partial(torch.optim.SGD, momentum=training.momentum),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    return build_fused(partial(kinds[training.optimizer], trained, lr=training.lr, weight_decay=training.weight_decay))


def build_fused(build: Callable[..., Optimizer]) -> Optimizer:
    """An optimiser in its fused form, where this device and number type have a fused kernel."""
    try:
        return build(fused=True)
    except RuntimeError:
        return build(foreach=True)


def learning_rate(schedule: str, base: float, round: int, rounds: int, step: int = 10, gamma: float = 0.5) -> float:
    """The rate of a round (counted from 1) under a schedule: constant, step, exponential or cosine.

    `step` multiplies by gamma every `step` rounds (FedDPMS halves every 10); `exponential` reaches the same
    factor smoothly; `cosine` falls from the base towards zero over all rounds.
    """
    done = round - 1
    schedules: dict[str, Callable[[], float]] = {
        "constant": lambda: base,
        "step": lambda: base * gamma ** (done // step),
        "exponential": lambda: base * gamma ** (done / step),
        "cosine": lambda: base * (1 + math.cos(math.pi * done / rounds)) / 2,
    }
    if schedule not in schedules:
        raise ConfigError(f'There is no learning rate schedule "{schedule}".{nearest(schedule, schedules)}')
    return schedules[schedule]()
