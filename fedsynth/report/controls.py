"""Is it the synthetic data? A method beside its controls: what it gains, and whether noise gains as much.

A control is a run of the same method with something taken away: no synthesis, noise in place of the synthetic data, no
filter. Differences are taken seed by seed, because runs of one seed share the split and the start model.
"""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import WORDS, Metric, Result
from fedsynth.federation.methods import NOISE, WITHOUT_SYNTHESIS

SHARES_NOTHING = "logit_adjustment"
"""The method that runs beside all controls: it repairs missing classes and sends nothing for it."""

NOT_TRANSFER = "noise gives as much: the gain is not knowledge transfer"

LEGEND = (
    "Controls: points of {metric} on the global test; means over n seeds, ± standard deviation of paired differences."
)

Scores = dict[int, float]


def control_label(method: str, control: str) -> str:
    """The label of a control's row: `feddpms: noise`."""
    return f"{method}: {control}"


class ControlVerdict(Result):
    """What a method gains, what a control of it gains, and what that means.

    `gain` is the method's and `control_gain` the control's score on the global test above that of "without
    synthesis"; `difference` is the method's above the control's. Each is a mean in percentage points over the `n` seeds
    that all of them have, with `_std`, the standard deviation of the paired differences.
    """

    method: str
    control: str
    metric: Metric = "accuracy"
    n: int
    gain: float | None
    gain_std: float | None
    control_gain: float | None
    control_gain_std: float | None
    difference: float | None
    difference_std: float | None
    verdict: str


def control_verdicts(summaries: Sequence[RunSummary]) -> list[ControlVerdict]:
    """For every method with controls and each of them: gains over the run without synthesis, and what they mean."""
    scores: dict[str, Scores] = {}
    controls: dict[str, dict[str, str]] = {}  # of a row: the label of each
    for summary in summaries:
        score = summary.tested
        scores.setdefault(summary.row, {}).update({} if score is None else {summary.seed: score})
        if summary.control:
            controls.setdefault(summary.base, {})[summary.control] = summary.row
    shared = {SHARES_NOTHING: SHARES_NOTHING} if SHARES_NOTHING in scores else {}
    return [
        _verdict(row, control, label, scores, scores.get(labels.get(WITHOUT_SYNTHESIS, "")), summaries[0].metric)
        for row, labels in controls.items()
        for control, label in (labels | shared).items()
    ]


def _verdict(
    method: str, control: str, label: str, scores: dict[str, Scores], base: Scores | None, metric: Metric
) -> ControlVerdict:
    own, other = scores.get(method, {}), scores[label]
    seeds = sorted(own.keys() & other.keys() & (own if base is None else base).keys())
    differences = [100 * (own[seed] - other[seed]) for seed in seeds]
    gains = [] if base is None else [100 * (own[seed] - base[seed]) for seed in seeds]
    control_gains = [] if base is None else [100 * (other[seed] - base[seed]) for seed in seeds]
    return ControlVerdict(
        method=method,
        control=control,
        metric=metric,
        n=len(seeds),
        **_mean_and_spread("gain", gains),
        **_mean_and_spread("control_gain", control_gains),
        **_mean_and_spread("difference", differences),
        verdict=_conclude(control, differences, metric),
    )


def _mean_and_spread(name: str, numbers: list[float]) -> dict[str, float | None]:
    return {name: mean(numbers) if numbers else None, f"{name}_std": stdev(numbers) if len(numbers) > 1 else None}


def _conclude(control: str, differences: list[float], metric: Metric) -> str:
    """What the differences of the method from a control say; only two controls have a verdict, the others inform."""
    if not differences:
        return f"no {WORDS[metric]} on the global test to compare"
    if len(differences) == 1:
        return "single run"
    larger = mean(differences) > stdev(differences) / math.sqrt(len(differences))  # than its standard error
    if control == WITHOUT_SYNTHESIS and not larger:
        return "no gain beyond the standard error"
    if control == NOISE:
        return "noise gives less" if larger else NOT_TRANSFER
    return ""


def verdict_lines(verdicts: Sequence[ControlVerdict]) -> list[str]:
    """What the numbers are, then a sentence per verdict; nothing where no controls ran."""
    return [LEGEND.format(metric=WORDS[verdicts[0].metric]), *map(_line, verdicts)] if verdicts else []


def _line(found: ControlVerdict) -> str:
    method, control = found.method, found.control
    gain, difference = _points(found.gain, found.gain_std), _points(found.difference, found.difference_std)
    if control == WITHOUT_SYNTHESIS:
        text = f"{method} gains {gain} over its run {WITHOUT_SYNTHESIS}"
    elif found.gain is None:  # it has no such run, or no global model
        text = f"{method} − {control}: {difference}"
    else:
        gains = f"{method} {gain}, {control} {_points(found.control_gain, found.control_gain_std)}"
        text = f"{gains} over the run {WITHOUT_SYNTHESIS}; difference {difference}"
    return f"{text} (n = {found.n})" + (f"; {found.verdict}" if found.verdict else "")


def _points(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return "unknown"
    return f"{mean:+.2f}" + ("" if spread is None else f" ± {spread:.2f}")
