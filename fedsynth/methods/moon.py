"""MOON (Li et al. 2021, eq. 3 and 4): a contrastive term draws a client's representation towards the global model's
and away from the client's own previous one.

Deviations: the representation is the input of the last linear layer (the paper adds a projection head to its
networks). A client that trains for the first time has no previous model and no contrastive term. With mu = 0 it is
FedAvg, bit-identical.
"""

import copy

from pydantic import Field

from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import method
from fedsynth.learning.models import Classifier
from fedsynth.learning.objectives import Contrastive
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights, load_weights, weights_of


@method("moon", fedavg_when={"mu": 0.0}, search={"mu": (0.1, 10.0)})
class ContrastiveObjective(LocalObjective, name="contrastive"):
    """FedAvg with a contrastive term between the client's, the global and the previous model."""

    mu: float = Field(1.0, ge=0, description="weight of the contrastive term (the paper tries 1, 5, 10)")
    temperature: float = Field(0.5, gt=0, description="temperature of the contrastive term")

    def begin(self, local: LocalContext) -> Objective:
        previous = local.client.state.get("previous")
        return Contrastive(
            _frozen_copy(local.net, local.received),
            None if previous is None else _frozen_copy(local.net, previous),
            self.mu,
            self.temperature,
        )

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        local.client.state["previous"] = weights_of(local.net)
        return {}


def _frozen_copy(net: Classifier, weights: Weights) -> Classifier:
    twin = copy.deepcopy(net)
    load_weights(twin, weights)
    return twin.requires_grad_(False)
