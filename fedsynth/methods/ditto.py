"""Ditto (Li et al. 2021, algorithm 1): FedAvg, and beside it a model per client that is drawn towards the global one.

In every round a client first trains its own model v on its loss + λ/2 · ‖v − w‖², w the global model it has just
received, then takes part in FedAvg as always. v never leaves.

Deviations: the paper's own model takes so many steps a round; here as many epochs as the shared training. Both start
from the same weights. With lam = 0 the personal models are `local` and the global one is FedAvg, to the last bit.
"""

from __future__ import annotations

import copy
from typing import ClassVar

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.components.slots import LocalRule, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.objectives import Proximal
from fedsynth.learning.training import CrossEntropy, Objective, fit
from fedsynth.learning.weights import load_weights, weights_of


class DittoRule(LocalRule, name="ditto"):
    """Train the client's own model near the received one, then the received one on cross-entropy."""

    unprotected: ClassVar[str] = "the client's own model is trained on its data without protection"

    lam: float = Field(0.1, ge=0, description="λ: how strongly personal models are drawn to the global one")

    def begin(self, visit: Visit) -> Objective:
        client, net = visit.client, copy.deepcopy(visit.net)
        load_weights(net, client.state.get("alone", visit.received))
        x, y = client.data.train.tensors()
        fit(net, x, y, visit.training, client.rng("batches"), Proximal(net, visit.received, self.lam))
        client.state["alone"] = weights_of(net)
        return CrossEntropy()


class DittoConfig(LoopConfig):
    """Ditto's setting; the paper chooses λ from 0.05, 0.1, 1 and 2."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"lam": (0.02, 2.0)}

    lam: float = Field(0.1, ge=0, description="λ: how strongly personal models are drawn to the global one")


@method("ditto", config=DittoConfig)
def ditto(fed: Federation, cfg: DittoConfig) -> Outcome:
    """FedAvg, and a personal model for each client that is drawn towards the global one."""
    state = federated_loop(fed, cfg, objective=DittoRule(lam=cfg.lam))
    return Outcome(state.model, personal="alone", no_global=state.no_global)
