"""The answer of `advise`: a recommendation for each goal, with its gain, its uncertainty and its cost.

Recommended is the simplest of those that the best one does not clearly beat and nothing simpler outdoes: staying local
comes before FedAvg, FedAvg before the others, and of those the cheaper first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.experiment.config import Experiment
from fedsynth.privacy import ledger_words
from fedsynth.report.csv_files import read_rows
from fedsynth.report.intervals import Interval, interval, paired_difference
from fedsynth.studies.histograms import Histograms
from fedsynth.studies.work import summary_of

ALWAYS = ("local", "fedavg")  # what everything is measured by, the simplest first
HARDLY = 2.0  # times as good as guessing
GOALS = {"own": "each client's own test part", "global": "the test set with all classes"}

Scores = Mapping[str, Mapping[int, float | None]]
"""By method and seed."""


@dataclass(frozen=True)
class Advice:
    """A recommendation for each goal, a row for each method, a row for each client, and words."""

    recommended: dict[str, dict[str, Any]]
    rows: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    words: list[str]
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**vars(self), "path": str(self.path)}


def make_advice(
    planned: Mapping[str, Mapping[int, Experiment]], skew: Histograms, notes: list[str], path: Path
) -> Advice:
    """The answer that finished runs give, by method and seed."""
    summaries = {m: {seed: summary_of(e) for seed, e in runs.items()} for m, runs in planned.items()}
    clients = {
        m: {seed: _client_accuracies(e, summaries[m][seed]) for seed, e in r.items()} for m, r in planned.items()
    }
    scores: dict[str, Scores] = {
        "own": {m: {seed: s["clients"].get("mean") for seed, s in by.items()} for m, by in summaries.items()},
        "global": {m: {seed: s["test"]["accuracy"] for seed, s in by.items()} for m, by in summaries.items()},
    }
    costs = {m: _cost(list(by.values())) for m, by in summaries.items()}
    order = [*ALWAYS, *sorted((m for m in planned if m not in ALWAYS), key=lambda m: costs[m]["bytes"])]
    recommended = {goal: recommend(scores[goal], order) for goal in GOALS}
    rows = [{"method": m, **_score_cells(scores, m), **costs[m]} for m in order]
    chosen = recommended["own"]["method"]
    by_client = [_client_row(name, k, skew, clients, chosen) for k, name in enumerate(skew.clients)]
    words = [*_words(recommended, costs, skew), *notes]
    if recommended["global"]["accuracy"] * np.count_nonzero(skew.counts.sum(axis=0)) < HARDLY:
        words.insert(0, "The candidates hardly learnt anything: do not believe this before you have raised --rounds.")
    return Advice(recommended, rows, by_client, words, path)


def recommend(scores: Scores, order: Sequence[str]) -> dict[str, Any]:
    """The simplest method (the earliest in `order`) that the best one does not clearly beat, paired over the seeds."""
    known = {m: by_seed for m, by_seed in scores.items() if all(value is not None for value in by_seed.values())}
    means = {
        m: float(np.mean([value for value in by_seed.values() if value is not None])) for m, by_seed in known.items()
    }
    best = max(means, key=lambda m: means[m])
    behind = {m: paired_difference(known[best], known[m]) for m in known}
    alike = [m for m in order if m in known and (m == best or not _clear(behind[m]))]
    # Not one that something simpler does better than, if only by a little.
    chosen = next(m for m in alike if all(means[m] >= means[o] for o in order[: order.index(m)] if o in means))
    gains = {other: paired_difference(known[chosen], known[other]) for other in ALWAYS if other in known}
    return {
        "method": chosen,
        "accuracy": means[chosen],
        "best": best,
        "clear": chosen == best and len(alike) == 1,
        "alike": alike,
        "best_ahead": _cell(behind[chosen]),
        "gain": {other: _cell(gain) for other, gain in gains.items() if other != chosen},
    }


def _clear(difference: Interval | None) -> bool:
    return difference is not None and difference.excludes_zero


def _cell(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {"mean": found.mean, "half": found.half, "n": found.n}


def _score_cells(scores: Mapping[str, Scores], method: str) -> dict[str, Any]:
    return {goal: _cell(interval(list(scores[goal][method].values()))) for goal in GOALS}


def _cost(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bytes, seconds and privacy of one run, as the runs had them."""
    rows = [row for row in summaries[0]["privacy"] if row["kind"] == "release" and not row["evaluation"]]
    spent = {row["release"]: row for row in sorted(rows, key=lambda row: row["epsilon"] or 0) if row["epsilon"]}
    return {
        "bytes": round(float(np.mean([s["bytes"]["up"] + s["bytes"]["down"] for s in summaries]))),
        "seconds": float(np.mean([s["seconds"] for s in summaries])),
        "protected": [f"{row['what']}, {row['proven']}" for row in spent.values()],
        "unprotected": list(dict.fromkeys(row["what"] for row in rows if row["epsilon"] is None)),
        "privacy": ledger_words(summaries[0]["privacy"]),
    }


