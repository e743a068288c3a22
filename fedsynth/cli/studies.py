"""Commands of many runs: compare, stress and advise."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedsynth.cli.common import (
    AsJson,
    Jobs,
    Seeds,
    Silent,
    StudyName,
    Words,
    choose_say,
    out,
    print_json,
    print_line,
    print_report,
    read_words,
    split_list,
)
from fedsynth.errors import ConfigError
from fedsynth.studies import CANDIDATES, SHARES, TROUBLES

if TYPE_CHECKING:
    from fedsynth.report.intervals import Interval
    from fedsynth.studies.compare import Comparison
    from fedsynth.studies.recommendation import Advice
    from fedsynth.studies.stress import Strained

MOST_CLIENTS = 30  # in the table on the screen


def compare(
    words: Words = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; variants as NAME=METHOD:KEY=VALUE. Not given: [rows] of the file, or "
            "fedavg."
        ),
    ] = None,
    seeds: Seeds = 1,
    references: Annotated[
        bool, typer.Option(help="Also run local, finetune and centralised on the same splits.")
    ] = True,
    controls: Annotated[
        bool, typer.Option(help="Also run the methods' controls (without synthesis, noise, …) and logit_adjustment.")
    ] = False,
    tune: Annotated[
        int, typer.Option(min=0, help="Trials for every method to find its settings by validation; 0: as given.")
    ] = 0,
    jobs: Jobs = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Run several methods and seeds on the same splits and print one table.

    All methods get the same model and training settings. `[methods.NAME]` sections hold settings of single methods.
    A variant is a row of its own: `--methods fedavg,feddpms,private=feddpms:epsilon=3`, or in the file
    `[rows]` with `private = {method = "feddpms", epsilon = 3}`.

    Controls show whether a gain comes from the synthetic data: a gain that noise also gives is not knowledge transfer.
    """
    names = None if methods is None else split_list(methods, "method", "fedavg,fedprox")
    tables = read_words(words)
    from fedsynth.studies.compare import compare_methods

    progress, say = False if quiet else None, choose_say(quiet)
    done = compare_methods(tables, names, seeds, references, progress, say, controls, tune, jobs)
    if as_json:
        print_json({"rows": done.rows, "controls": done.controls, "runs": done.summaries, "path": str(done.path)})
    else:
        print_comparison(done)
    fail_without_models(done)


def fail_without_models(done: "Comparison") -> None:
    """Exit with 1 when no run of a comparison gave a usable model."""
    if all(summary.problem for summary in done.summaries):
        raise typer.Exit(1)


