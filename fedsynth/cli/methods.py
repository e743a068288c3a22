"""Commands about methods: methods and verify-method."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsynth.cli.common import AsJson, out, print_json
from fedsynth.errors import ConfigError
from fedsynth.experiment.catalogue import list_methods, load_method, load_methods_of
from fedsynth.experiment.files import override

VERDICTS = {True: "kept", False: "BROKEN", None: "–"}


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's settings.")] = None, as_json: AsJson = False
) -> None:
    """List the methods, or show one method's paper, deviations and settings."""
    if name is not None:
        _show_method(name, as_json)
    elif as_json:
        print_json([vars(entry) for entry in list_methods()])
    else:
        table = Table("method", "what it does", "model of its paper", box=None)
        for entry in list_methods():
            table.add_row(f"[bold]{entry.name}[/bold]", entry.summary, entry.model)
        out.print(table)


def _show_method(name: str, as_json: bool) -> None:
    method = load_method(name)
    settings = {
        key: {"default": field.get_default(call_default_factory=True), "help": field.description}
        for key, field in method.config.own_settings().items()
    }
    text = sys.modules[method.program.__module__].__doc__ or method.summary
    if as_json:
        about = {"name": name, "summary": method.summary, "about": text, "model": method.model}
        print_json({**about, "settings": settings, "controls": dict(method.controls)})
        return
    out.print(f"[bold]{name}[/bold]: {method.summary}\n\n{text.strip()}\n", highlight=False)
    table = Table("setting", "default", "meaning", box=None)
    for key, row in settings.items():
        table.add_row(f"method.{key}", "–" if row["default"] is None else str(row["default"]), row["help"] or "")
    out.print(table)
    if method.controls:
        out.print(f"\nIts controls, run by `compare --controls`: {', '.join(method.controls)}", highlight=False)


def verify_method(
    file: Annotated[Path, typer.Argument(help="A Python file with a method of your own.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings of the method that make it quick.")
    ] = None,
    name: Annotated[str | None, typer.Option("--method", help="Which one, where the file has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a method keeps the promises all methods make. Exit code 1 when it breaks one.

    Small runs on the digits: FedAvg where it says so, bit-identical again and on another engine, resumed after a cut
    anywhere, nothing leaves but what is declared, and dead clients do no harm.
    """
    table = override({}, [word.removeprefix("method.") for word in settings or []])
    mine = load_methods_of(file)
    if name is None and len(mine) != 1:
        raise ConfigError(f"{file} has {len(mine)} methods ({', '.join(mine) or 'none'}): name one with --method.")
    from fedsynth.studies import verify

    chosen = name or mine[0]
    found = verify.verify_method(chosen, table)
    if as_json:
        print_json({"method": chosen, "findings": [vars(finding) for finding in found]})
    else:
        rows = Table("promise", "", "", title=f"{chosen}, in {file}", box=None, title_justify="left")
        for finding in found:
            rows.add_row(finding.check, VERDICTS[finding.passed], finding.why)
        out.print(rows)
    if any(finding.passed is False for finding in found):
        raise typer.Exit(1)
