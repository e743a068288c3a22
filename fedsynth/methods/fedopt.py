"""FedOpt (Reddi et al. 2021, algorithm 2): the averaged change of the clients is the gradient of a server optimiser.

FedAdam, FedYogi, FedAdagrad, and momentum (FedAvgM, with `optimizer = "sgd"`).

Deviations: the average is weighted by examples, as in FedAvg (the paper's algorithm shows the plain mean and its
experiments weigh by examples); BatchNorm statistics take the average. `optimizer = "sgd"` with `server_lr = 1` and
`momentum = 0` is FedAvg, bit-identical.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedsynth.components.slots import Memory, RoundInfo, ServerOptimizer
from fedsynth.federation import method
from fedsynth.learning.server_optimizers import server_step
from fedsynth.learning.weights import Weights


@method("fedopt", fedavg_when={"optimizer": "sgd", "server_lr": 1.0, "momentum": 0.0})
class AdaptiveServer(ServerOptimizer, name="fedopt"):
    """A server optimiser (Adam, Yogi, Adagrad, momentum) on the averaged change."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"server_lr": (1e-3, 0.3)}

    optimizer: Literal["sgd", "adam", "yogi", "adagrad"] = Field("adam", description="the server's optimiser")
    server_lr: float = Field(0.01, gt=0, description="the server's learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum, for sgd")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of the first moment (0.9; for adagrad 0)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(1e-3, gt=0, description="adaptivity: larger is closer to plain averaging")

    @property
    def _first_decay(self) -> float:
        """β1 of the paper's experiments where none was given."""
        return self.beta1 if self.beta1 is not None else 0.0 if self.optimizer == "adagrad" else 0.9

    def step(self, model: Weights, target: Weights, memory: Memory, info: RoundInfo) -> Weights:
        return server_step(
            model,
            target,
            memory.setdefault("server", {}),
            info.trained,
            self.optimizer,
            self.server_lr,
            self.momentum,
            self._first_decay,
            self.beta2,
            self.tau,
        )
