"""Sections of a report about several runs: means with intervals, paired differences, curves one over the other."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from fedsynth.evaluation.results import RunSummary, TuningResult
from fedsynth.evaluation.scores import WORDS
from fedsynth.privacy import ledger_words
from fedsynth.report import svg
from fedsynth.report.blocks import Block, Code, Figure, Table, Words, capitalised
from fedsynth.report.controls import control_verdicts, verdict_lines
from fedsynth.report.course import LOOK_FIRST, command_again
from fedsynth.report.intervals import Interval, interval, paired_difference
from fedsynth.report.outcome import accuracy_series, curve_table
from fedsynth.report.reading import RunRecord
from fedsynth.report.svg import Series

SINGLE = "1, single run"
INTERVALS = (
    "Means over n seeds ± half of a 95 % interval (Student's t). A difference is paired: taken seed by seed on the "
    "same split. With one seed there is no interval, and no conclusion."
)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[RunRecord]

    @property
    def finished(self) -> list[tuple[RunRecord, RunSummary]]:
        """The runs that have a result."""
        return [(run, run.summary) for run in self.runs if run.summary is not None]

    def numbers(self, of: Callable[[RunSummary], float | None]) -> list[float | None]:
        """A number of every result."""
        return [of(summary) for _, summary in self.finished]

    def paired(self) -> tuple[str, dict[tuple[object, str], float | None]]:
        """What to compare by, and its values by seed and split: the global test, or the clients' mean without one."""
        tested = any(summary.tested is not None for _, summary in self.finished)
        values = {(run.seed, run.split): s.tested if tested else s.by_clients.mean for run, s in self.finished}
        return "test" if tested else "clients", values


def metric_words(groups: Sequence[Group]) -> str:
    """By what the runs are compared: the metric that they chose, or each its own."""
    found = list(dict.fromkeys(WORDS[summary.metric] for group in groups for _, summary in group.finished))
    return " or ".join(found) or WORDS["accuracy"]


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs by label; without labels, by everything in their config but the seed."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        rest = {key: value for key, value in run.config.items() if key not in ("seed", "name", "runs", "engine")}
        same = "" if run.label else json.dumps(rest, sort_keys=True)
        groups.setdefault((run.label or run.method, same), []).append(run)
    times = Counter(label for label, _ in groups)
    return [Group(label if times[label] == 1 else f"{label} ({of[0].name})", of) for (label, _), of in groups.items()]


def result(groups: list[Group]) -> list[Block]:
    """The headline table and the differences to the first row."""
    differences = {group.label: _difference(group, groups[0]) for group in groups[1:]}
    rows = [_row(group, differences.get(group.label)) for group in groups]
    scores = ["global test, %", "clients, %", "worst client, %"]
    columns = ["method", "n", *scores, f"difference to {groups[0].label}", "MB", "s"]
    blocks: list[Block] = [Table(f"The results side by side: {metric_words(groups)}", columns, rows, stacked=True)]
    blocks.append(Words([INTERVALS]))
    if any(len(group.runs) == 1 for group in groups):
        warning = "Rows stamped “single run” rest on one seed: another seed may turn their order."
        blocks.append(Words([warning], notice=True))
    known = [(label, found) for label, found in differences.items() if found is not None and found.half is not None]
    if known:
        said = [f"{label}: {_points(found)} (n = {found.n}), {_verdict(found)}" for label, found in known]
        words = f"Difference to {groups[0].label} in percentage points, with 95 % intervals. " + "; ".join(said) + "."
        bars = [(label, 100 * found.low, 100 * found.mean, 100 * found.high) for label, found in known]
        blocks.append(Figure("Paired differences", svg.whiskers("Paired differences", words, bars), words))
    unpaired = [label for label, found in differences.items() if found is None]
    if unpaired:
        text = (
            f"No paired difference for {', '.join(unpaired)}: no seed and split in common with {groups[0].label}, or "
            "no such number."
        )
        blocks.append(Words([text]))
    return blocks


