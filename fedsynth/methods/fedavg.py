"""FedAvg (McMahan et al. 2017, algorithm 1): clients train the received model, the server averages what they send.

Deviations: BatchNorm's running statistics are averaged like the weights by default (`train.norm_buffers`); the paper
has no BatchNorm. Weights are the numbers of training examples of the clients that answered.
"""

from __future__ import annotations

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.federation import Federation, Outcome, method


class FedAvgConfig(LoopConfig):
    """FedAvg has no settings of its own."""


@method("fedavg", config=FedAvgConfig, fedavg_when={})
def fedavg(fed: Federation, cfg: FedAvgConfig) -> Outcome:
    """Average of locally trained models, weighted by examples."""
    state = federated_loop(fed, cfg)
    return loop_outcome(state)
