"""Results as tables: for the terminal, Markdown and CSV."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from fedsynth.data.check import Check
from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import WORDS, Metric, Result, View
from fedsynth.privacy import ledger_words
from fedsynth.report.coverage import missed_words
from fedsynth.report.intervals import Interval, paired_difference
from fedsynth.report.synthesis import synthesis_words

COLUMNS = ("method", "global", "class var", "clients", "worst", "worse", "client var", "MB", "epochs", "s", "n")
ALONE = "local"  # the row that others must beat at every client
LEGEND = (
    "global: the global model on the global test set, %; clients: the clients' mean {metric} on their own test parts, %"
    " (* own models); worse: clients that do worse than alone (row local), %;"
    " var in %², class var of accuracy; MB up and down; epochs over all clients; ± standard deviation over n seeds"
)

RESULT_LINES = 2  # of the summary of a run: the method and its accuracy

SHORT = ("method", "global", "worst", "difference", "n")
CLIENTS = "clients"  # stands beside them where a row has no global model

DIFFERENCES = "difference: on the global test, in points, paired by seed and split, ± half of a 95 % interval"


class ComparisonRow(Result):
    """A row of a comparison: means over the seeds, standard deviations where there are several, and the difference to
    the first row on the global test, with half of its interval. All but the class variance are of the `metric`."""

    method: str
    metric: Metric = "accuracy"
    test: float | None
    test_std: float | None = None
    class_variance: float | None
    class_variance_std: float | None = None
    mean: float | None
    mean_std: float | None = None
    worst: float | None
    worst_std: float | None = None
    worse: float | None
    worse_std: float | None = None
    variance: float | None
    variance_std: float | None = None
    megabytes: float
    megabytes_std: float | None = None
    epochs: float
    epochs_std: float | None = None
    seconds: float
    seconds_std: float | None = None
    view: View
    n: int
    difference: float | None = None
    difference_half: float | None = None
    difference_n: int = 0

    def cells(self) -> list[str]:
        """Its cells as text: shares in percent, ± the standard deviation over seeds."""
        return [
            self.method,
            _show(self.test, self.test_std, ".2f", 100),
            _show(self.class_variance, self.class_variance_std, ".0f"),
            _show(self.mean, self.mean_std, ".2f", 100) + ("*" if self.view == "personal" else ""),
            _show(self.worst, self.worst_std, ".2f", 100),
            _show(self.worse, self.worse_std, ".0f", 100),
            _show(self.variance, self.variance_std, ".0f"),
            f"{self.megabytes:.1f}",
            f"{self.epochs:.0f}",
            f"{self.seconds:.1f}",
            "1, single run" if self.n == 1 else str(self.n),
        ]

    def short_cells(self) -> dict[str, str]:
        """The cells of the terminal's table, by column."""
        own = "*" if self.view == "personal" else ""
        return {
            "method": self.method,
            "global": _show(self.test, self.test_std, ".2f", 100),
            CLIENTS: _show(self.mean, self.mean_std, ".2f", 100) + own,
            "worst": _show(self.worst, self.worst_std, ".2f", 100) + own,
            "difference": self.difference_cell,
            "n": str(self.n),
        }

    @property
    def interval(self) -> Interval | None:
        """The difference to the first row, with its interval."""
        return None if self.difference is None else Interval(self.difference, self.difference_half, self.difference_n)

    @property
    def difference_cell(self) -> str:
        """The difference to the first row in points, ± half of its interval."""
        return "–" if self.interval is None else self.interval.text("+.2f", 100)


def _show(value: float | None, spread: float | None, form: str, scale: float = 1.0) -> str:
    return "–" if value is None else Interval(value, spread, 0).text(form, scale)


def comparison_rows(summaries: Sequence[RunSummary]) -> list[ComparisonRow]:
    """A row per label (the method's name unless told)."""
    runs: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        runs.setdefault(summary.row, []).append(summary)
    alone = {(run.seed, run.data.split): run.per_client for run in runs.get(ALONE, [])}
    first = next(iter(runs.values()), [])
    return [
        _row(label, of_label, alone if label != ALONE else {}, [] if of_label is first else first)
        for label, of_label in runs.items()
    ]


