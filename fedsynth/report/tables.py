"""Results as tables: for the terminal, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from fedsynth.data.check import Check
from fedsynth.privacy import ledger_words
from fedsynth.report.coverage import missed_words
from fedsynth.report.intervals import Interval, paired_difference

DIFFERENCE = "difference"
COLUMNS = ("method", "global", "class var", "clients", "worst", "worse", "client var", "MB", "epochs", "s", "n")
ALONE = "local"  # the row that others must beat at every client
LEGEND = (
    "global: the global model on the global test set, %; clients: the clients' mean accuracy on their own test parts, %"
    " (* own models); worse: clients that do worse than alone (row local), %;"
    " var in %²; MB up and down; epochs over all clients; ± standard deviation over n seeds"
)

DIFFERENCES = "difference: on the global test, in points, paired by seed and split, ± half of a 95 % interval"


def comparison_rows(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per label (the method's name unless told): means over the seeds, with standard deviations where several."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for summary in summaries:
        runs.setdefault(summary.get("label", summary["method"]), []).append(summary)
    alone = {_setting(run): run.get("per_client", {}) for run in runs.get(ALONE, [])}
    rows = [_row(label, of_label, alone if label != ALONE else {}) for label, of_label in runs.items()]
    first = next(iter(runs.values()), [])
    for row, of_label in zip(rows[1:], list(runs.values())[1:], strict=True):
        row |= _difference(of_label, first)
    return rows


def _difference(runs: list[dict[str, Any]], first: list[dict[str, Any]]) -> dict[str, Any]:
    """How far a row is from the first one on the global test, paired by seed and split, with a 95 % interval."""
    of, to = ({(r["seed"], r["data"]["split"]): r["test"]["accuracy"] for r in part} for part in (runs, first))
    found = paired_difference(of, to)
    if found is None:
        return {}
    return {DIFFERENCE: found.mean, f"{DIFFERENCE}_half": found.half, f"{DIFFERENCE}_n": found.n}


def _setting(run: dict[str, Any]) -> tuple[Any, Any]:
    """What two runs must share for their clients to be the same: seed and split."""
    return run.get("seed"), run.get("data", {}).get("split")


def share_made_worse(own: dict[str, float], alone: dict[str, float]) -> float | None:
    """The share of the clients in both whose accuracy is lower than when they trained alone."""
    both = [client for client in own if client in alone]
    return sum(own[client] < alone[client] for client in both) / len(both) if both else None


def _row(
    name: str, runs: list[dict[str, Any]], alone: dict[tuple[Any, Any], dict[str, float]] | None = None
) -> dict[str, Any]:
    values = {
        "test": [run["test"]["accuracy"] for run in runs],
        "class_variance": [run["test"]["class_variance"] for run in runs],
        "mean": [run["clients"].get("mean") for run in runs],
        "worst": [run["clients"].get("worst") for run in runs],
        "worse": [share_made_worse(run.get("per_client", {}), (alone or {}).get(_setting(run), {})) for run in runs],
        "variance": [run["clients"].get("variance") for run in runs],
        "megabytes": [(run["bytes"]["up"] + run["bytes"]["down"]) / 1e6 for run in runs],
        "epochs": [run["client_epochs"] for run in runs],
        "seconds": [run["seconds"] for run in runs],
    }
    row: dict[str, Any] = {"method": name}
    for key, numbers in values.items():
        known = [number for number in numbers if number is not None]
        row[key] = mean(known) if known else None
        if len(known) > 1:
            row[f"{key}_std"] = stdev(known)
    row["view"] = runs[0]["clients"].get("view", "")
    row["n"] = len(runs)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """A row's cells as text: accuracies in percent, ± the standard deviation over seeds."""

    def show(key: str, form: str, scale: float = 1.0) -> str:
        if row.get(key) is None:
            return "–"
        spread = f" ± {scale * row[f'{key}_std']:{form}}" if f"{key}_std" in row else ""
        return f"{scale * row[key]:{form}}{spread}"

    own = "*" if row["view"] == "personal" else ""
    return [
        row["method"],
        show("test", ".2f", 100),
        show("class_variance", ".0f"),
        show("mean", ".2f", 100) + own,
        show("worst", ".2f", 100),
        show("worse", ".0f", 100),
        show("variance", ".0f"),
        f"{row['megabytes']:.1f}",
        f"{row['epochs']:.0f}",
        f"{row['seconds']:.1f}",
        "1, single run" if row["n"] == 1 else str(row["n"]),
    ]


def difference_cell(row: dict[str, Any]) -> str:
    """The difference to the first row in points, ± half of its interval."""
    found = _interval(row)
    return "–" if found is None else found.text("+.2f", 100)


def _interval(row: dict[str, Any]) -> Interval | None:
    if row.get(DIFFERENCE) is None:
        return None
    return Interval(row[DIFFERENCE], row[f"{DIFFERENCE}_half"], row[f"{DIFFERENCE}_n"])


