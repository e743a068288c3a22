"""Robust averaging: trimmed mean and median (Yin et al. 2018), Krum and multi-Krum (Blanchard et al. 2017).

Deviations: the trimmed mean weighs the values it keeps by the clients' examples, so that `trim = 0` is FedAvg to the
last bit (Yin et al. have equal clients). Multi-Krum averages the `keep` best, weighted likewise.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedsynth.components.loop import LoopConfig, federated_loop, loop_outcome
from fedsynth.components.slots import Krum, Median, TrimmedMean
from fedsynth.federation import Federation, Outcome, method


class TrimmedMeanConfig(LoopConfig):
    """Setting of the trimmed mean."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"trim": (0.05, 0.4)}

    trim: float = Field(0.1, ge=0, lt=0.5, description="share of values left out at each end")


class MedianConfig(LoopConfig):
    """The median has no settings of its own."""


class KrumConfig(LoopConfig):
    """Settings of Krum."""

    byzantine: int = Field(1, ge=0, description="how many clients may lie")
    keep: int = Field(1, ge=1, description="how many updates are averaged (more than 1: multi-Krum)")


@method("trimmed_mean", config=TrimmedMeanConfig, fedavg_when={"trim": 0.0})
def run_trimmed_mean(fed: Federation, cfg: TrimmedMeanConfig) -> Outcome:
    """Averaging without the extremes, coordinate by coordinate."""
    state = federated_loop(fed, cfg, aggregator=TrimmedMean(trim=cfg.trim))
    return loop_outcome(state)


@method("median", config=MedianConfig)
def run_median(fed: Federation, cfg: MedianConfig) -> Outcome:
    """The median of the clients' weights, coordinate by coordinate."""
    state = federated_loop(fed, cfg, aggregator=Median())
    return loop_outcome(state)


@method("krum", config=KrumConfig, fedavg_when={"byzantine": 0, "keep": 10**6})
def run_krum(fed: Federation, cfg: KrumConfig) -> Outcome:
    """The update nearest to the others (or the mean of the best few)."""
    state = federated_loop(fed, cfg, aggregator=Krum(byzantine=cfg.byzantine, keep=cfg.keep))
    return loop_outcome(state)
