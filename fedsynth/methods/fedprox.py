"""FedProx (Li et al. 2020, eq. 2): the local objective has a proximal term μ/2 · ‖w − w_t‖².

Deviations: none. All clients do the same number of epochs (the paper's γ-inexactness allows fewer). With mu = 0 it is
FedAvg to the last bit.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import LocalRule, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.objectives import Proximal
from fedsynth.learning.training import Objective


class ProximalRule(LocalRule, name="proximal"):
    """Stay near the received model."""

    mu: float = Field(0.001, ge=0, description="weight of the proximal term")

    def begin(self, visit: Visit) -> Objective:
        return Proximal(visit.net, visit.received, self.mu)


class FedProxConfig(LoopConfig):
    """FedProx's setting; 0.001 is FedDPMS's choice for the comparison."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"mu": (1e-4, 1.0)}

    mu: float = Field(0.001, ge=0, description="weight of the proximal term")


@method("fedprox", config=FedProxConfig, fedavg_when={"mu": 0.0})
def fedprox(fed: Federation, cfg: FedProxConfig) -> Outcome:
    """FedAvg whose clients stay near the global model (proximal term)."""
    state = federated_loop(fed, cfg, objective=ProximalRule(mu=cfg.mu))
    return loop_outcome(state)
