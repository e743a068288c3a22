"""The answer of `advise`: a recommendation for each goal, with its gain, its uncertainty and its cost.

Recommended is the simplest of those that the best one does not clearly beat and nothing simpler outdoes: staying local
comes before FedAvg, FedAvg before the others, and of those the cheaper first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import WORDS, Metric, Result
from fedsynth.experiment.config import Experiment
from fedsynth.privacy import ledger_words
from fedsynth.report.intervals import Interval, interval, paired_difference
from fedsynth.studies.histograms import Histograms
from fedsynth.studies.work import summary_with_clients

ALWAYS = ("local", "fedavg")  # what everything is measured by, the simplest first
HARDLY = 2.0  # times as good as guessing
GOALS = {"own": "each client's own test part", "global": "the test set with all classes"}

Scores = Mapping[str, Mapping[int, float | None]]
"""By method and seed."""


class Recommendation(Result):
    """The method for one goal, how it scored by the chosen metric, and those that are about as good (`similar`)."""

    method: str
    score: float
    best: str
    clear: bool
    similar: list[str]
    best_ahead: Interval | None
    gain: dict[str, Interval | None]


class AdviceRow(Result):
    """What a method reached, by goal, and what a run of it cost."""

    method: str
    scores: dict[str, Interval | None]
    bytes: int
    seconds: float
    protected: list[str]
    unprotected: list[str]
    privacy: list[str]


class ClientAdvice(Result):
    """What a client reached on its own test part, by method, and what it gains by the recommended one."""

    client: str
    examples: int
    scores: dict[str, Interval | None]
    gain: Interval | None


@dataclass(frozen=True)
class Advice:
    """A recommendation for each goal, a row for each method, a row for each client, and words."""

    recommended: dict[str, Recommendation]
    rows: list[AdviceRow]
    clients: list[ClientAdvice]
    words: list[str]
    path: Path

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rows, clients = ([_with_scores(row) for row in part] for part in (self.rows, self.clients))
        recommended = {goal: found.as_dict() for goal, found in self.recommended.items()}
        tables = {"recommended": recommended, "rows": rows, "clients": clients}
        return {**tables, "words": self.words, "path": str(self.path)}


def _with_scores(row: Result) -> dict[str, object]:
    """A row whose scores stand beside its other cells."""
    kept = row.as_dict()
    return {**kept.pop("scores"), **kept}


def make_advice(
    planned: Mapping[str, Mapping[int, Experiment]], skew: Histograms, notes: list[str], path: Path
) -> Advice:
    """The answer that finished runs give, by method and seed."""
    summaries = {m: {seed: summary_with_clients(e) for seed, e in runs.items()} for m, runs in planned.items()}
    scores: dict[str, Scores] = {
        "own": {m: {seed: s.by_clients.mean for seed, s in by.items()} for m, by in summaries.items()},
        "global": {m: {seed: s.tested for seed, s in by.items()} for m, by in summaries.items()},
    }
    rows = {m: _row(m, scores, list(by.values())) for m, by in summaries.items()}
    order = [*ALWAYS, *sorted((m for m in planned if m not in ALWAYS), key=lambda m: rows[m].bytes)]
    recommended = {goal: recommend(scores[goal], order) for goal in GOALS}
    chosen = recommended["own"].method
    by_client = [_client_row(name, k, skew, summaries, chosen) for k, name in enumerate(skew.clients)]
    words = [*_words(recommended, rows, skew, _metric(summaries)), *notes]
    learnt = [s.test.accuracy or 0.0 for s in summaries[recommended["global"].method].values()]
    if float(np.mean(learnt)) * np.count_nonzero(skew.counts.sum(axis=0)) < HARDLY:
        words.insert(0, "The candidates hardly learnt anything: do not believe this before you have raised --rounds.")
    return Advice(recommended, [rows[m] for m in order], by_client, words, path)


def recommend(scores: Scores, order: Sequence[str]) -> Recommendation:
    """The simplest method (the earliest in `order`) that the best one does not clearly beat, paired over the seeds."""
    known = {m: by_seed for m, by_seed in scores.items() if all(value is not None for value in by_seed.values())}
    means = {
        m: float(np.mean([value for value in by_seed.values() if value is not None])) for m, by_seed in known.items()
    }
    if not means:
        raise ConfigError("No candidate has this metric in every trial: choose another evaluation.metric.")
    best = max(means, key=lambda m: means[m])
    behind = {m: paired_difference(known[best], known[m]) for m in known}
    beaten = {m for m, difference in behind.items() if m != best and difference and difference.excludes_zero}
    similar = [m for m in order if m in known and m not in beaten]
    # Not one that something simpler does better than, if only by a little.
    chosen = next(m for m in similar if all(means[m] >= means[o] for o in order[: order.index(m)] if o in means))
    gains = {other: paired_difference(known[chosen], known[other]) for other in ALWAYS if other in known}
    return Recommendation(
        method=chosen,
        score=means[chosen],
        best=best,
        clear=chosen == best and len(similar) == 1,
        similar=similar,
        best_ahead=behind[chosen],
        gain={other: gain for other, gain in gains.items() if other != chosen},
    )


def _row(method: str, scores: Mapping[str, Scores], summaries: Sequence[RunSummary]) -> AdviceRow:
    """What a method reached; bytes, seconds and privacy of one run, as the runs had them."""
    ledger = summaries[0].privacy
    rows = [row for row in ledger if row.kind == "release" and not row.evaluation]
    spent = {row.release: row for row in sorted(rows, key=lambda row: row.cost) if row.cost}
    return AdviceRow(
        method=method,
        scores={goal: interval(list(scores[goal][method].values())) for goal in GOALS},
        bytes=round(float(np.mean([s.bytes.up + s.bytes.down for s in summaries]))),
        seconds=float(np.mean([s.seconds for s in summaries])),
        protected=[f"{row.what}, {row.proven}" for row in spent.values()],
        unprotected=list(dict.fromkeys(row.what for row in rows if row.epsilon is None)),
        privacy=ledger_words(ledger),
    )


def _client_row(
    name: str, place: int, skew: Histograms, summaries: Mapping[str, Mapping[int, RunSummary]], chosen: str
) -> ClientAdvice:
    of = {m: {seed: s.per_client.get(str(place)) for seed, s in by.items()} for m, by in summaries.items()}
    return ClientAdvice(
        client=name,
        examples=int(skew.counts[place].sum()),
        scores={m: interval(list(of[m].values())) for m in dict.fromkeys((*ALWAYS, chosen))},
        gain=paired_difference(of[chosen], of["fedavg" if chosen == "local" else "local"]),
    )


def _metric(summaries: Mapping[str, Mapping[int, RunSummary]]) -> Metric:
    return next(s.metric for by_seed in summaries.values() for s in by_seed.values())


def _words(
    recommended: Mapping[str, Recommendation], rows: Mapping[str, AdviceRow], skew: Histograms, metric: Metric
) -> list[str]:
    words = [_sentence(goal, recommended[goal], metric) for goal in GOALS]
    words += [_price(rows[method]) for method in dict.fromkeys(found.method for found in recommended.values())]
    return [*words, "The histograms themselves: " + " ".join(ledger_words(skew.ledger))]


def _price(row: AdviceRow) -> str:
    if row.method == "local":
        return "Staying local costs nothing: nothing needs to leave a client."
    told = [f"protected: {'; '.join(row.protected)}"] if row.protected else []
    told += [f"without a guarantee: {'; '.join(row.unprotected)}"] if row.unprotected else []
    moved = f"{row.bytes / 1e6:.1f} MB up and down and {row.seconds:.1f} s"
    return f"A trial of {row.method} cost {moved}. What leaves a client is {', and '.join(told)}."


def _sentence(goal: str, found: Recommendation, metric: Metric) -> str:
    name = {"local": "stay local", "fedavg": "FedAvg"}.get(found.method, found.method)
    start = f"On {GOALS[goal]}: {name} ({'' if metric == 'accuracy' else WORDS[metric] + ' '}{found.score:.1%})"
    gains = [f"{_points(gain)} over {'staying local' if m == 'local' else 'FedAvg'}" for m, gain in found.gain.items()]
    told = f", {' and '.join(gains)}" if gains else ""
    if found.method == found.best:
        others = [m for m in found.similar if m != found.method]
        return f"{start}{told}" + (f"; not clearly better than {', '.join(others)}." if others else ".")
    simplest = "the simplest" if found.method in ALWAYS else "the simplest of those that are about as good"
    ahead = _points(found.best_ahead)
    return f"{start}{told}: no method is clearly better ({found.best}: {ahead}), and this is {simplest}."


def _points(found: Interval | None) -> str:
    return "–" if found is None else f"{found.text('+.1f', 100)} points"
