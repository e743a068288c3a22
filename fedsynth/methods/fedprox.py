"""FedProx (Li et al. 2020, eq. 2): the local objective has a proximal term μ/2 · ‖w − w_t‖².

Deviations: none. All clients do the same number of epochs (the paper's γ-inexactness allows fewer). With mu = 0 it is
FedAvg, bit-identical.
"""

from pydantic import Field

from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import method
from fedsynth.learning.objectives import Proximal
from fedsynth.learning.training import Objective


@method("fedprox", fedavg_when={"mu": 0.0}, search={"mu": (1e-4, 1.0)})
class ProximalObjective(LocalObjective, name="proximal"):
    """FedAvg whose clients stay near the global model (proximal term)."""

    mu: float = Field(0.001, ge=0, description="weight of the proximal term")  # FedDPMS's choice for the comparison

    def begin(self, local: LocalContext) -> Objective:
        return Proximal(local.net, local.received, self.mu)
