"""Commands that put methods to the test: verify-method and stress."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedsynth.errors import ConfigError
from fedsynth.experiment.config import load_tables, override
from fedsynth.experiment.plugins import load_plugins
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.studies.stress import SHARES, TROUBLES, stress_methods
from fedsynth.studies.verify import verify_method

out = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, last, on standard output.")]


def verify_method_file(
    file: Annotated[Path, typer.Argument(help="A Python file with a method of your own.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings of the method that make it quick.")
    ] = None,
    name: Annotated[str | None, typer.Option("--method", help="Which one, where the file has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a method keeps the promises all methods make. Exit code 1 when it breaks one.

    Small runs on the digits: FedAvg where it says so, the same bits again and on another engine, resumed after a cut
    anywhere, nothing leaves but what is declared, and dead clients do no harm.
    """
    before = {method.name for method in all_methods()}
    load_plugins([file])
    mine = sorted({method.name for method in all_methods()} - before)
    if name is None and len(mine) != 1:
        raise ConfigError(f"{file} has {len(mine)} methods ({', '.join(mine) or 'none'}): name one with --method.")
    chosen = name or mine[0]
    table = override({}, [word.removeprefix("method.") for word in settings or []])
    found = verify_method(chosen, table)
    if as_json:
        print(json.dumps({"method": chosen, "findings": [vars(finding) for finding in found]}))
    else:
        words = {True: "kept", False: "BROKEN", None: "–"}
        rows = Table("promise", "", "", title=f"{chosen}, in {file}", box=None, title_justify="left")
        for finding in found:
            rows.add_row(finding.check, words[finding.passed], finding.why)
        out.print(rows)
    if any(finding.passed is False for finding in found):
        raise typer.Exit(1)


def stress(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE] [KEY=VALUE]…", help="An experiment file (TOML) and settings that change it."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg",
    troubles: Annotated[str, typer.Option(help="Kinds of trouble, separated by commas.")] = ",".join(TROUBLES),
    shares: Annotated[str, typer.Option(help="Shares, separated by commas.")] = ",".join(map(str, SHARES)),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from the experiment's.")] = 1,
    name: Annotated[str, typer.Option(help="Folder in the runs folder; one that exists is gone on with.")] = "stress",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core unless told.")] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No word about progress.")] = False,
) -> None:
    """Run methods with growing shares of trouble, and draw accuracy against the share.

    dropout: clients that cannot be reached, others each time. late: clients that never answer in time. label-noise:
    training labels that are wrong. byzantine: clients that send noise (faults.lie=negated turns the sign instead).
    """
    words = list(words or [])
    file = Path(words.pop(0)) if words and ("=" not in words[0] or Path(words[0]).is_file()) else None
    tables = load_tables(file, words)
    load_plugins(tables.get("plugins", ()))
    names = [find_method(method).name for method in _listed(methods)]
    try:
        amounts = [float(share) for share in _listed(shares)]
    except ValueError:
        raise ConfigError(f'--shares = "{shares}" must be numbers between 0 and 1, such as 0,0.2,0.4.') from None
    shown = Console(stderr=True)
    say = shown.print if shown.is_terminal and not quiet else (lambda text: None)
    done = stress_methods(tables, names, _listed(troubles), amounts, seeds, name, say, jobs)
    if as_json:
        print(json.dumps({"rows": [row.as_dict() for row in done.rows], "path": str(done.path)}))
        return
    table = Table("method", "trouble", *(f"{share:g}" for share in amounts), box=None)
    for method in names:
        for trouble in _listed(troubles):
            found = [row for row in done.rows if (row.method, row.trouble) == (method, trouble)]
            table.add_row(method, trouble, *(f"{100 * row.accuracy:.1f}" for row in found))
    out.print(table)
    runs = f"{seeds} seeds" if seeds > 1 else "single run"
    out.print(f"accuracy in % by share, {runs}; stress.csv and stress.png are in {done.path}", soft_wrap=True)


def _listed(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ConfigError("A list is empty: name at least one, separated by commas.")
    return names
