"""FedDyn (Acar et al. 2021, algorithm 1): a dynamic regulariser makes local and global optima agree.

A client minimises L_i(w) − ⟨h_i, w⟩ + α/2 ‖w − w_t‖² and sets h_i ← h_i − α (w_i − w_t). The server keeps
h ← h − α/m Σ_{i answered} (w_i − w_t), m being all clients, and sets w ← mean(w_i) − h/α.

Deviations: none for the weights (the mean is unweighted, as in the paper); BatchNorm statistics are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import Aggregator, LocalRule, Setting, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.objectives import Dynamic
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights


class DynamicRule(LocalRule, name="dynamic"):
    """The regularised objective; the linear term is the client's own and stays with it."""

    unprotected: ClassVar[str] = "its clients and server remember the same changes, which protection makes differ"

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser")

    def begin(self, visit: Visit) -> Objective:
        return Dynamic(visit.net, visit.received, _linear(visit), self.alpha)

    def finish(self, visit: Visit, fit: FitResult) -> dict[str, Any]:
        now = {name: p.detach().cpu() for name, p in visit.net.named_parameters()}
        visit.client.state["linear"] = {
            name: h_i - self.alpha * (now[name] - visit.received[name]) for name, h_i in _linear(visit).items()
        }
        return {}


def _linear(visit: Visit) -> Weights:
    zero = {name: torch.zeros_like(visit.received[name]) for name, _ in visit.net.named_parameters()}
    linear: Weights = visit.client.state.get("linear", zero)
    return linear


class DynamicServer(Aggregator, name="feddyn"):
    """The plain mean, corrected by the server's own linear term."""

    unprotected: ClassVar[str] = DynamicRule.unprotected

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser; the same as the clients'")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        mean = weighted_mean((reply.model, 1) for reply in replies.values())
        h = memory.setdefault("h", {name: torch.zeros_like(model[name]) for name in sorted(setting.trained)})
        share = len(replies) / setting.clients
        for name in h:
            h[name] = h[name] - self.alpha * share * (mean[name] - model[name])
        return mean | {name: mean[name] - h[name] / self.alpha for name in h}


class FedDynConfig(LoopConfig):
    """FedDyn's setting."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"alpha": (1e-3, 1.0)}

    alpha: float = Field(0.01, gt=0, description="strength of the regulariser (the paper tries .001, .01, .1)")


@method("feddyn", config=FedDynConfig)
def feddyn(fed: Federation, cfg: FedDynConfig) -> Outcome:
    """Dynamic regularisation: local optima are drawn to the global one."""
    state = federated_loop(fed, cfg, objective=DynamicRule(alpha=cfg.alpha), aggregator=DynamicServer(alpha=cfg.alpha))
    return loop_outcome(state)
