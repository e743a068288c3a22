"""FedNova (Wang et al. 2020, eq. 6–8): changes are divided by their effective number of steps before averaging.

w ← w − τ_eff Σ p_i d_i with d_i = (w − w_i)/‖a_i‖₁, p_i the share of examples and τ_eff = Σ p_i ‖a_i‖₁. For plain SGD
‖a_i‖₁ is the number of steps τ_i; for momentum ρ it is (τ_i − ρ(1−ρ^τ_i)/(1−ρ))/(1−ρ).

Deviations: for Adam, which the paper does not treat, ‖a_i‖₁ = τ_i. BatchNorm statistics are averaged by examples.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from fedsynth.components.slots import Aggregator, Memory, RoundInfo
from fedsynth.federation import method
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.weights import Weights


def effective_steps(steps: int, momentum: float) -> float:
    """‖a_i‖₁: how far `steps` unit gradients carry the weights, in units of the learning rate."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@method("fednova")
class NormalisedMean(Aggregator, name="fednova"):
    """Averaging that is fair to clients with different numbers of local steps."""

    unprotected: ClassVar[str] = "it needs the numbers of steps that clients send beside the weights"

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        mean = weighted_mean((reply.model, reply.examples) for reply in replies.values())
        examples = {client: reply.examples for client, reply in replies.items()}
        lengths = {client: effective_steps(reply.steps, info.training.momentum) for client, reply in replies.items()}
        total = sum(examples.values())
        tau_eff = sum(examples[c] / total * lengths[c] for c in replies)
        moved = {name: model[name].to(torch.float64, copy=True) for name in info.trained}
        for client, reply in replies.items():
            if lengths[client] == 0:
                continue
            scale = tau_eff * examples[client] / total / lengths[client]
            for name, entry in moved.items():
                entry.sub_(model[name].double() - reply.model[name].double(), alpha=scale)
        return mean | {name: entry.to(model[name].dtype) for name, entry in moved.items()}