def print_comparison(done: "Comparison", as_json: bool = False) -> None:
    """The table of a comparison, and what its controls say; first, which runs gave no usable model."""
    from fedsynth.report.controls import verdict_lines
    from fedsynth.report.synthesis import failed_synthesis_lines
    from fedsynth.report.tables import difference_lines, problem_lines, short_columns, short_legend

    if as_json:
        print_json({"rows": done.rows, "controls": done.controls, "path": str(done.path)})
        return
    for line in (*problem_lines(done.summaries), *failed_synthesis_lines(done.summaries)):
        print_line(line)
    columns = short_columns(done.rows)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        first = name == columns[0]
        table.add_column(name, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    for row in done.rows:
        cells = row.short_cells()
        table.add_row(*(escape(cells[name]) for name in columns))
    out.print(table)
    for line in short_legend(done.rows):
        out.print(line, markup=False, highlight=False)
    for line in (*difference_lines(done.rows), *verdict_lines(done.controls)):
        print_line(line)
    print_line(
        f"All columns are in table.md, table.csv and table.tex; they, curves.png and the runs are in {done.path}"
    )
    print_report(done.path)


def stress(
    words: Words = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg",
    troubles: Annotated[str, typer.Option(help="Kinds of trouble, separated by commas.")] = ",".join(TROUBLES),
    shares: Annotated[str, typer.Option(help="Shares, separated by commas.")] = ",".join(map(str, SHARES)),
    seeds: Seeds = 1,
    name: StudyName = "stress",
    jobs: Jobs = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Run methods with growing shares of trouble, and draw accuracy against the share.

    dropout: clients that cannot be reached, others each time. late: clients that never answer in time. label-noise:
    training labels that are wrong. byzantine: malicious clients, which send noise (faults.attack=negated: the numbers
    with the sign turned).
    """
    kinds, names = split_list(troubles, "trouble", "dropout,late"), split_list(methods, "method", "fedavg,median")
    try:
        amounts = [float(share) for share in split_list(shares, "share", "0,0.2,0.4")]
    except ValueError:
        raise ConfigError(f'--shares = "{shares}" must be numbers between 0 and 1, such as 0,0.2,0.4.') from None
    tables = read_words(words)
    from fedsynth.studies.stress import stress_methods
    from fedsynth.studies.work import Work

    done = stress_methods(tables, names, kinds, amounts, seeds, name, Work(say=choose_say(quiet), jobs=jobs))
    if as_json:
        print_json({"rows": done.rows, "path": str(done.path)})
    else:
        _print_stress(done, amounts, seeds)


def _print_stress(done: "Strained", shares: Sequence[float], seeds: int) -> None:
    table = Table("method", "trouble", *(f"{share:g}" for share in shares), box=None)
    for method, trouble in dict.fromkeys((row.method, row.trouble) for row in done.rows):
        found = [row for row in done.rows if (row.method, row.trouble) == (method, trouble)]
        table.add_row(method, trouble, *(f"{100 * row.accuracy:.1f}" for row in found))
    out.print(table)
    runs = f"{seeds} seeds" if seeds > 1 else "single run"
    out.print(f"accuracy in % by share, {runs}; stress.csv and stress.png are in {done.path}", soft_wrap=True)


def advise(
    words: Words = None,
    histograms: Annotated[
        Path | None, typer.Option(help="Class counts by client (CSV or JSON), in place of asking the clients.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Noise on the counts: ε per record at privacy.delta; none: exact counts."),
    ] = None,
    data: Annotated[str, typer.Option(help="The public data set on which the skew is rebuilt.")] = "digits",
    examples: Annotated[int, typer.Option(min=8, help="Most examples of a client in the trials.")] = 150,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the trials.")] = 10,
    methods: Annotated[str, typer.Option(help="Candidates, separated by commas.")] = ",".join(CANDIDATES),
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds, counted from the experiment's.")] = 5,
    name: StudyName = "advise",
    jobs: Jobs = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Will it help us? Recommend a method, FedAvg or staying local, from class counts alone.

    The skew is rebuilt on a public data set and the candidates run there, small, with several seeds. Model, training
    and privacy settings come from the experiment; its clients are asked for their counts unless a file has them.
    """
    tables = read_words(words)
    from fedsynth.studies.advise import Question, answer
    from fedsynth.studies.work import Work

    tried = tuple(part.strip() for part in methods.split(",") if part.strip())
    question = Question(
        tables=tables,
        histograms=histograms,
        epsilon=epsilon,
        data=data,
        examples=examples,
        rounds=rounds,
        methods=tried,
        seeds=seeds,
    )
    done = answer(question, name, Work(say=choose_say(quiet), jobs=jobs))
    if as_json:
        print_json(done.as_dict())
    else:
        _print_advice(done)


def _print_advice(done: "Advice") -> None:
    table = Table("method", "own test, %", "all classes, %", "MB", "s", "protected", box=None, padding=(0, 2, 0, 0))
    for row in done.rows:
        spent = ("in part" if row.unprotected else "all") if row.protected else "nothing"
        cost = f"{row.bytes / 1e6:.1f}", f"{row.seconds:.1f}", spent
        table.add_row(row.method, *map(_percent, row.scores.values()), *cost)
    out.print(table)
    shown = list(done.clients[0].scores)
    base = "FedAvg" if done.recommended["own"].method == "local" else "local"
    table = Table("client", "examples", *shown, f"gain over {base}", box=None, padding=(0, 2, 0, 0))
    for client in done.clients[:MOST_CLIENTS]:
        cells = map(_percent, client.scores.values())
        table.add_row(client.client, str(client.examples), *cells, _percent(client.gain, "+.1f"))
    out.print(table)
    more = len(done.clients) - MOST_CLIENTS
    lines = [f"… and {more} more clients, in advice.json"] if more > 0 else []
    for line in (*lines, *done.words, f"The trials and advice.json are in {done.path}"):
        print_line(line)


def _percent(found: "Interval | None", form: str = ".1f") -> str:
    return "–" if found is None else found.text(form, 100)
