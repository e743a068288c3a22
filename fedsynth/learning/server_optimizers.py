"""Server optimisers of FedOpt (Reddi et al. 2021, algorithm 2): the averaged change is treated as a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedsynth.learning.weights import Weights

Memory = dict[str, Weights]
Move = Callable[[str, Tensor, Tensor], Tensor]
"""From an entry's name, its value and the clients' average to its next value."""


class AdaptiveSettings(BaseModel):
    """Settings of the server's optimiser."""

    optimizer: Literal["sgd", "adam", "yogi", "adagrad"] = Field("adam", description="the server's optimiser")
    server_lr: float = Field(0.01, gt=0, description="the server's learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum, for sgd")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of the first moment (0.9; for adagrad 0)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(1e-3, gt=0, description="adaptivity: larger is closer to plain averaging")

    @property
    def first_decay(self) -> float:
        """β1 of the paper's experiments where none was given."""
        return self.beta1 if self.beta1 is not None else 0.0 if self.optimizer == "adagrad" else 0.9


def server_step(
    model: Weights, target: Weights, memory: Memory, trained: set[str], settings: AdaptiveSettings
) -> Weights:
    """Move the model towards `target`, the clients' average. Entries that are not trained take the average."""
    move = _sgd(memory, settings) if settings.optimizer == "sgd" else _adaptive(memory, settings)
    return {
        name: move(name, model[name].double(), entry.double()).to(entry.dtype) if name in trained else entry
        for name, entry in target.items()
    }


def _sgd(memory: Memory, settings: AdaptiveSettings) -> Move:
    speeds = memory.setdefault("speed", {})
    lr, momentum = settings.server_lr, settings.momentum

    def move(name: str, now: Tensor, target: Tensor) -> Tensor:
        if momentum == 0:
            return (1 - lr) * now + lr * target  # with lr = 1 this is bit-identical to the average
        speeds[name] = momentum * speeds.get(name, torch.zeros_like(now)) + (target - now)
        return now + lr * speeds[name]

    return move


def _adaptive(memory: Memory, settings: AdaptiveSettings) -> Move:
    first, second = memory.setdefault("first", {}), memory.setdefault("second", {})
    beta1, beta2, tau = settings.first_decay, settings.beta2, settings.tau

    def move(name: str, now: Tensor, target: Tensor) -> Tensor:
        change = target - now
        square = change.square()
        m = first.get(name, torch.zeros_like(now))
        v = second.get(name, torch.full_like(now, tau**2))
        first[name] = m = beta1 * m + (1 - beta1) * change
        if settings.optimizer == "adagrad":
            v = v + square
        elif settings.optimizer == "yogi":
            v = v - (1 - beta2) * square * torch.sign(v - square)
        else:
            v = beta2 * v + (1 - beta2) * square
        second[name] = v
        return now + settings.server_lr * m / (v.sqrt() + tau)

    return move