def _difference(group: Group, first: Group) -> Interval | None:
    (kind, own), (other_kind, other) = group.paired(), first.paired()
    return paired_difference(own, other) if kind == other_kind else None


def _row(group: Group, difference: Interval | None) -> list[str]:
    found = [summary for _, summary in group.finished]
    own = "*" if any(summary.clients.view == "personal" for summary in found) else ""
    return [
        group.label,
        SINGLE if len(found) == 1 else str(len(found)),
        _text(group.numbers(lambda summary: summary.tested), 100),
        _text(group.numbers(lambda summary: summary.by_clients.mean), 100) + own,
        _text(group.numbers(lambda summary: summary.by_clients.worst), 100),
        "–" if difference is None else _points(difference),
        f"{mean([s.bytes.up + s.bytes.down for s in found] or [0]) / 1e6:.1f}",
        f"{mean([summary.seconds for summary in found] or [0]):.1f}",
    ]


def _text(values: Sequence[float | None], scale: float) -> str:
    found = interval(values)
    return "–" if found is None else found.text(".2f", scale)


def _points(found: Interval) -> str:
    return found.text("+.2f", 100) + (" (single run)" if found.half is None else "")


def _verdict(found: Interval) -> str:
    if not found.excludes_zero:
        return "the interval includes zero: no difference is shown"
    return "better: the interval excludes zero" if found.mean > 0 else "worse: the interval excludes zero"


def curves(groups: list[Group]) -> list[Block]:
    """Validation by the chosen metric, a line per label: the mean over its seeds in rounds that all of them have."""
    series: list[Series] = []
    for colour, group in enumerate(groups):
        lines: dict[tuple[str, bool], list[dict[float, float]]] = {}
        for run in group.runs:
            for line in accuracy_series(run, group.label, colour):
                lines.setdefault((line.name, line.dashed), []).append(dict(line.points))
        for (name, dashed), of in lines.items():
            rounds = sorted(set.intersection(*(set(points) for points in of)))
            points = [(x, mean(line[x] for line in of)) for x in rounds]
            series += [Series(name, points, colour, dashed)] if points else []
    if not series:
        return [Words(["No run was evaluated during training."])]
    ends = "; ".join(f"{line.name}: {line.points[-1][1]:.1f} % in round {line.points[-1][0]:.0f}" for line in series)
    words = f"Means over the seeds of each row. At the end: {ends}."
    metric = metric_words(groups)
    title = f"{capitalised(metric)} over the rounds"
    drawn = svg.curves(title, words, series, "round", f"{metric}, %")
    return [Figure(title, drawn, words, series, numbers=curve_table(series, metric))]


def classes(groups: list[Group]) -> list[Block]:
    """Accuracy per class on the global test, a row per label."""
    names = next((run.manifest.classes for group in groups for run in group.runs if run.manifest.classes), [])
    table: dict[str, list[float | None]] = {}
    for group in groups:
        known = [summary.test.class_accuracy for _, summary in group.finished if summary.test.class_accuracy]
        if known:
            table[group.label] = [_percent(column) for column in zip(*known, strict=True)]
    if not table:
        return [Words(["No global model was evaluated class by class."])]
    values = list(table.values())
    columns = names or [str(place) for place in range(len(values[0]))]
    words = "Accuracy of the global model per class of the global test set, means over the seeds; stronger is better."
    drawn = svg.grid("Accuracy by class", words, list(table), columns, svg.levels(values, 0, 100), "class")
    rows = [[label, *("–" if v is None else f"{v:.1f}" for v in row)] for label, row in table.items()]
    numbers = Table("Accuracy by class, %", ["method", *columns], rows)
    return [Figure("Accuracy by class", drawn, words, steps=("0 %", "100 %"), numbers=numbers)]


