"""Sections of a run's report about its result: the headline, the curves, the clients and the classes."""

from __future__ import annotations

from typing import Any

from fedsynth.report import svg
from fedsynth.report.blocks import Block, Figure, Table, Words, megabytes, percent, seconds
from fedsynth.report.reading import RunRecord, number, pick
from fedsynth.report.svg import Series

BARS = 40  # more rows than this become a curve over ranks


def headline(run: RunRecord) -> list[Block]:
    """The result in one table."""
    if not run.summary:
        return [Words([_unfinished(run)], notice=True), *_so_far(run)]
    test, clients = pick(run.summary, "test") or {}, pick(run.summary, "clients") or {}
    own = "each client's own model" if clients.get("view") == "personal" else "the global model"
    judged = f"{own}, each on its own test part; n = {clients.get('n', 0)} clients"
    moved = pick(run.summary, "bytes") or {}
    best, sizes = pick(run.summary, "best") or {}, [moved.get("up", 0), moved.get("down", 0)]
    reason = f"none: {test.get('reason')}" if number(test, "accuracy") is None else percent(number(test, "accuracy"))
    rows = [
        ["Global model on the global test set", reason],
        ["– variance over the classes", _squared(number(test, "class_variance"))],
        ["– worst class", percent(number(test, "worst_class"))],
        [f"Clients, mean ({judged})", percent(number(clients, "mean"))],
        ["– worst client", _worst(clients)],
        ["– variance over the clients", _squared(number(clients, "variance"))],
        ["Best validation accuracy (selection uses validation only)", _best(best)],
        ["Rounds", str(pick(run.summary, "rounds"))],
        ["Sent by the method, up and down", megabytes(sum(sizes))],
        ["Client epochs, all clients together", f"{number(run.summary, 'client_epochs') or 0:,.0f}"],
        ["Time of the run", seconds(number(run.summary, "seconds"))],
        ["Requests that were not answered", str(pick(run.summary, "failed") or 0)],
    ]
    notes = [str(note) for note in pick(run.summary, "notes") or []]
    blocks: list[Block] = [Table("The result of this run", ["measure", "value"], rows)]
    blocks.append(Words(["One seed, so a single run: how far another seed would be from this is not known."]))
    return [*blocks, Words(notes, notice=True)] if notes else blocks


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
    last = run.metrics[-1]
    rounds = number(run.config, "train", "rounds")
    of = f" of {rounds:.0f}" if rounds is not None else ""
    judged = [number(row, "validation", "accuracy") for row in run.metrics]
    known = [value for value in judged if value is not None]
    rows = [
        ["Rounds", f"{last.get('round')}{of}"],
        ["Validation accuracy, last", percent(known[-1] if known else None)],
        ["Validation accuracy, best", percent(max(known, default=None))],
        [
            "Sent by the method, up and down",
            megabytes(sum(number(last, f"bytes_{way}") or 0 for way in ("up", "down"))),
        ],
        ["Time so far", seconds(number(last, "seconds"))],
        ["Requests that were not answered", str(last.get("failed", 0))],
    ]
    return [Table("So far", ["measure", "value"], rows)]


def _worst(clients: dict[str, Any]) -> str:
    worst = number(clients, "worst")
    return "–" if worst is None else f"{percent(worst)} (client {clients.get('worst_client')})"


def _best(best: dict[str, Any]) -> str:
    accuracy = number(best, "accuracy")
    return "–" if accuracy is None or accuracy < 0 else f"{percent(accuracy)} (round {best.get('round')})"


