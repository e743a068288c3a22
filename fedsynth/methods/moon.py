"""MOON (Li et al. 2021, eq. 3 and 4): a contrastive term draws a client's representation towards the global model's
and away from the client's own previous one.

Deviations: the representation is the input of the last linear layer (the paper adds a projection head to its
networks). A client that trains for the first time has no previous model and no contrastive term. With mu = 0 it is
FedAvg to the last bit.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import LocalRule, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.models import Classifier
from fedsynth.learning.objectives import Contrastive
from fedsynth.learning.training import FitResult, Objective
from fedsynth.learning.weights import Weights, load_weights, weights_of


class ContrastiveRule(LocalRule, name="contrastive"):
    """Contrast with the received and the previous model."""

    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    temperature: float = Field(0.5, gt=0, description="temperature of the contrastive term")

    def begin(self, visit: Visit) -> Objective:
        previous = visit.client.state.get("previous")
        return Contrastive(
            _frozen_copy(visit.net, visit.received),
            None if previous is None else _frozen_copy(visit.net, previous),
            self.mu,
            self.temperature,
        )

    def finish(self, visit: Visit, fit: FitResult) -> dict[str, Any]:
        visit.client.state["previous"] = weights_of(visit.net)
        return {}


def _frozen_copy(net: Classifier, weights: Weights) -> Classifier:
    twin = copy.deepcopy(net)
    load_weights(twin, weights)
    return twin.requires_grad_(False)


class MoonConfig(LoopConfig):
    """MOON's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"mu": (0.1, 10.0)}

    mu: float = Field(1.0, ge=0, description="weight of the contrastive term (the paper tries 1, 5, 10)")
    temperature: float = Field(0.5, gt=0, description="temperature of the contrastive term")


@method("moon", config=MoonConfig, fedavg_when={"mu": 0.0})
def moon(fed: Federation, cfg: MoonConfig) -> Outcome:
    """FedAvg with a contrastive term between the client's, the global and the previous model."""
    state = federated_loop(fed, cfg, objective=ContrastiveRule(mu=cfg.mu, temperature=cfg.temperature))
    return loop_outcome(state)
