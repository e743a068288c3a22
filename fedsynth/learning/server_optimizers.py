"""Server optimisers of FedOpt (Reddi et al. 2021, algorithm 2): the averaged change is treated as a gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsynth.learning.weights import Weights

Memory = dict[str, Weights]


def server_step(
    model: Weights,
    target: Weights,
    memory: Memory,
    trained: set[str],
    kind: str,
    lr: float,
    momentum: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> Weights:
    """Move the model towards `target`, the clients' average. Entries that are not trained take the average."""
    if kind == "sgd":
        move = _sgd(memory, lr, momentum)
    else:
        move = _adaptive(memory, kind, lr, beta1, beta2, tau)
    return {
        name: move(name, model[name].double(), entry.double()).to(entry.dtype) if name in trained else entry
        for name, entry in target.items()
    }


def _sgd(memory: Memory, lr: float, momentum: float) -> Callable[[str, Tensor, Tensor], Tensor]:
    speeds = memory.setdefault("speed", {})

    def move(name: str, now: Tensor, target: Tensor) -> Tensor:
        if momentum == 0:
            return (1 - lr) * now + lr * target  # with lr = 1 this is the average, to the last bit
        speeds[name] = momentum * speeds.get(name, torch.zeros_like(now)) + (target - now)
        return now + lr * speeds[name]

    return move


def _adaptive(
    memory: Memory, kind: str, lr: float, beta1: float, beta2: float, tau: float
) -> Callable[[str, Tensor, Tensor], Tensor]:
    first, second = memory.setdefault("first", {}), memory.setdefault("second", {})

    def move(name: str, now: Tensor, target: Tensor) -> Tensor:
        change = target - now
        square = change.square()
        m = first.get(name, torch.zeros_like(now))
        v = second.get(name, torch.full_like(now, tau**2))
        first[name] = m = beta1 * m + (1 - beta1) * change
        if kind == "adagrad":
            v = v + square
        elif kind == "yogi":
            v = v - (1 - beta2) * square * torch.sign(v - square)
        else:
            v = beta2 * v + (1 - beta2) * square
        second[name] = v
        return now + lr * m / (v.sqrt() + tau)

    return move
