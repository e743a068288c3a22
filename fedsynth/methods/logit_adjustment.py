"""Logit adjustment (Menon et al. 2021, the logit adjusted loss): in local training every client adds τ · log π_i, the
logarithm of its own class shares, to the scores inside the cross-entropy. Evaluation uses the plain scores.

A client that lacks a class otherwise teaches the model never to answer with it. This is the cheapest known remedy:
nothing is generated and nothing more is sent, so a method with synthetic data should be better than this.

Deviations: the paper has one long-tailed training set and its shares; here π_i are the shares of a client's own
training examples. `smoothing` is added to every class's count, which keeps log π_i finite for classes a client lacks.
With `privacy.updates = "dp_sgd"` the shares are those of noisy counts, which leave once and are charged to the ledger:
exact ones would make the loss of a record depend on all others. With tau = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsynth.components.class_counts import class_counts, let_out_counts
from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import LocalRule, Visit
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.objectives import LogitAdjusted, class_log_prior, log_shares
from fedsynth.learning.training import Objective
from fedsynth.privacy.dpsgd import Loss

SMOOTHING = "examples added to each class before shares are taken"
COUNTS = "with dp_sgd: ε of the class counts that the shares are taken from, at privacy.delta"


class LogitAdjustmentRule(LocalRule, name="logit_adjusted"):
    """Cross-entropy of scores to which the client's log class shares are added."""

    by_record: ClassVar[bool] = True

    tau: float = Field(1.0, ge=0, description="weight of the log class shares")
    smoothing: float = Field(1e-3, gt=0, description=SMOOTHING)
    counts_epsilon: float = Field(1.0, gt=0, description=COUNTS)

    def prepare(self, fed: Federation, delta: float) -> None:
        if self.tau:
            fed.once("class counts", lambda: class_counts(fed, self.counts_epsilon, delta, keep=True))

    def record_loss(self, visit: Visit) -> Loss:
        """By the counts that the client has let out, and those of examples that were made for it."""
        client = visit.client
        all_counts = np.bincount(visit.labels.numpy(force=True), minlength=client.schema.classes)
        made = all_counts - client.data.train.counts(client.schema.classes)
        counts = np.clip(let_out_counts(client), 0, None) + made
        return LogitAdjusted(log_shares(torch.from_numpy(counts), self.smoothing), self.tau).of_scores

    def begin(self, visit: Visit) -> Objective:
        log_prior = class_log_prior(visit.labels, visit.client.schema.classes, self.smoothing)
        return LogitAdjusted(log_prior, self.tau)


class LogitAdjustmentConfig(LoopConfig):
    """Logit adjustment's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"tau": (0.1, 2.0)}

    tau: float = Field(1.0, ge=0, description="weight of the log class shares; 0 is FedAvg")
    smoothing: float = Field(1e-3, gt=0, description=SMOOTHING)
    counts_epsilon: float = Field(1.0, gt=0, description=COUNTS)


@method("logit_adjustment", config=LogitAdjustmentConfig, fedavg_when={"tau": 0.0})
def logit_adjustment(fed: Federation, cfg: LogitAdjustmentConfig) -> Outcome:
    """FedAvg whose clients allow for their own class shares in the loss."""
    rule = LogitAdjustmentRule(tau=cfg.tau, smoothing=cfg.smoothing, counts_epsilon=cfg.counts_epsilon)
    return loop_outcome(federated_loop(fed, cfg, objective=rule))
