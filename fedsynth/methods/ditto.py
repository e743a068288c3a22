"""Ditto (Li et al. 2021, algorithm 1): FedAvg, and beside it a model per client that is drawn towards the global one.

In every round a client first trains its own model v on its loss + λ/2 · ‖v − w‖², w the global model it has just
received, then takes part in FedAvg as always. v never leaves.

Deviations: the paper's own model takes so many steps a round; here as many epochs as the shared training. Both start
from the same weights. With lam = 0 the personal models are `local` and the global one is FedAvg, bit-identical.
"""

import copy
from typing import ClassVar

from pydantic import Field

from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import method
from fedsynth.learning.objectives import Proximal
from fedsynth.learning.training import CrossEntropy, Objective, fit
from fedsynth.learning.weights import load_weights, weights_of


@method("ditto", search={"lam": (0.02, 2.0)})
class DittoObjective(LocalObjective, name="ditto"):
    """FedAvg, and a personal model for each client that is drawn towards the global one."""

    # The client's own model is trained near the received one, then the received one on cross-entropy.

    personal: ClassVar[str] = "alone"

    unprotected: ClassVar[str] = "the client's own model is trained on its data without protection"

    lam: float = Field(0.1, ge=0, description="λ: how strongly personal models are drawn to the global one")

    def begin(self, local: LocalContext) -> Objective:
        client, net = local.client, copy.deepcopy(local.net)
        load_weights(net, client.state.get("alone", local.received))
        x, y = client.data.train.tensors()
        fit(net, x, y, local.training, client.rng("batches"), Proximal(net, local.received, self.lam))
        client.state["alone"] = weights_of(net)
        return CrossEntropy()
