"""FedRep (Collins et al. 2021, algorithm 1): the body is shared and averaged, every client has a head of its own.

In every round a client first trains its head on the received body, which stands still, then the body, with the head
standing still; the body leaves, the head stays.

Deviations: the head is the last linear layer. The body takes `train.local_epochs` epochs (the paper: one or a few).
BatchNorm's running statistics belong to the body; they follow the data in both halves.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import LocalRule, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.training import CrossEntropy, FitResult, Objective, fit


class HeadFirst(LocalRule, name="head_first"):
    """Train the head on the received body, then the body under that head."""

    unprotected: ClassVar[str] = "its heads are trained apart from the update"

    head_epochs: int = Field(5, ge=0, description="epochs of the head before the body's, in each round")

    def begin(self, visit: Visit) -> Objective:
        client, net = visit.client, visit.net
        x, y = client.data.train.tensors()
        net.body.requires_grad_(False)
        training = visit.training.model_copy(update={"epochs": self.head_epochs})
        fit(net, x, y, training, client.rng("batches"))
        net.body.requires_grad_(True)
        net.head.requires_grad_(False)
        return CrossEntropy()

    def finish(self, visit: Visit, fit: FitResult) -> dict[str, Any]:
        visit.net.head.requires_grad_(True)
        return {}


class FedRepConfig(LoopConfig):
    """FedRep's setting."""

    head_epochs: int = Field(5, ge=0, description="epochs of the head before the body's, in each round")


@method("fedrep", config=FedRepConfig)
def fedrep(fed: Federation, cfg: FedRepConfig) -> Outcome:
    """A shared body, averaged, and a head for each client: trained in turn."""
    state = federated_loop(fed, cfg, keeps="head", objective=HeadFirst(head_epochs=cfg.head_epochs))
    return loop_outcome(state)
