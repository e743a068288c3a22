"""Sections of a run's report about its result: the headline, the curves, the clients and the classes."""

import math
from collections.abc import Iterable
from typing import get_args

from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import WORDS, View
from fedsynth.report import svg
from fedsynth.report.blocks import Block, Figure, Table, Words, capitalised, megabytes, percent, seconds, show
from fedsynth.report.reading import RunRecord
from fedsynth.report.svg import Series

BARS = 40  # more rows than this become a curve over ranks


def headline(run: RunRecord) -> list[Block]:
    """The result in one table."""
    summary = run.summary
    if summary is None:
        return [Words([_unfinished(run)], notice=True), *_so_far(run)]
    test, clients, best = summary.test, summary.clients, summary.best
    worst = "–" if clients.worst is None else f"{percent(clients.worst)} (client {clients.worst_client})"
    selected = "–" if best.score < 0 else f"{percent(best.score)} (round {best.round})"
    own = "each client's own model" if clients.view == "personal" else "the global model"
    evaluated = f"{own}, each on its own test part; n = {clients.n} clients"
    rows = [
        *_by_metric(summary),
        ["Global model on the global test set", f"none: {test.reason}" if test.reason else percent(test.accuracy)],
        ["– variance over the classes", show(test.class_variance, ".0f", 1, " %²")],
        ["– worst class", percent(test.worst_class)],
        [f"Clients, mean ({evaluated})", percent(clients.mean)],
        ["– worst client", worst],
        ["– variance over the clients", show(clients.variance, ".0f", 1, " %²")],
        [f"Best validation {WORDS[summary.metric]} (selection uses validation only)", selected],
        ["Rounds", str(summary.rounds)],
        ["Sent by the method, up and down", megabytes(summary.bytes.up + summary.bytes.down)],
        ["Client epochs, all clients together", f"{summary.client_epochs:,.0f}"],
        ["Time of the run", seconds(summary.seconds)],
        ["Requests that were not answered", str(summary.failed)],
    ]
    blocks: list[Block] = [Table("The result of this run", ["measure", "value"], rows)]
    blocks.append(Words(["One seed, so a single run: how far another seed would be from this is not known."]))
    return [*blocks, Words(summary.notes, notice=True)] if summary.notes else blocks


def _by_metric(summary: RunSummary) -> list[list[str]]:
    """Where another metric than accuracy was chosen, its values first; the rows below are of accuracy."""
    if summary.metric == "accuracy":
        return []
    name, found = capitalised(WORDS[summary.metric]), summary.by_clients
    worst = "–" if found.worst is None else f"{percent(found.worst)} (client {found.worst_client})"
    return [
        [f"{name} of the global model on the global test set", percent(summary.tested)],
        [f"{name} of the clients, mean", percent(found.mean)],
        ["– worst client", worst],
    ]


def _unfinished(run: RunRecord) -> str:
    return {
        "running": "The run is going on: what follows is what it has written so far.",
        "failed": f"The run failed: {run.failure}",
        "interrupted": "The run was interrupted: what follows is what it had written by then. "
        f"“fedsynth resume {run.path}” goes on with it.",
        "finished": "The summary of the run cannot be read: what follows comes from its other files.",
    }[run.state]


def _so_far(run: RunRecord) -> list[Block]:
    if not run.metrics:
        return []
    last, known = run.metrics[-1], run.validated
    rows = [
        ["Rounds", f"{last.round}{run.planned_rounds}"],
        [f"Validation {run.metric_words}, last", percent(known[-1] if known else None)],
        [f"Validation {run.metric_words}, best", percent(max(known, default=None))],
        ["Sent by the method, up and down", megabytes(last.bytes_up + last.bytes_down)],
        ["Time so far", seconds(last.seconds)],
        ["Requests that were not answered", str(last.failed)],
    ]
    return [Table("So far", ["measure", "value"], rows)]


def accuracy_series(run: RunRecord, name: str = "", colour: int = 0) -> list[Series]:
    """Validation over the rounds in percent, and the global test where the run recorded it, by the chosen metric."""
    prefix = f"{name}, " if name else ""
    validation = [(row.round, row.validation.of(run.metric)) for row in run.metrics if row.validation]
    test = [(row.round, row.test.of(run.metric)) for row in run.metrics if row.test]
    lines = [
        Series(f"{prefix}validation", _in_percent(validation), colour),
        Series(f"{prefix}global test", _in_percent(test), colour, dashed=True),
    ]
    return [line for line in lines if line.points]


def _in_percent(points: Iterable[tuple[int, float | None]]) -> list[tuple[float, float]]:
    """Points of a line; what is not known or not finite is left out."""
    return [(x, 100 * y) for x, y in points if y is not None and math.isfinite(y)]


def curves(run: RunRecord) -> list[Block]:
    """The chosen metric over the rounds."""
    series = accuracy_series(run)
    worst = _in_percent((row.round, row.validation.worst) for row in run.metrics if row.validation)
    series += [Series("worst client, validation", worst, 1)] if worst else []
    if not series:
        return [Words(["No round was evaluated (evaluation.every = 0, or the run has not come so far)."])]
    metric = run.metric_words
    title, words = f"{capitalised(metric)} over the rounds", ". ".join(map(_course, series)) + "."
    drawn = svg.curves(title, words, series, "round", f"{metric}, %")
    if any(line.dashed for line in series):
        words += " The test curve was asked for (evaluation.test_curve); nothing is selected by it."
    return [Figure(title, drawn, words, series, numbers=curve_table(series, metric))]


