"""FedRep (Collins et al. 2021, algorithm 1): the body is shared and averaged, every client has a head of its own.

In every round a client first trains its head on the received body, which stands still, then the body, with the head
standing still; the body leaves, the head stays.

Deviations: the head is the last linear layer. The body takes `train.local_epochs` epochs (the paper: one or a few).
BatchNorm's running statistics belong to the body; they follow the data in both halves.
"""

from typing import ClassVar

from pydantic import Field

from fedsynth.components.slots import Kept, LocalContext, LocalObjective
from fedsynth.federation import method
from fedsynth.learning.training import CrossEntropy, FitResult, Objective, fit
from fedsynth.learning.weights import Weights


@method("fedrep")
class HeadFirst(LocalObjective, name="head_first"):
    """A shared body, averaged, and a head for each client: trained in turn."""

    keeps: ClassVar[Kept] = "head"

    unprotected: ClassVar[str] = "its heads are trained apart from the update"

    head_epochs: int = Field(5, ge=0, description="epochs of the head before the body's, in each round")

    def begin(self, local: LocalContext) -> Objective:
        client, net = local.client, local.net
        x, y = client.data.train.tensors()
        net.body.requires_grad_(False)
        training = local.training.model_copy(update={"epochs": self.head_epochs})
        fit(net, x, y, training, client.rng("batches"))
        net.body.requires_grad_(True)
        net.head.requires_grad_(False)
        return CrossEntropy()

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        local.net.head.requires_grad_(True)
        return {}