def difference_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the paired differences to the first row say, a sentence each."""
    lines = []
    for row in rows[1:]:
        found = _interval(row)
        if found is None:
            continue
        if found.half is None:
            means = "single run: no conclusion"
        elif found.excludes_zero:
            means = "95 % interval, excludes zero"
        else:
            means = "95 % interval, includes zero: no difference shown"
        lines.append(f"{row['method']} − {rows[0]['method']}: {difference_cell(row)} points (n = {found.n}; {means})")
    return lines


def _whole(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Head and rows of a written table: the columns of the terminal and the difference to the first row."""
    head = [*COLUMNS, f"difference to {rows[0]['method']}"] if len(rows) > 1 else list(COLUMNS)
    return [head, *([*cells(row), difference_cell(row)] if len(rows) > 1 else cells(row) for row in rows)]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table with its legend."""
    head, *body = _whole(rows)
    text = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body])
    legend = LEGEND + (f"; {DIFFERENCES}" if len(rows) > 1 else "")
    return f"{text}\n\n{legend[0].upper()}{legend[1:]}."


def latex(rows: Sequence[dict[str, Any]]) -> str:
    """A LaTeX table (package booktabs) with its legend as a comment."""
    head, *body = [[_latex(cell) for cell in line] for line in _whole(rows)]
    lines = [" & ".join(line) + r" \\" for line in body]
    shape = "l" + "r" * (len(head) - 1)
    top = [f"% {LEGEND}; {DIFFERENCES}.", rf"\begin{{tabular}}{{{shape}}}", r"\toprule", " & ".join(head) + r" \\"]
    return "\n".join([*top, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "−": "$-$", "–": "--", "²": "$^2$"} | {c: f"\\{c}" for c in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def summary_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What to say about one run, as pairs of a name and a text."""
    test, clients = summary["test"], summary["clients"]
    lines = [("method", f"{summary['method']}, seed {summary['seed']}, {summary['rounds']} rounds (single run)")]
    if test["accuracy"] is None:
        lines.append(("global test", f"none: {test['reason']}"))
    else:
        lines.append(("global test", f"{test['accuracy']:.2%}, variance over classes {test['class_variance']:.0f} %²"))
    if clients["n"]:
        model = "its own model" if clients["view"] == "personal" else "the global model"
        lines.append(
            (
                "clients",
                f"mean {clients['mean']:.2%}, worst {clients['worst']:.2%} (client {clients['worst_client']}), "
                f"variance {clients['variance']:.0f} %²; {clients['n']} clients, {model}, each on its own test part",
            )
        )
    moved = summary["bytes"]
    sent = f"{moved['up'] / 1e6:.1f} MB up, {moved['down'] / 1e6:.1f} MB down"
    lines.append(("cost", f"{sent}, {summary['client_epochs']:.0f} client epochs, {summary['seconds']:.1f} s"))
    if summary["simulated_seconds"]:
        lines.append(("simulated time", f"{summary['simulated_seconds'] / 60:.1f} minutes; see timeline.png"))
    if summary["failed"]:
        lines.append(("failures", f"{summary['failed']} requests were not answered; see participation.json"))
    lines.extend(("missing", missed_words(missed)) for missed in summary.get("missed", [])[:10])
    lines.extend(("note", note) for note in summary["notes"])
    if summary["norm_buffers"] != "average":
        lines.append(("norm statistics", summary["norm_buffers"]))
    lines.extend(("privacy", sentence) for sentence in ledger_words(summary["privacy"]))
    lines.append(("run folder", summary["run_dir"]))
    return lines


def check_lines(found: Check) -> list[str]:
    """What `fedsynth check` says, line by line."""
    lines = []
    for source in found.sources:
        shape = "×".join(map(str, source.shape))
        lines.append(
            f"{source.name}: {shape}, {len(source.class_names)} classes, fingerprint {source.fingerprint[:12]}"
        )
        for part, numbers in (("train", source.train), ("test", source.test)):
            if numbers is None:
                lines.append(f"  {part}: none of its own; a stratified share is held out")
                continue
            counts = ", ".join(f"{n} {c}" for n, c in zip(source.class_names, numbers.per_class, strict=True))
            lines.append(
                f"  {part}: {numbers.examples} examples, values {numbers.lowest:g} to {numbers.highest:g}; {counts}"
            )
        if source.clients is not None:
            lines.append(f"  {source.clients} natural clients")
    for silo in found.silos:
        lacking = f", lacks {', '.join(silo.missing)}" if silo.missing else ""
        lines.append(f'client "{silo.client}": {silo.shape}, {silo.examples} examples{lacking}')
    return (
        lines
        + [f"problem: {problem}" for problem in found.problems]
        + ([] if found.problems else ["no problems found"])
    )
