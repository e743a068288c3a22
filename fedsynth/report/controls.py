"""Is it the synthetic data? A method beside its controls: what it gains, and whether noise gains as much.

A control is a run of the same method with something taken away: no synthesis, noise in place of the synthetic data, no
filter. Differences are taken seed by seed, because runs of one seed share the split and the start model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from fedsynth.federation.methods import NOISE, WITHOUT_SYNTHESIS

SHARES_NOTHING = "logit_adjustment"
"""The method that runs beside all controls: it repairs missing classes and sends nothing for it."""

NOT_TRANSFER = "noise gives as much: the gain is not knowledge transfer"

LEGEND = (
    "Controls: points of accuracy on the global test; means over n seeds, ± standard deviation of paired differences."
)

Accuracies = dict[int, float]


def control_label(method: str, control: str) -> str:
    """The label of a control's row: `feddpms: noise`."""
    return f"{method}: {control}"


def control_verdicts(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every method with controls and each of them: gains over the run without synthesis, and what they mean.

    `summaries` are those of a comparison, with their labels. `gain` is the method's and `control_gain` the control's
    accuracy on the global test above that of "without synthesis"; `difference` is the method's above the control's.
    Each is a mean in percentage points over the `n` seeds that all of them have, with `_std`, the standard deviation
    of the paired differences.
    """
    accuracies: dict[str, Accuracies] = {}
    controls: dict[str, list[str]] = {}
    for summary in summaries:
        method, label = summary["method"], summary.get("label", summary["method"])
        accuracy = summary["test"]["accuracy"]
        accuracies.setdefault(label, {}).update({} if accuracy is None else {summary["seed"]: accuracy})
        if label != method and label not in controls.setdefault(method, []):
            controls[method].append(label)
    return [
        _verdict(method, label, accuracies)
        for method, labels in controls.items()
        for label in (*labels, *([SHARES_NOTHING] if SHARES_NOTHING in accuracies else []))
    ]


def _verdict(method: str, label: str, accuracies: dict[str, Accuracies]) -> dict[str, Any]:
    own, other = accuracies.get(method, {}), accuracies[label]
    base = accuracies.get(control_label(method, WITHOUT_SYNTHESIS))
    control = label.removeprefix(control_label(method, ""))
    seeds = sorted(own.keys() & other.keys() & (own if base is None else base).keys())
    differences = [100 * (own[seed] - other[seed]) for seed in seeds]
    gains = [] if base is None else [100 * (own[seed] - base[seed]) for seed in seeds]
    control_gains = [] if base is None else [100 * (other[seed] - base[seed]) for seed in seeds]
    return {
        "method": method,
        "control": control,
        "n": len(seeds),
        **_mean_and_spread("gain", gains),
        **_mean_and_spread("control_gain", control_gains),
        **_mean_and_spread("difference", differences),
        "verdict": _judged(control, differences),
    }


def _mean_and_spread(name: str, numbers: list[float]) -> dict[str, float | None]:
    return {name: mean(numbers) if numbers else None, f"{name}_std": stdev(numbers) if len(numbers) > 1 else None}


def _judged(control: str, differences: list[float]) -> str:
    """What the differences of the method from a control say; only two controls are judged, the others inform."""
    if not differences:
        return "no accuracy on the global test to compare"
    if len(differences) == 1:
        return "single run"
    larger = mean(differences) > stdev(differences) / math.sqrt(len(differences))  # than its standard error
    if control == WITHOUT_SYNTHESIS and not larger:
        return "no gain beyond the standard error"
    if control == NOISE:
        return "noise gives less" if larger else NOT_TRANSFER
    return ""


def verdict_lines(verdicts: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers are, then a sentence per verdict; nothing where no controls ran."""
    return [LEGEND, *map(_line, verdicts)] if verdicts else []


def _line(verdict: dict[str, Any]) -> str:
    method, control = verdict["method"], verdict["control"]
    if control == WITHOUT_SYNTHESIS:
        text = f"{method} gains {_points(verdict, 'gain')} over its run {WITHOUT_SYNTHESIS}"
    elif verdict["gain"] is None:  # it has no such run, or no global model
        text = f"{method} − {control}: {_points(verdict, 'difference')}"
    else:
        gains = f"{method} {_points(verdict, 'gain')}, {control} {_points(verdict, 'control_gain')}"
        text = f"{gains} over the run {WITHOUT_SYNTHESIS}; difference {_points(verdict, 'difference')}"
    return f"{text} (n = {verdict['n']})" + (f"; {verdict['verdict']}" if verdict["verdict"] else "")


def _points(verdict: dict[str, Any], name: str) -> str:
    if verdict[name] is None:
        return "unknown"
    spread = verdict[f"{name}_std"]
    return f"{verdict[name]:+.2f}" + ("" if spread is None else f" ± {spread:.2f}")