def _course(line: Series) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    top = max(line.points, key=lambda point: point[1])
    name = line.name[0].upper() + line.name[1:]
    best = f"at best {top[1]:.1f} % in {top[0]:.0f}"
    return f"{name}: {start:.1f} % in round {first:.0f}, {end:.1f} % in round {last:.0f}, {best}"


def curve_table(series: list[Series], metric: str = "accuracy") -> Table:
    """The numbers of lines over the rounds."""
    by_line = [dict(line.points) for line in series]
    rounds = sorted({x for line in by_line for x in line})
    rows = [[f"{x:.0f}", *(f"{line[x]:.2f}" if x in line else "–" for line in by_line)] for x in rounds]
    return Table(f"{capitalised(metric)} by round, %", ["round", *(line.name for line in series)], rows)


def clients(run: RunRecord) -> list[Block]:
    """Every client's value of the chosen metric on its own test part."""
    if not run.clients:
        return [Words(["Clients are evaluated when a run ends; there is nothing yet."])]
    view: View = run.summary.clients.view if run.summary else "global"
    other: View = "global" if view == "personal" else "personal"
    first = [(row["client"], _cell(row, f"{view}/test/{run.metric}")) for row in run.clients]
    second = [_cell(row, f"{other}/test/{run.metric}") for row in run.clients]
    order = sorted(range(len(first)), key=lambda i: (first[i][1] is None, -(first[i][1] or 0.0)))
    rows, marks = [first[i] for i in order], [second[i] for i in order]
    known = [value for _, value in rows if value is not None]
    if not known:
        return [Words([_not_defined(run)]), _client_table(run)]
    named, metric = {"global": "the global model", "personal": "its own model"}, capitalised(run.metric_words)
    words = (
        f"{metric} of {named[view]} at each of {len(rows)} clients, on the client's own test part: "
        f"from {min(known):.1f} % to {max(known):.1f} %."
    )
    both = any(value is not None for value in marks)
    words += f" Diamonds: {named[other]}." if both and len(rows) <= BARS else ""
    series = [Series(named[view], list(enumerate(known, 1)), 0)]
    if both:
        known_marks = sorted((value for value in marks if value is not None), reverse=True)
        series.append(Series(named[other], list(enumerate(known_marks, 1)), 1))
    return [_ranked(run.metric_words, "by client", words, rows, marks, series), _client_table(run)]


def _not_defined(run: RunRecord) -> str:
    parts = [f"{view}/test/examples" for view in get_args(View)]
    if not any(row.get(part) for row in run.clients for part in parts):
        return "No client has test examples of its own."
    return f"{capitalised(run.metric_words)} is not defined on the test part of any client."


def _ranked(
    metric: str,
    by: str,
    words: str,
    rows: list[tuple[str, float | None]],
    marks: list[float | None],
    series: list[Series],
) -> Figure:
    """Bars while they can be read, a curve over ranks beyond that."""
    title = f"{capitalised(metric)} {by}"
    if len(rows) > BARS:
        drawn = svg.curves(title, words, series, f"{by.removeprefix('by ')}, best first", f"{metric}, %")
        return Figure(title, drawn, words, series if len(series) > 1 else ())
    return Figure(title, svg.bars(title, words, rows, marks), words)


def _cell(row: dict[str, str], key: str) -> float | None:
    text = row.get(key) or ""
    return 100 * float(text) if text else None


def _client_table(run: RunRecord) -> Table:
    kept = ("train_examples", "examples", "accuracy", "balanced_accuracy", run.metric)
    columns = [key for key in run.clients[0] if key.split("/")[-1] in kept]
    rows = [[row["client"], *(_shown(key, row.get(key) or "") for key in columns)] for row in run.clients]
    return Table("Every client", ["client", *(key.replace("_", " ").replace("/", " ") for key in columns)], rows)


def _shown(key: str, text: str) -> str:
    return percent(float(text)) if not key.endswith("examples") and text else text or "–"


def classes(run: RunRecord) -> list[Block]:
    """The global model on the global test set, class by class."""
    accuracies = run.summary.test.class_accuracy if run.summary else []
    if not accuracies:
        return [Words(["There is no global model that was evaluated on the global test set, class by class."])]
    names = run.manifest.classes or [str(place) for place in range(len(accuracies))]
    values = [None if value is None else 100 * value for value in accuracies]
    rows = list(zip(names, values, strict=True))
    known = [value for value in values if value is not None]
    worst = min(rows, key=lambda row: 101.0 if row[1] is None else row[1])
    words = (
        f"Accuracy of the global model on the global test set for {len(rows)} classes: from {min(known):.1f} % "
        f"(class {worst[0]}) to {max(known):.1f} %."
    )
    series = [Series("global model", list(enumerate(sorted(known, reverse=True), 1)), 0)]
    held = [str(count) for count in run.manifest.counts.per_class.get("train", [])] or [""] * len(rows)
    table = Table(
        "Every class",
        ["class", "accuracy on the global test", "training examples, all clients"],
        [[name, "–" if v is None else f"{v:.2f} %", count] for (name, v), count in zip(rows, held, strict=False)],
    )
    return [_ranked("accuracy", "by class", words, rows, [], series), table]