def share_made_worse(own: Mapping[str, float], alone: Mapping[str, float]) -> float | None:
    """The share of the clients in both whose score is lower than when they trained on their own data only."""
    both = [client for client in own if client in alone]
    return sum(own[client] < alone[client] for client in both) / len(both) if both else None


def _row(
    name: str,
    runs: Sequence[RunSummary],
    alone: Mapping[tuple[int, str], Mapping[str, float]],
    first: Sequence[RunSummary],
) -> ComparisonRow:
    values: dict[str, list[float | None]] = {
        "test": [run.tested for run in runs],
        "class_variance": [run.test.class_variance for run in runs],
        "mean": [run.by_clients.mean for run in runs],
        "worst": [run.by_clients.worst for run in runs],
        "worse": [share_made_worse(run.per_client, alone.get((run.seed, run.data.split), {})) for run in runs],
        "variance": [run.by_clients.variance for run in runs],
        "megabytes": [(run.bytes.up + run.bytes.down) / 1e6 for run in runs],
        "epochs": [run.client_epochs for run in runs],
        "seconds": [run.seconds for run in runs],
    }
    numbers: dict[str, float | None] = {}
    for key, given in values.items():
        known = [number for number in given if number is not None]
        numbers[key] = mean(known) if known else None
        if len(known) > 1:
            numbers[f"{key}_std"] = stdev(known)
    of, to = ({(run.seed, run.data.split): run.tested for run in part} for part in (runs, first))
    found = paired_difference(of, to)
    if found is not None:
        numbers |= {"difference": found.mean, "difference_half": found.half, "difference_n": found.n}
    return ComparisonRow(method=name, metric=runs[0].metric, view=runs[0].clients.view, n=len(runs), **numbers)


def difference_lines(rows: Sequence[ComparisonRow]) -> list[str]:
    """What the paired differences to the first row say, a sentence each."""
    lines = []
    for row in rows[1:]:
        found = row.interval
        if found is None:
            continue
        if found.half is None:
            means = "single run: no conclusion"
        elif found.excludes_zero:
            means = "95 % interval, excludes zero"
        else:
            means = "95 % interval, includes zero: no difference shown"
        lines.append(f"{row.method} − {rows[0].method}: {row.difference_cell} points (n = {found.n}; {means})")
    return lines


def short_columns(rows: Sequence[ComparisonRow]) -> list[str]:
    """The columns that 80 characters have room for; all are in the CSV, the JSON and the report."""
    personal = any(row.test is None and row.mean is not None for row in rows)
    return [name for column in SHORT for name in ((column, CLIENTS) if column == "global" and personal else (column,))]


def short_legend(rows: Sequence[ComparisonRow]) -> list[str]:
    """What the columns of the terminal's table are, and how sure they are."""
    spread = " ± standard deviation over n seeds" if any(row.n > 1 for row in rows) else ""
    lines = [f"global: {WORDS[rows[0].metric]} of the global model on the global test set, %{spread}"]
    mean = f"{CLIENTS}: the clients' mean on their own test parts; " if CLIENTS in short_columns(rows) else ""
    own = " (* each its own model)" if any(row.view == "personal" for row in rows) else ""
    lines.append(f"{mean}worst: the worst client on its own test part{own}")
    half = ", ± half of a 95 % interval" if any(row.difference_half is not None for row in rows) else ""
    if len(rows) > 1:
        lines.append(f"difference to {rows[0].method}: on the global test, points, paired by seed and split{half}")
    if any(row.n == 1 for row in rows):
        lines.append("n = 1: single runs; another seed may turn their order")
    return lines


def _whole(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """Head and rows of a written table: the columns of the terminal and the difference to the first row."""
    head = [*COLUMNS, f"difference to {rows[0].method}"] if len(rows) > 1 else list(COLUMNS)
    return [head, *([*row.cells(), row.difference_cell] if len(rows) > 1 else row.cells() for row in rows)]


def _legend(rows: Sequence[ComparisonRow]) -> str:
    metric = WORDS[rows[0].metric]
    return LEGEND.format(metric=metric) if metric == "accuracy" else f"{metric}: {LEGEND.format(metric=metric)}"


def markdown(rows: Sequence[ComparisonRow]) -> str:
    """A Markdown table with its legend."""
    head, *body = _whole(rows)
    text = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body])
    legend = _legend(rows) + (f"; {DIFFERENCES}" if len(rows) > 1 else "")
    return f"{text}\n\n{legend[0].upper()}{legend[1:]}."


