"""The section of a run's report about its measures: all of them in a table, who is taken for whom, and how sure."""

from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import LESS, WORDS, GlobalScores, MeasureName
from fedsynth.report import svg
from fedsynth.report.blocks import Block, Figure, Table, Words, capitalised, percent, show
from fedsynth.report.reading import RunRecord
from fedsynth.report.svg import Series

MOST_DRAWN = 40  # classes of a confusion matrix that can be read
ABOUT = (
    "AUROC and AUPRC are about the second class of two; with more they are means over the classes, each against the "
    "others. Pooled over clients are right answers; AUROC, AUPRC and calibration error are means weighted by examples."
)


def measures(run: RunRecord) -> list[Block]:
    """All measures of the final model."""
    summary = run.summary
    if summary is None or not (summary.test.measures or summary.clients.measures):
        return [Words(["Other measures than accuracy are taken when a run ends; there are none here."])]
    classes = max(len(summary.test.class_accuracy), len(summary.clients.sensitivity))
    names = run.manifest.classes or [str(place) for place in range(classes)]
    tables = [*_classes(summary, names), *_clients(run, summary)]
    figures = [*_confusion(summary.test, names), *_reliability(summary.test)]
    return [_table(summary), Words([ABOUT]), *tables, *figures]


def shown(name: MeasureName, value: float | None) -> str:
    """A measure as text: a share in percent, but the Brier score, which is none."""
    return show(value, ".4f") if name == "brier" else percent(value)


def _table(summary: RunSummary) -> Table:
    own = "each its own model" if summary.clients.view == "personal" else "global model"
    rows = []
    for name, words in WORDS.items():
        found = summary.clients.of(name)
        worst = f"{shown(name, found.worst)} ({found.worst_client})" if found.n else "–"
        cells = [shown(name, summary.test.of(name)), shown(name, found.mean), worst, shown(name, found.pooled)]
        chosen = " (chosen)" if name == summary.metric else ""
        rows.append([f"{words}{', less is better' if name in LESS else ''}{chosen}", *cells, str(found.n)])
    columns = ["measure", "global test", f"clients, mean ({own})", "worst client", "clients, pooled", "n clients"]
    return Table("All measures", columns, rows, stacked=True)


def _classes(summary: RunSummary, names: list[str]) -> list[Block]:
    test, clients = summary.test, summary.clients
    parts = [
        ("global test", test.class_accuracy, test.specificity),
        ("clients, pooled", clients.sensitivity, clients.specificity),
    ]
    there = [(where, [*zip(own, others, strict=True)]) for where, own, others in parts if own and others]
    if not there:
        return []
    columns = ["class", *(f"{what}, {where}" for where, _ in there for what in ("sensitivity", "specificity"))]
    rows = [
        [name, *(percent(value) for _, by_class in there for value in by_class[place])]
        for place, name in enumerate(names[: len(there[0][1])])
    ]
    return [Table("Sensitivity and specificity by class", columns, rows, stacked=True)]


def _confusion(test: GlobalScores, names: list[str]) -> list[Block]:
    """Who is taken for whom on the global test; shares of each true class, and the counts behind them."""
    counts = test.confusion
    if not 1 < len(counts) <= MOST_DRAWN:
        return []
    shares = [[100 * n / sum(row) for n in row] if sum(row) else [None] * len(row) for row in counts]
    mistakes = [(n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j and n]
    n, i, j = max(mistakes, default=(0, 0, 0))
    most = f"The most frequent mistake: {n} of {sum(counts[i])} of class {names[i]} are taken for {names[j]}."
    words = (
        "Rows: the true class; columns: what the global model took it for, on the global test; stronger is a larger "
        f"share of the row. {most if mistakes else 'There are no mistakes.'}"
    )
    drawn = svg.grid("Confusion matrix", words, names, names, svg.levels(shares, 0, 100), "taken for")
    rows = [[name, *map(str, row)] for name, row in zip(names, counts, strict=False)]
    numbers = Table("Confusion matrix, examples", ["class", *(f"taken for {name}" for name in names)], rows)
    return [Figure("Confusion matrix", drawn, words, steps=("0 %", "100 %"), numbers=numbers)]


def _reliability(test: GlobalScores) -> list[Block]:
    """How often the model was right, by how sure it was."""
    if not test.reliability:
        return []
    points = [(100 * found.confidence, 100 * found.accuracy) for found in test.reliability]
    ends = [(0.0, 0.0), (100.0, 100.0)]
    series = [Series("global model", points, 0), Series("as sure as right", ends, 1, dashed=True)]
    total = sum(b.examples for b in test.reliability)
    sure = sum(b.examples * b.confidence for b in test.reliability) / total
    right = sum(b.examples * b.accuracy for b in test.reliability) / total
    verdict = "too sure" if sure > right else "not sure enough"
    words = (
        f"How often the model was right among answers that it was equally sure of (below the line: too sure). On "
        f"average it is {percent(sure, 1)} sure and {percent(right, 1)} right, so {verdict}; calibration "
        f"error {percent(test.measures.get('ece'))}."
    )
    drawn = svg.curves("Reliability", words, series, "confidence, %", "right, %")
    rows = [[percent(b.confidence, 1), percent(b.accuracy, 1), str(b.examples)] for b in test.reliability]
    numbers = Table("Reliability by confidence", ["confidence", "right", "examples"], rows)
    return [Figure("Reliability", drawn, words, series, numbers=numbers)]


def _clients(run: RunRecord, summary: RunSummary) -> list[Block]:
    """Every client's measures on its own test part."""
    prefix = f"{summary.clients.view}/test/"
    extra = [name for name in ("sensitivity", "specificity") if any(row.get(prefix + name) for row in run.clients)]
    rows = [
        [
            row["client"],
            *(shown(name, _number(row.get(prefix + name))) for name in WORDS),
            *(percent(_number(row.get(prefix + name))) for name in extra),
            row.get(f"{prefix}examples") or "–",
        ]
        for row in run.clients
        if row.get(f"{prefix}examples")
    ]
    columns = ["client", *map(capitalised, WORDS.values()), *map(capitalised, extra), "examples"]
    return [Table("Every client on its own test part", columns, rows, stacked=True)] if rows else []


def _number(text: str | None) -> float | None:
    return float(text) if text else None
