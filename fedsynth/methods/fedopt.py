"""FedOpt (Reddi et al. 2021, algorithm 2): the averaged change of the clients is the gradient of a server optimiser.

FedAdam, FedYogi, FedAdagrad, and momentum (FedAvgM, with `optimizer = "sgd"`).

Deviations: the average is weighted by examples, as in FedAvg (the paper's algorithm shows the plain mean and its
experiments weigh by examples); BatchNorm statistics take the average. `optimizer = "sgd"` with `server_lr = 1` and
`momentum = 0` is FedAvg to the last bit.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsynth.federation import Federation, Outcome, method
from fedsynth.methods.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.methods.slots import AdaptiveServer


class FedOptConfig(LoopConfig):
    """FedOpt's settings."""

    optimizer: Literal["sgd", "adam", "yogi", "adagrad"] = Field("adam", description="the server's optimiser")
    server_lr: float = Field(0.01, gt=0, description="the server's learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum, for sgd")
    beta1: float | None = Field(None, ge=0, lt=1, description="decay of the first moment (0.9; for adagrad 0)")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(1e-3, gt=0, description="adaptivity: larger is closer to plain averaging")


@method("fedopt", config=FedOptConfig)
def fedopt(fed: Federation, cfg: FedOptConfig) -> Outcome:
    """A server optimiser (Adam, Yogi, Adagrad, momentum) on the averaged change."""
    server = AdaptiveServer(**{name: getattr(cfg, name) for name in AdaptiveServer.model_fields})
    state = federated_loop(fed, cfg, server=server)
    return loop_outcome(state)
