"""FedPer (Arivazhagan et al. 2019, algorithms 1 and 2): base layers are shared, the last layers are each client's own.

A client trains both together, (W_B, W_Pj) ← SGD_j(W_B, W_Pj, η), and sends the base alone; the server averages it,
W_B ← Σ γ_j W_Bj with γ_j = n_j / N. Personal layers never leave. (FedRep trains the two parts in turn.)

Deviations: every client's personal layers start from the same weights; the paper's start from weights of its own. A
client that is not sampled waits, where in the paper all take part.
"""

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.federation import Federation, Outcome, method


class FedPerConfig(LoopConfig):
    """Setting of FedPer."""

    personal_layers: int = Field(
        1,
        ge=1,
        description="K_P: how many of the last layers are each client's own; 1 is the last linear layer, and blocks of "
        "a ResNet count as one",
    )


@method("fedper", config=FedPerConfig)
def fedper(fed: Federation, cfg: FedPerConfig) -> Outcome:
    """The last layers stay at the clients, everything before them is averaged: one model per client."""
    return federated_loop(fed, cfg, keeps=cfg.personal_layers)
