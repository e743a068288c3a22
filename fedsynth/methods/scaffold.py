"""SCAFFOLD (Karimireddy et al. 2020, algorithm 1): control variates correct the drift of every local step.

A client steps along g − c_i + c (eq. 3), then renews its control variate (eq. 4) and sends the change Δc_i, not c_i;
the server moves by η_g times the mean change of the models and c by |S|/N times the mean Δc_i (eq. 5).

Deviations: option II of eq. 4, c_i⁺ = c_i − c + (x − y_i)/(K η), is exact for plain SGD only; with momentum, weight
decay, clipping or Adam the clients use option I, the gradient of their data at x. BatchNorm statistics are averaged.
All clients have equal weights in the averages, as in the paper.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from fedsynth.components.slots import Aggregator, LocalContext, LocalObjective, Memory, RoundInfo
from fedsynth.federation import method
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.objectives import ControlVariates
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights, load_weights

GRADIENT_BATCH = 512


class ControlledObjective(LocalObjective, name="control_variates"):
    """Correct every step by c − c_i and report how c_i changed."""

    needs: ClassVar[str] = "scaffold"
    unprotected: ClassVar[str] = "its clients send control variates beside the weights"

    option: Literal["auto", "I", "II"] = Field("auto", description="control variate update (eq. 4); auto: II for SGD")

    def begin(self, local: LocalContext) -> Objective:
        return ControlVariates(local.net, local.sent, _own_control(local))

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        own, server = _own_control(local), local.sent
        if fit.steps == 0:
            return {name: torch.zeros_like(c) for name, c in own.items()}
        if self.option == "I" or (self.option == "auto" and not _is_plain_sgd(local.training)):
            new = _gradient_at_received(local)
        else:
            now, total_rate = dict(local.net.named_parameters()), fit.steps * local.training.lr
            new = {
                name: c_i - server[name] + (local.received[name] - now[name].detach().cpu()) / total_rate
                for name, c_i in own.items()
            }
        local.client.state["control"] = new
        return {name: new[name] - own[name] for name in own}


def _is_plain_sgd(training: LocalTraining) -> bool:
    return training.optimizer == "sgd" and not (training.momentum or training.weight_decay or training.max_grad_norm)


def _own_control(local: LocalContext) -> Weights:
    zero = {name: torch.zeros_like(entry) for name, entry in local.sent.items()}
    own: Weights = local.client.state.get("control", zero)
    return own


def _gradient_at_received(local: LocalContext) -> Weights:
    """The gradient of the client's mean loss at the received model."""
    net = copy.deepcopy(local.net)
    load_weights(net, local.received)
    net.eval()
    net.zero_grad(set_to_none=True)
    device = local.client.device
    x, y = local.client.data.train.tensors()
    for batch, labels in zip(x.split(GRADIENT_BATCH), y.split(GRADIENT_BATCH), strict=True):
        loss = F.cross_entropy(net(batch.to(device)), labels.to(device), reduction="sum") / len(y)
        loss.backward()
    return {name: p.grad.cpu().clone() for name, p in net.named_parameters() if p.grad is not None}


@method("scaffold", objective=ControlledObjective, search={"server_lr": (0.1, 1.0)})
class ScaffoldServer(Aggregator, name="scaffold"):
    """Control variates that correct the clients' drift."""

    # Mean change of the models times the server's rate; the control variate follows the clients'.

    needs: ClassVar[str] = "control_variates"
    unprotected: ClassVar[str] = "it needs the control variates that clients send beside the weights"

    server_lr: float = Field(1.0, gt=0, description="the server's learning rate η_g")

    def sent(self, memory: Memory, model: Weights, info: RoundInfo) -> Weights:
        zero = {name: torch.zeros_like(model[name]) for name in sorted(info.trained)}
        control: Weights = memory.setdefault("control", zero)
        return control

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        mean = weighted_mean((reply.model, 1) for reply in replies.values())
        change = weighted_mean((reply.extra, 1) for reply in replies.values())
        share = len(replies) / info.clients
        memory["control"] = {name: c + share * change[name] for name, c in memory["control"].items()}
        rate = self.server_lr
        return {
            name: (1 - rate) * model[name] + rate * entry if name in info.trained else entry
            for name, entry in mean.items()
        }
