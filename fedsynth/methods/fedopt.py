"""FedOpt (Reddi et al. 2021, algorithm 2): the averaged change of the clients is the gradient of a server optimiser.

FedAdam, FedYogi, FedAdagrad, and momentum (FedAvgM, with `optimizer = "sgd"`).

Deviations: the average is weighted by examples, as in FedAvg (the paper's algorithm shows the plain mean and its
experiments weigh by examples); BatchNorm statistics take the average. `optimizer = "sgd"` with `server_lr = 1` and
`momentum = 0` is FedAvg, bit-identical.
"""

from __future__ import annotations

from fedsynth.components.slots import Memory, RoundInfo, ServerOptimizer
from fedsynth.federation import method
from fedsynth.learning.server_optimizers import AdaptiveSettings, server_step
from fedsynth.learning.weights import Weights


@method(
    "fedopt", fedavg_when={"optimizer": "sgd", "server_lr": 1.0, "momentum": 0.0}, search={"server_lr": (1e-3, 0.3)}
)
class AdaptiveServer(AdaptiveSettings, ServerOptimizer, name="fedopt"):
    """A server optimiser (Adam, Yogi, Adagrad, momentum) on the averaged change."""

    def step(self, model: Weights, target: Weights, memory: Memory, info: RoundInfo) -> Weights:
        return server_step(model, target, memory.setdefault("server", {}), info.trained, self)
