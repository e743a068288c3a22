"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1): control variates correct the drift of every local step.

A client steps along g − c_i + c (eq. 3), then renews its control variate (eq. 4) and sends the change Δc_i, not c_i;
the server moves by η_g times the mean change of the models and c by |S|/N times the mean Δc_i (eq. 5).

Deviations: option II of eq. 4, c_i⁺ = c_i − c + (x − y_i)/(K η), is exact for plain SGD only; with momentum, weight
decay, clipping or Adam the clients use option I, the gradient of their data at x. BatchNorm statistics are averaged.
All clients weigh alike in the averages, as in the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import Aggregator, LocalRule, Setting, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.objectives import ControlVariates
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights, load_weights

GRADIENT_BATCH = 512


class ControlRule(LocalRule, name="control_variates"):
    """Correct every step by c − c_i and report how c_i changed."""

    needs: ClassVar[str] = "scaffold"
    unprotected: ClassVar[str] = "its clients send control variates beside the weights"

    option: Literal["I", "II"] = Field("II", description="how the client renews its control variate (eq. 4)")

    def begin(self, visit: Visit) -> Objective:
        return ControlVariates(visit.net, visit.sent["control"], _own_control(visit))

    def finish(self, visit: Visit, fit: FitResult) -> dict[str, Any]:
        own, server = _own_control(visit), visit.sent["control"]
        if fit.steps == 0:
            return {"control_change": {name: torch.zeros_like(c) for name, c in own.items()}}
        if self.option == "I":
            new = _gradient_at_received(visit)
        else:
            now, total_rate = dict(visit.net.named_parameters()), fit.steps * visit.training.lr
            new = {
                name: c_i - server[name] + (visit.received[name] - now[name].detach().cpu()) / total_rate
                for name, c_i in own.items()
            }
        visit.client.state["control"] = new
        return {"control_change": {name: new[name] - own[name] for name in own}}


def _own_control(visit: Visit) -> Weights:
    zero = {name: torch.zeros_like(entry) for name, entry in visit.sent["control"].items()}
    own: Weights = visit.client.state.get("control", zero)
    return own


def _gradient_at_received(visit: Visit) -> Weights:
    """The gradient of the client's mean loss at the received model."""
    net = copy.deepcopy(visit.net)
    load_weights(net, visit.received)
    net.eval()
    net.zero_grad(set_to_none=True)
    device = visit.client.device
    x, y = visit.client.data.train.tensors()
    for batch, labels in zip(x.split(GRADIENT_BATCH), y.split(GRADIENT_BATCH), strict=True):
        loss = F.cross_entropy(net(batch.to(device)), labels.to(device), reduction="sum") / len(y)
        loss.backward()
    return {name: p.grad.cpu().clone() for name, p in net.named_parameters() if p.grad is not None}


class ScaffoldServer(Aggregator, name="scaffold"):
    """Mean change of the models times the server's rate; the control variate follows the clients'."""

    needs: ClassVar[str] = "control_variates"
    unprotected: ClassVar[str] = "it needs the control variates that clients send beside the weights"

    server_lr: float = Field(1.0, gt=0, description="the server's learning rate η_g")

    def sent(self, memory: dict[str, Any], model: Weights, setting: Setting) -> dict[str, Any]:
        zero = {name: torch.zeros_like(model[name]) for name in sorted(setting.trained)}
        return {"control": memory.setdefault("control", zero)}

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: dict[str, Any], setting: Setting) -> Weights:
        mean = weighted_mean((reply.model, 1) for reply in replies.values())
        change = weighted_mean((reply.extra["control_change"], 1) for reply in replies.values())
        share = len(replies) / setting.clients
        memory["control"] = {name: c + share * change[name] for name, c in memory["control"].items()}
        rate = self.server_lr
        return {
            name: (1 - rate) * model[name] + rate * entry if name in setting.trained else entry
            for name, entry in mean.items()
        }


class ScaffoldConfig(LoopConfig):
    """SCAFFOLD's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"server_lr": (0.1, 1.0)}

    server_lr: float = Field(1.0, gt=0, description="the server's learning rate η_g")
    option: Literal["auto", "I", "II"] = Field("auto", description="control variate update (eq. 4); auto: II for SGD")


@method("scaffold", config=ScaffoldConfig)
def scaffold(fed: Federation, cfg: ScaffoldConfig) -> Outcome:
    """Control variates that correct the clients' drift."""
    train = cfg.train
    plain = train.optimizer == "sgd" and not (train.momentum or train.weight_decay or train.max_grad_norm)
    option = ("II" if plain else "I") if cfg.option == "auto" else cfg.option
    state = federated_loop(
        fed, cfg, objective=ControlRule(option=option), aggregator=ScaffoldServer(server_lr=cfg.server_lr)
    )
    return loop_outcome(state)