def _client_accuracies(experiment: Experiment, summary: Mapping[str, Any]) -> list[float | None]:
    """Each client's accuracy on its own test part, by the model that it ends with."""
    with (experiment.runs / str(experiment.name) / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted(read_rows(file), key=lambda row: int(row["client"]))
    column = f"{summary['clients'].get('view', 'global')}/test/accuracy"
    return [float(row[column]) if row.get(column) else None for row in rows]


def _client_row(
    name: str, place: int, skew: Histograms, clients: Mapping[str, Mapping[int, list[float | None]]], chosen: str
) -> dict[str, Any]:
    of = {m: {seed: values[place] for seed, values in by.items()} for m, by in clients.items()}
    return {
        "client": name,
        "examples": int(skew.counts[place].sum()),
        **{m: _cell(interval(list(of[m].values()))) for m in dict.fromkeys((*ALWAYS, chosen))},
        "gain": _cell(paired_difference(of[chosen], of["fedavg" if chosen == "local" else "local"])),
    }


def _words(
    recommended: Mapping[str, dict[str, Any]], costs: Mapping[str, dict[str, Any]], skew: Histograms
) -> list[str]:
    words = [_sentence(goal, recommended[goal]) for goal in GOALS]
    for method in dict.fromkeys(found["method"] for found in recommended.values()):
        words.append(_price(method, costs[method]))
    words.append("The histograms themselves: " + " ".join(ledger_words(skew.ledger)))
    return words


def _price(method: str, cost: Mapping[str, Any]) -> str:
    if method == "local":
        return "Staying local costs nothing: nothing needs to leave a client."
    told = [f"protected: {'; '.join(cost['protected'])}"] if cost["protected"] else []
    told += [f"without a guarantee: {'; '.join(cost['unprotected'])}"] if cost["unprotected"] else []
    moved = f"{cost['bytes'] / 1e6:.1f} MB up and down and {cost['seconds']:.1f} s"
    return f"A trial of {method} cost {moved}. What leaves a client is {', and '.join(told)}."


def _sentence(goal: str, found: Mapping[str, Any]) -> str:
    name = {"local": "stay local", "fedavg": "FedAvg"}.get(found["method"], found["method"])
    start = f"On {GOALS[goal]}: {name} ({found['accuracy']:.1%})"
    gains = [
        f"{_points(gain)} over {'staying local' if m == 'local' else 'FedAvg'}" for m, gain in found["gain"].items()
    ]
    told = f", {' and '.join(gains)}" if gains else ""
    if found["method"] == found["best"]:
        others = [m for m in found["alike"] if m != found["method"]]
        return f"{start}{told}" + (f"; not clearly better than {', '.join(others)}." if others else ".")
    simplest = "the simplest" if found["method"] in ALWAYS else "the simplest of those that are about as good"
    ahead = _points(found["best_ahead"])
    return f"{start}{told}: no method is clearly better ({found['best']}: {ahead}), and this is {simplest}."


def _points(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    half = "" if cell["half"] is None else f" ± {100 * cell['half']:.1f}"
    return f"{100 * cell['mean']:+.1f}{half} points"
