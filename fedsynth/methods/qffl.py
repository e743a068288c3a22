"""q-FFL by q-FedAvg (Li et al. 2020, algorithm 2): clients with a larger loss weigh more, for fairness.

With F_k the loss of the received model at client k, L = 1/η and Δ_k = L (w − w_k):
w ← w − Σ F_k^q Δ_k / Σ (q F_k^(q−1) ‖Δ_k‖² + L F_k^q).

Deviations: the paper samples clients in proportion to their sizes p_k and does not weigh them again; here sampling is
uniform and every sum carries p_k, which is the same objective and makes q = 0 FedAvg, bit-identical. BatchNorm
statistics are averaged by examples.
"""

import copy
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedsynth.components.slots import Aggregator, LocalContext, LocalObjective, Memory, RoundInfo
from fedsynth.federation import method
from fedsynth.learning.aggregators import only, squared_distance, weighted_mean
from fedsynth.learning.training import FitResult, evaluate
from fedsynth.learning.weights import Weights, load_weights

SMALLEST_LOSS = 1e-10  # as in the authors' code: a loss of zero must not divide


class ReportLoss(LocalObjective, name="report_loss"):
    """Plain training; the loss of the received model is reported."""

    unprotected: ClassVar[str] = "its clients send their loss beside the weights"

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        net = copy.deepcopy(local.net)
        load_weights(net, local.received)
        x, y = local.client.data.train.tensors()
        loss = evaluate(net, x, y, local.client.schema.classes).loss / max(1, len(y))
        return {"loss_before": torch.tensor(loss, dtype=torch.float64)}


@method("qffl", fedavg_when={"q": 0.0}, objective=ReportLoss, search={"q": (0.01, 5.0)})
class FairMean(Aggregator, name="qffl"):
    """Fair averaging: clients with a larger loss weigh more."""

    # The q-weighted step, written as a weighted mean of the old model and the clients'.

    needs: ClassVar[str] = "report_loss"
    unprotected: ClassVar[str] = "it needs the loss that clients send beside the weights"

    q: float = Field(0.1, ge=0, description="fairness: 0 is FedAvg, larger is more uniform")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        shares: dict[str, float] = {}
        divisor = 0.0
        for client, reply in replies.items():
            loss = max(float(reply.extra["loss_before"]), SMALLEST_LOSS)
            # Everything is divided by L: Δ_k/L = w − w_k, and ‖Δ_k‖²/L = L ‖w − w_k‖².
            length = squared_distance(model, reply.model, sorted(info.trained)) / info.training.lr
            shares[client] = reply.examples * loss**self.q
            divisor += reply.examples * (self.q * loss ** (self.q - 1) * length + loss**self.q)
        old = {name: model[name] for name in info.trained}
        parts = [(old, divisor - sum(shares.values()))] if self.q > 0 else []
        stream = ((only(reply.model, info.trained), shares[client]) for client, reply in replies.items())
        moved = weighted_mean(itertools.chain(parts, stream), total=divisor)
        return weighted_mean((reply.model, reply.examples) for reply in replies.values()) | moved
