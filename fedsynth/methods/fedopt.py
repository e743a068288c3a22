"""FedOpt (Reddi et al. 2021, algorithm 2): the averaged change of the clients is the gradient of a server optimiser.

FedAdam, FedYogi, FedAdagrad, and momentum (FedAvgM, with `optimizer = "sgd"`).

Deviations: the average is weighted by examples, as in FedAvg (the paper's algorithm shows the plain mean and its
experiments weigh by examples); BatchNorm statistics take the average. `optimizer = "sgd"` with `server_lr = 1` and
`momentum = 0` is FedAvg, bit-identical.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.slots import Memory, RoundInfo, ServerOptimizer
from fedsynth.federation import method
from fedsynth.learning.weights import Weights


@method(
    "fedopt", fedavg_when={"optimizer": "sgd", "server_lr": 1.0, "momentum": 0.0}, search={"server_lr": (1e-3, 0.3)}
)
class AdaptiveServer(ServerOptimizer, name="fedopt"):
    """A server optimiser (Adam, Yogi, Adagrad, momentum) on the averaged change."""

    optimizer: Literal["sgd", "adam", "yogi", "adagrad"] = Field("adam", description="the server's optimiser")
    server_lr: float = Field(0.01, gt=0, description="the server's learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum, for sgd")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of the first moment (0.9; for adagrad 0)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(1e-3, gt=0, description="adaptivity: larger is closer to plain averaging")

    def step(self, model: Weights, target: Weights, memory: Memory, info: RoundInfo) -> Weights:
        """Move the model towards `target`, the clients' average. Entries that are not trained take the average."""
        kept = memory.setdefault("server", {})
        move = self._move_by_momentum if self.optimizer == "sgd" else self._move_adaptively
        return {
            name: move(name, model[name].double(), entry.double(), kept).to(entry.dtype)
            if name in info.trained
            else entry
            for name, entry in target.items()
        }

    def _move_by_momentum(self, name: str, now: Tensor, target: Tensor, memory: dict[str, Weights]) -> Tensor:
        speeds, lr = memory.setdefault("speed", {}), self.server_lr
        if self.momentum == 0:
            return (1 - lr) * now + lr * target  # with lr = 1 this is bit-identical to the average
        speeds[name] = self.momentum * speeds.get(name, torch.zeros_like(now)) + (target - now)
        return now + lr * speeds[name]

    def _move_adaptively(self, name: str, now: Tensor, target: Tensor, memory: dict[str, Weights]) -> Tensor:
        first, second = memory.setdefault("first", {}), memory.setdefault("second", {})
        beta1 = self.beta1 if self.beta1 is not None else 0.0 if self.optimizer == "adagrad" else 0.9
        beta2, tau = self.beta2, self.tau
        change = target - now
        square = change.square()
        v = second.get(name, torch.full_like(now, tau**2))
        first[name] = m = beta1 * first.get(name, torch.zeros_like(now)) + (1 - beta1) * change
        if self.optimizer == "adagrad":
            v = v + square
        elif self.optimizer == "yogi":
            v = v - (1 - beta2) * square * torch.sign(v - square)
        else:
            v = beta2 * v + (1 - beta2) * square
        second[name] = v
        return now + self.server_lr * m / (v.sqrt() + tau)