def clients(groups: list[Group]) -> list[Block]:
    """Mean and worst client of every row."""
    rows = [(group.label, _percent(group.numbers(lambda summary: summary.by_clients.mean))) for group in groups]
    worst = [_percent(group.numbers(lambda summary: summary.by_clients.worst)) for group in groups]
    said = "; ".join(
        f"{label}: mean {mean_:.1f} %, worst {low:.1f} %"
        for (label, mean_), low in zip(rows, worst, strict=True)
        if mean_ is not None and low is not None
    )
    metric = metric_words(groups)
    words = f"Bars: the clients' mean {metric} on their own test parts. Diamonds: the worst client. {said}."
    return [Figure("Clients", svg.bars("Clients", words, rows, worst), words)]


def _percent(values: Sequence[float | None]) -> float | None:
    found = interval(values)
    return None if found is None else 100 * found.mean


def controls(groups: list[Group]) -> list[Block]:
    """Whether a gain comes from the synthetic data."""
    summaries = [
        summary.model_copy(update={"label": group.label, "base": run.base, "control": run.control})
        for group in groups
        for run, summary in group.finished
    ]
    lines = verdict_lines(control_verdicts(summaries))
    return [Words(lines)] if lines else [Words(["No controls ran beside these methods (compare --controls)."])]


def tuning(found: Sequence[TuningResult]) -> list[Block]:
    """What the search chose for every method, by validation."""
    if not found:
        return [Words(["The settings were not tuned: every method ran with those it was given."])]
    rows = [
        [kept.label, str(len(kept.trials)), json.dumps(kept.chosen), f"{100 * kept.validation:.2f} %"] for kept in found
    ]
    text = "Every method had the same number of trials, evaluated on validation parts only, on the first seed."
    return [
        Words([text]),
        Table("Tuning", ["method", "trials", "chosen", "validation"], rows, numbers=False, stacked=True),
    ]


def splits(groups: list[Group]) -> list[Block]:
    """Whether the rows ran on the same splits."""
    rows: dict[object, dict[str, str]] = {}
    for group in groups:
        for run in group.runs:
            rows.setdefault(run.seed, {})[group.label] = run.split[:12] or "unknown"
    same = all(len(set(by_label.values())) == 1 for by_label in rows.values())
    words = "All rows of a seed ran on the same split."
    if not same:
        words = "Not all rows of a seed ran on the same split: they are not comparable."
    cells = [[str(seed), *(by_label.get(group.label, "–") for group in groups)] for seed, by_label in rows.items()]
    columns = ["seed", *(group.label for group in groups)]
    table = Table("Hash of the split by seed", columns, cells, numbers=False, stacked=True)
    return [Words([words], notice=not same), table]


def privacy(groups: list[Group]) -> list[Block]:
    """The ledger of each row's first run, in plain words."""
    words = [next((ledger_words(summary.privacy) for _, summary in group.finished), ["unknown"]) for group in groups]
    rows = [[group.label, " ".join(said)] for group, said in zip(groups, words, strict=True)]
    return [Table("What left the clients", ["method", "in words"], rows, numbers=False)]


def reproduce(groups: list[Group], links: dict[str, str]) -> list[Block]:
    """Every run with its folder, seed, state and versions."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    versions = [(run.versions.get("fedsynth", "unknown"), run.versions.get("code", "")[:12]) for _, run in runs]
    rows = [[run.name, label, str(run.seed), run.state, *of] for (label, run), of in zip(runs, versions, strict=True)]
    targets = [links.get(run.name, "") for _, run in runs] if links else ()
    columns = ["run", "method", "seed", "state", "fedsynth", "code"]
    return [
        Words(["Each run can be made again from its own config.json; the first one:"]),
        Code("Command", command_again(runs[0][1])),
        *([Words([LOOK_FIRST])] if runs[0][1].config.get("plugins") else []),
        Table("Runs", columns, rows, numbers=False, links=targets, stacked=True),
    ]
