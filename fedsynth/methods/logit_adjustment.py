"""Logit adjustment (Menon et al. 2021, the logit adjusted loss): in local training every client adds τ · log π_i, the
logarithm of its own class shares, to the scores inside the cross-entropy. Evaluation uses the plain scores.

A client that lacks a class otherwise teaches the model never to answer with it. This is the cheapest known remedy:
nothing is generated and nothing more is sent, so a method with synthetic data should be better than this.

Deviations: the paper has one long-tailed training set and its shares; here π_i are the shares of a client's own
training examples. `smoothing` is added to every class's count, which keeps log π_i finite for classes a client lacks.
With tau = 0 it is FedAvg to the last bit.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.objectives import LogitAdjusted, class_log_prior
from fedsynth.learning.training import Objective
from fedsynth.methods.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.methods.slots import LocalRule, Visit


class LogitAdjustmentRule(LocalRule, name="logit_adjusted"):
    """Cross-entropy of scores to which the client's log class shares are added."""

    tau: float = Field(1.0, ge=0, description="weight of the log class shares")
    smoothing: float = Field(1e-3, gt=0, description="examples added to each class before shares are taken")

    def begin(self, visit: Visit) -> Objective:
        log_prior = class_log_prior(visit.labels, visit.client.schema.classes, self.smoothing)
        return LogitAdjusted(log_prior, self.tau)


class LogitAdjustmentConfig(LoopConfig):
    """Logit adjustment's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"tau": (0.1, 2.0)}

    tau: float = Field(1.0, ge=0, description="weight of the log class shares; 0 is FedAvg")
    smoothing: float = Field(1e-3, gt=0, description="examples added to each class before shares are taken")


@method("logit_adjustment", config=LogitAdjustmentConfig, fedavg_when={"tau": 0.0})
def logit_adjustment(fed: Federation, cfg: LogitAdjustmentConfig) -> Outcome:
    """FedAvg whose clients allow for their own class shares in the loss."""
    state = federated_loop(fed, cfg, objective=LogitAdjustmentRule(tau=cfg.tau, smoothing=cfg.smoothing))
    return loop_outcome(state)
