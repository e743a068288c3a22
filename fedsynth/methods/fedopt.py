"""FedOpt (Reddi et al. 2021, algorithm 2): the averaged change of the clients is the gradient of a server optimiser.

FedAdam, FedYogi, FedAdagrad, and momentum (FedAvgM, with `optimizer = "sgd"`).

Deviations: the average is weighted by examples, as in FedAvg (the paper's algorithm shows the plain mean and its
experiments weigh by examples); BatchNorm statistics take the average. `optimizer = "sgd"` with `server_lr = 1` and
`momentum = 0` is FedAvg to the last bit.
"""

from __future__ import annotations

from typing import ClassVar

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import AdaptiveServer
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.server_optimizers import AdaptiveSettings


class FedOptConfig(AdaptiveSettings, LoopConfig):
    """FedOpt's settings are those of the slot value."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"server_lr": (1e-3, 0.3)}


@method("fedopt", config=FedOptConfig, fedavg_when={"optimizer": "sgd", "server_lr": 1.0, "momentum": 0.0})
def fedopt(fed: Federation, cfg: FedOptConfig) -> Outcome:
    """A server optimiser (Adam, Yogi, Adagrad, momentum) on the averaged change."""
    server = AdaptiveServer(**{name: getattr(cfg, name) for name in AdaptiveSettings.model_fields})
    state = federated_loop(fed, cfg, server=server)
    return loop_outcome(state)