def _squared(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %²"


def accuracy_series(run: RunRecord, name: str = "", colour: int = 0) -> list[Series]:
    """Validation accuracy over the rounds in percent, and the global test where the run recorded it."""
    prefix = f"{name}, " if name else ""
    return [
        Series(f"{prefix}{title}", points, colour, dashed)
        for part, title, dashed in (("validation", "validation", False), ("test", "global test", True))
        if (points := _points(run, part, "accuracy"))
    ]


def _points(run: RunRecord, part: str, key: str) -> list[tuple[float, float]]:
    found = [(number(row, "round"), number(row, part, key)) for row in run.metrics]
    return [(x, 100 * y) for x, y in found if x is not None and y is not None]


def curves(run: RunRecord) -> list[Block]:
    """Accuracy over the rounds."""
    series = accuracy_series(run)
    worst = _points(run, "validation", "worst")
    series += [Series("worst client, validation", worst, 1)] if worst else []
    if not series:
        return [Words(["No round was judged (evaluation.every = 0, or the run has not come so far)."])]
    words = ". ".join(_course(line) for line in series) + "."
    marked = any(line.dashed for line in series)
    return [
        Figure(
            "Accuracy over the rounds",
            svg.curves("Accuracy over the rounds", words, series, "round", "accuracy, %"),
            words
            + (" The test curve was asked for (evaluation.test_curve); nothing is selected by it." if marked else ""),
            series,
            numbers=_course_table(series),
        )
    ]


def _course(line: Series) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    top = max(line.points, key=lambda point: point[1])
    name = line.name[0].upper() + line.name[1:]
    best = f"at best {top[1]:.1f} % in {top[0]:.0f}"
    return f"{name}: {start:.1f} % in round {first:.0f}, {end:.1f} % in round {last:.0f}, {best}"


def _course_table(series: list[Series]) -> Table:
    by_line = [dict(line.points) for line in series]
    rounds = sorted({x for line in by_line for x in line})
    rows = [[f"{x:.0f}", *(f"{line[x]:.2f}" if x in line else "–" for line in by_line)] for x in rounds]
    return Table("Accuracy by round, %", ["round", *(line.name for line in series)], rows)


def clients(run: RunRecord) -> list[Block]:
    """Every client's accuracy on its own test part."""
    if not run.clients:
        return [Words(["Clients are judged when a run ends; there is nothing yet."])]
    view = str(pick(run.summary, "clients", "view") or "global")
    other = "global" if view == "personal" else "personal"
    first = [(row["client"], _cell(row, f"{view}/test/accuracy")) for row in run.clients]
    second = [_cell(row, f"{other}/test/accuracy") for row in run.clients]
    order = sorted(range(len(first)), key=lambda i: -1.0 if first[i][1] is None else -(first[i][1] or 0.0))
    order.sort(key=lambda i: first[i][1] is None)
    rows, marks = [first[i] for i in order], [second[i] for i in order]
    known = [value for _, value in rows if value is not None]
    if not known:
        return [Words(["No client has test examples of its own."]), _client_table(run)]
    named = {"global": "the global model", "personal": "its own model"}
    words = (
        f"Accuracy of {named[view]} at each of {len(rows)} clients, on the client's own test part: "
        f"from {min(known):.1f} % to {max(known):.1f} %."
    )
    both = any(value is not None for value in marks)
    words += f" Diamonds: {named[other]}." if both and len(rows) <= BARS else ""
    series = [Series(named[view], list(enumerate(known, 1)), 0)]
    if both:
        known_marks = sorted((value for value in marks if value is not None), reverse=True)
        series.append(Series(named[other], list(enumerate(known_marks, 1)), 1))
    return [_ranked("Accuracy by client", words, rows, marks, series, "client, best first"), _client_table(run)]


def _ranked(
    title: str,
    words: str,
    rows: list[tuple[str, float | None]],
    marks: list[float | None],
    series: list[Series],
    x_label: str,
) -> Figure:
    """Bars while they can be read, a curve over ranks beyond that."""
    if len(rows) > BARS:
        drawn = svg.curves(title, words, series, x_label, "accuracy, %")
        return Figure(title, drawn, words, series if len(series) > 1 else ())
    return Figure(title, svg.bars(title, words, rows, marks), words)


def _cell(row: dict[str, str], key: str) -> float | None:
    text = row.get(key) or ""
    return 100 * float(text) if text else None


def _client_table(run: RunRecord) -> Table:
    columns = [key for key in run.clients[0] if key != "client"]
    rows = [[row["client"], *(_shown(key, row.get(key) or "") for key in columns)] for row in run.clients]
    return Table("Every client", ["client", *(key.replace("_", " ").replace("/", " ") for key in columns)], rows)


def _shown(key: str, text: str) -> str:
    return percent(float(text)) if key.endswith("accuracy") and text else text or "–"


def class_names(run: RunRecord) -> list[str]:
    """The names of the classes, as the manifest has them."""
    return [str(name) for name in pick(run.manifest, "classes") or []]


def classes(run: RunRecord) -> list[Block]:
    """The global model on the global test set, class by class."""
    accuracies = pick(run.summary, "test", "class_accuracy")
    if not accuracies:
        return [Words(["There is no global model that was judged on the global test set, class by class."])]
    names = class_names(run) or [str(place) for place in range(len(accuracies))]
    values = [None if value is None else 100 * float(value) for value in accuracies]
    rows = list(zip(names, values, strict=True))
    known = [value for value in values if value is not None]
    worst = min(rows, key=lambda row: 101.0 if row[1] is None else row[1])
    words = (
        f"Accuracy of the global model on the global test set for {len(rows)} classes: from {min(known):.1f} % "
        f"(class {worst[0]}) to {max(known):.1f} %."
    )
    series = [Series("global model", list(enumerate(sorted(known, reverse=True), 1)), 0)]
    held = pick(run.manifest, "counts", "per_class", "train") or [""] * len(rows)
    table = Table(
        "Every class",
        ["class", "accuracy on the global test", "training examples, all clients"],
        [[name, "–" if v is None else f"{v:.2f} %", str(count)] for (name, v), count in zip(rows, held, strict=False)],
    )
    return [_ranked("Accuracy by class", words, rows, [], series, "class, best first"), table]
