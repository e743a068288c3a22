"""Logit adjustment (Menon et al. 2021, the logit adjusted loss): in local training every client adds τ · log π_i, the
logarithm of its own class shares, to the scores inside the cross-entropy. Evaluation uses the plain scores.

A client that lacks a class otherwise teaches the model never to answer with it. This is the cheapest known remedy:
nothing is generated and nothing more is sent, so a method with synthetic data should be better than this.

Deviations: the paper has one long-tailed training set and its shares; here π_i are the shares of a client's own
training examples. `smoothing` is added to every class's count, which keeps log π_i finite for classes a client lacks.
With `privacy.updates = "dp_sgd"` the shares are those of noisy counts, which leave once and are charged to the ledger:
exact ones would make the loss of a record depend on all others. With tau = 0 it is FedAvg,
bit-identical.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsynth.components.class_counts import class_counts, released_counts
from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import Federation, method
from fedsynth.learning.objectives import LogitAdjusted, class_log_prior, log_shares
from fedsynth.learning.training import Objective
from fedsynth.privacy.dpsgd import Loss


@method("logit_adjustment", fedavg_when={"tau": 0.0}, search={"tau": (0.1, 2.0)})
class LogitAdjustedObjective(LocalObjective, name="logit_adjusted"):
    """FedAvg whose clients allow for their own class shares in the loss."""

    by_record: ClassVar[bool] = True

    tau: float = Field(1.0, ge=0, description="weight of the log class shares; 0 is FedAvg")
    smoothing: float = Field(1e-3, gt=0, description="examples added to each class before shares are taken")
    counts_epsilon: float = Field(
        1.0, gt=0, description="with dp_sgd: ε of the class counts that the shares are taken from, at privacy.delta"
    )

    def prepare(self, fed: Federation, delta: float) -> None:
        if self.tau:
            fed.once("class counts", lambda: class_counts(fed, self.counts_epsilon, delta, keep=True))

    def record_loss(self, local: LocalContext) -> Loss:
        """By the counts that the client has released, and those of its synthetic examples."""
        client = local.client
        all_counts = np.bincount(local.labels.numpy(force=True), minlength=client.schema.classes)
        synthetic = all_counts - client.class_counts()
        counts = np.clip(released_counts(client), 0, None) + synthetic
        return LogitAdjusted(log_shares(torch.from_numpy(counts), self.smoothing), self.tau).of_scores

    def begin(self, local: LocalContext) -> Objective:
        log_prior = class_log_prior(local.labels, local.client.schema.classes, self.smoothing)
        return LogitAdjusted(log_prior, self.tau)
