"""Robust averaging: trimmed mean and median (Yin et al. 2018), Krum and multi-Krum (Blanchard et al. 2017).

Deviations: the trimmed mean weighs the values it keeps by the clients' examples, so that `trim = 0` is FedAvg,
bit-identical (Yin et al. have equal clients). Its `clamp` is how we read "the updates in [−0.5, 0.5]" of AggEnhance's
paper: every coordinate of an update is brought into the range before the average. Multi-Krum averages the `keep` best,
weighted likewise.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from fedsynth.components.slots import Aggregator, Memory, RoundInfo
from fedsynth.federation import method
from fedsynth.learning.aggregators import clamped_mean, krum, median, trimmed_mean
from fedsynth.learning.weights import Weights


@method("trimmed_mean", fedavg_when={"trim": 0.0}, search={"trim": (0.05, 0.4)})
class TrimmedMean(Aggregator, name="trimmed_mean"):
    """Averaging without the extremes, coordinate by coordinate."""

    robust: ClassVar[bool] = True

    trim: float = Field(0.1, ge=0, lt=0.5, description="share of values left out at each end")
    clamp: float | None = Field(
        None,
        gt=0,
        description="nothing is left out, but no value of an update counts as larger than this (AggEnhance's paper: "
        "0.5)",
    )

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        many = [(r.model, r.examples) for r in replies.values()]
        if self.clamp is not None:
            return clamped_mean(many, model, self.clamp, info.trained)
        return trimmed_mean(many, self.trim)


@method("median")
class Median(Aggregator, name="median"):
    """The median of the clients' weights, coordinate by coordinate."""

    robust: ClassVar[bool] = True

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        return median([(r.model, r.examples) for r in replies.values()])


@method("krum", fedavg_when={"byzantine": 0, "keep": 10**6})
class Krum(Aggregator, name="krum"):
    """The update nearest to the others (or the mean of the best few)."""

    robust: ClassVar[bool] = True

    byzantine: int = Field(1, ge=0, description="how many clients may be malicious")
    keep: int = Field(1, ge=1, description="how many updates are averaged (more than 1: multi-Krum)")

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        return krum([(r.model, r.examples) for r in replies.values()], self.byzantine, self.keep, info.trained)
