"""Commands that ask whether it can be believed: audit and advise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsynth.audit.members import Attack
from fedsynth.audit.run import NEVER_PROVES, Audit, audit_run
from fedsynth.cli.results import TrustPlugins
from fedsynth.experiment.config import load_tables
from fedsynth.experiment.plugins import load_plugins
from fedsynth.privacy.budget import say_number
from fedsynth.report.intervals import Interval
from fedsynth.studies.advise import CANDIDATES, Question, advise
from fedsynth.studies.recommendation import Advice

out = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, last, on standard output.")]
MOST_CLIENTS = 30  # in the table on the screen
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="No word about progress.")]


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    runs: Annotated[int, typer.Option(min=80, help="Runs on each of two data sets, for every mechanism.")] = 1000,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of every bound that is shown.")] = 0.95,
    trust_plugins: TrustPlugins = False,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Put the privacy claims of a run to the test. Exit code 1 when one is refuted.

    The task that made each claim runs again, as it declares, on two data sets that differ in one record or client, the
    worst for it; a claim without such a trial is "not tested". And attacks try to tell from the model and from
    synthetic images who was trained on.
    """
    done = audit_run(folder, runs, confidence, _sayer(quiet), trust_plugins)
    if as_json:
        print(json.dumps(done.as_dict()))
    else:
        _show_audit(done)
    if done.refuted:
        raise typer.Exit(1)


def advise_us(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE] [KEY=VALUE]…", help="An experiment file (TOML) and settings that change it."),
    ] = None,
    histograms: Annotated[
        Path | None, typer.Option(help="Class counts by client (CSV or JSON), in place of asking the clients.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise on the counts: ε per record at privacy.delta; none: exact counts.")
    ] = None,
    data: Annotated[str, typer.Option(help="The public data set on which the skew is rebuilt.")] = "digits",
    examples: Annotated[int, typer.Option(min=8, help="Most examples of a client in the trials.")] = 150,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the trials.")] = 10,
    methods: Annotated[str, typer.Option(help="Candidates, separated by commas.")] = ",".join(CANDIDATES),
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds, counted from the experiment's.")] = 5,
    name: Annotated[str, typer.Option(help="Folder in the runs folder; one that exists is gone on with.")] = "advise",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core unless told.")] = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Will it help us? Recommend a method, FedAvg or staying local, from class counts alone.

    The skew is rebuilt on a public data set and the candidates run there, small, with several seeds. Model, training
    and privacy settings come from the experiment; its clients are asked for their counts unless a file has them.
    """
    words = list(words or [])
    file = Path(words.pop(0)) if words and ("=" not in words[0] or Path(words[0]).is_file()) else None
    tables = load_tables(file, words)
    load_plugins(tables.get("plugins", ()))
    tried = tuple(part.strip() for part in methods.split(",") if part.strip())
    question = Question(tables, histograms, epsilon, data, examples, rounds, tried, seeds)
    done = advise(question, name, _sayer(quiet), jobs)
    if as_json:
        print(json.dumps(done.as_dict()))
    else:
        _show_advice(done)


def _sayer(quiet: bool) -> Any:
    shown = Console(stderr=True)
    return shown.print if shown.is_terminal and not quiet else (lambda text: None)


def _show_audit(done: Audit) -> None:
    columns = ("what left", "unit, neighbours, against", "proven", "covered", "not covered", "audit")
    table = Table(*columns, box=box.HORIZONTALS, show_lines=True)
    for row in done.rows:
        scope = f"{row['unit']}, {row['adjacency']}, {row['against']}" if row["unit"] else "–"
        proven = f"ε = {say_number(row['epsilon'])}, δ = {row['delta']:g}" if row["epsilon"] is not None else "none"
        table.add_row(row["what"], scope, proven, row["covered"] or "–", row["not_covered"] or "–", _tested(row))
    out.print(table)
    attacked = [_attacked(attack) for attack in done.attacks]
    screened = [_screened(done.screen)] if done.screen else []
    refuted = [_refuted(row) for row in done.rows if row["refuted"]]
    for line in (*attacked, *screened, *done.skipped, *refuted, NEVER_PROVES):
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _tested(row: dict[str, Any]) -> str:
    if row["lower_bound"] is None:
        return str(row["audit"])
    claimed = f"; {row['claimed']:.3g} claimed for {_releases(row)}" if row["claimed"] is not None else ""
    verdict = "REFUTED" if row["refuted"] else "not refuted"
    how = f"{row['confidence']:.0%} confidence, {row['runs']} runs on each data set: {row['audit']}"
    return f"{verdict}: ε ≥ {row['lower_bound']:.2f}{claimed} ({how})"


def _refuted(row: dict[str, Any]) -> str:
    if row["lower_bound"] > row["claimed"]:
        found = f"it is at least {row['lower_bound']:.3g}"
    else:
        found = "then the two data sets could not be told apart so well"
    return f"REFUTED: ε = {row['claimed']:.3g} is claimed for {_releases(row)} of {row['release']}; {found}."


def _releases(row: dict[str, Any]) -> str:
    return "one release" if row["releases"] == 1 else f"{row['releases']} releases"


def _attacked(attack: Attack) -> str:
    found = attack.result
    verdict = "FINDS members" if found.found else "finds no members"
    alarms = f"at {found.fpr:.1%} false alarms"
    if not found.enough:
        alarms = (
            f"above all {found.others} others (too few to see {found.fpr:.1%} false alarms: it may be up to "
            f"{found.fpr_high:.1%})"
        )
    return (
        f"Membership inference on {attack.on}, by {attack.how}, {verdict}: AUC {found.auc:.3f} "
        f"({found.auc_low:.3f} to {found.auc_high:.3f}); {found.tpr:.1%} ({found.tpr_low:.1%} to {found.tpr_high:.1%}) "
        f"of {found.members} members {alarms}."
    )


def _screened(screen: dict[str, Any]) -> str:
    verdict = "a WARNING" if screen["low"] > 0.5 else "nothing seen"
    return (
        f"Distance to the closest record (a screen, not a proof), {verdict}: {screen['share']:.1%} "
        f"({screen['low']:.1%} to {screen['high']:.1%}) of {screen['images']} images are closer to a member than to "
        f"any of as many others; images that copy nothing give 50%."
    )


def _show_advice(done: Advice) -> None:
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
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _percent(found: Interval | None, form: str = ".1f") -> str:
    return "–" if found is None else found.text(form, 100)
