"""FedDyn (Acar et al. 2021, algorithm 1): a dynamic regulariser makes local and global optima agree.

A client minimises L_i(w) − ⟨h_i, w⟩ + α/2 ‖w − w_t‖² and sets h_i ← h_i − α (w_i − w_t). The server keeps
h ← h − α/m Σ_{i answered} (w_i − w_t), m being all clients, and sets w ← mean(w_i) − h/α.

Deviations: none for the weights (the mean is unweighted, as in the paper); BatchNorm statistics are averaged.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedsynth.components.slots import Aggregator, LocalContext, LocalObjective, Memory, RoundInfo
from fedsynth.federation import method
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.objectives import Dynamic
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights


class DynamicObjective(LocalObjective, name="dynamic"):
    """The regularised objective; the linear term is the client's own and stays with it."""

    unprotected: ClassVar[str] = "its clients and server remember the same changes, which protection makes differ"

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser")

    def begin(self, local: LocalContext) -> Objective:
        return Dynamic(local.net, local.received, _linear(local), self.alpha)

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        now = {name: p.detach().cpu() for name, p in local.net.named_parameters()}
        local.client.state["linear"] = {
            name: h_i - self.alpha * (now[name] - local.received[name]) for name, h_i in _linear(local).items()
        }
        return {}


def _linear(local: LocalContext) -> Weights:
    zero = {name: torch.zeros_like(local.received[name]) for name, _ in local.net.named_parameters()}
    linear: Weights = local.client.state.get("linear", zero)
    return linear


@method("feddyn", objective=DynamicObjective, search={"alpha": (1e-3, 1.0)})
class DynamicServer(Aggregator, name="feddyn"):
    """Dynamic regularisation: local optima are drawn to the global one."""

    # The plain mean, corrected by the server's own linear term.

    unprotected: ClassVar[str] = DynamicObjective.unprotected

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser (the paper tries .001, .01, .1)")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        mean = weighted_mean((reply.model, 1) for reply in replies.values())
        h = memory.setdefault("h", {name: torch.zeros_like(model[name]) for name in sorted(info.trained)})
        share = len(replies) / info.clients
        for name in h:
            h[name] = h[name] - self.alpha * share * (mean[name] - model[name])
        return mean | {name: mean[name] - h[name] / self.alpha for name in h}