def latex(rows: Sequence[ComparisonRow]) -> str:
    """A LaTeX table (package booktabs) with its legend as a comment."""
    head, *body = [[_latex(cell) for cell in line] for line in _whole(rows)]
    lines = [" & ".join(line) + r" \\" for line in body]
    shape = "l" + "r" * (len(head) - 1)
    top = [
        f"% {_legend(rows)}; {DIFFERENCES}.",
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
    ]
    return "\n".join([*top, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "−": "$-$", "–": "--", "²": "$^2$"} | {c: f"\\{c}" for c in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def summary_lines(summary: RunSummary) -> list[tuple[str, str]]:
    """What to say about one run, as pairs of a name and a text; that it failed, or its synthesis, comes first."""
    problem = [("failed", summary.problem)] if summary.problem else []
    synthesis = [("synthesis", synthesis_words(check)) for check in summary.synthesis]
    failed = any(check.mark == "failed" for check in summary.synthesis)
    rest = _result_lines(summary)
    if failed:
        return [*problem, *synthesis, *rest]
    return [*problem, *rest[:RESULT_LINES], *synthesis, *rest[RESULT_LINES:]]


def problem_lines(summaries: Sequence[RunSummary]) -> list[str]:
    """The runs that gave no usable model, and why; one for each row."""
    lines: dict[str, str] = {}
    for summary in summaries:
        if summary.problem:
            lines.setdefault(summary.row, f"failed: {summary.row}, seed {summary.seed}: {summary.problem}")
    return list(lines.values())


def _result_lines(summary: RunSummary) -> list[tuple[str, str]]:
    moved = f"{summary.bytes.up / 1e6:.1f} MB up, {summary.bytes.down / 1e6:.1f} MB down"
    lines = [
        ("method", f"{summary.method}, seed {summary.seed}, {summary.rounds} rounds (single run)"),
        ("global test", _global_words(summary)),
        *([("clients", _client_words(summary))] if summary.clients.n else []),
        ("cost", f"{moved}, {summary.client_epochs:.0f} client epochs, {summary.seconds:.1f} s"),
    ]
    if summary.simulated_seconds:
        lines.append(("simulated time", f"{summary.simulated_seconds / 60:.1f} minutes; see timeline.png"))
    if summary.failed:
        lines.append(("failures", f"{summary.failed} requests were not answered; see participation.json"))
    lines.extend(("missing", missed_words(missed)) for missed in summary.missed[:10])
    lines.extend(("note", note) for note in summary.notes)
    if summary.norm_buffers != "average":
        lines.append(("norm statistics", summary.norm_buffers))
    lines.extend(("privacy", sentence) for sentence in ledger_words(summary.privacy))
    lines.append(("run folder", summary.run_dir))
    return lines


def _global_words(summary: RunSummary) -> str:
    test = summary.test
    if test.accuracy is None:
        return f"none: {test.reason}"
    text = f"{test.accuracy:.2%}, variance over classes {test.class_variance:.0f} %²"
    if summary.metric == "accuracy":
        return text
    value = "not defined" if summary.tested is None else f"{summary.tested:.2%}"
    return f"{WORDS[summary.metric]} {value}; accuracy {text}"


def _client_words(summary: RunSummary) -> str:
    found, accuracy = summary.by_clients, summary.metric == "accuracy"
    model = "its own model" if summary.clients.view == "personal" else "the global model"
    if not found.n:
        return f"{WORDS[summary.metric]} is not defined on any client's own test part"
    return (
        f"{'' if accuracy else WORDS[summary.metric] + ': '}mean {found.mean:.2%}, worst {found.worst:.2%} "
        f"(client {found.worst_client}), variance {found.variance:.0f} %²; {found.n} clients, {model}, each on its own "
        "test part"
    )


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
    lines += [f"note: {note}" for note in found.notes]
    return lines + ([f"problem: {problem}" for problem in found.problems] or ["no problems found"])
