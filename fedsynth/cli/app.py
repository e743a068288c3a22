"""The command line: its commands, and what it exits with.

A command imports what it needs when it is called: PyTorch takes seconds, and help, a list of methods or a wrong file
name need none of it.
"""

import errno
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from fedsynth.cli.audit import audit
from fedsynth.cli.data import check, partition
from fedsynth.cli.methods import methods, verify_method
from fedsynth.cli.network import deploy, site
from fedsynth.cli.results import dashboard, export, invert, quality, report
from fedsynth.cli.runs import resume, run
from fedsynth.cli.studies import advise, compare, stress
from fedsynth.errors import FedsynthError, UserError

INTERRUPTED = 130  # the exit code that typer makes of Ctrl-C

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Federated learning on skewed data, repaired with synthetic data.",
    pretty_exceptions_enable=False,
)
commands: tuple[Callable[..., None], ...] = (
    *(methods, run, resume, compare, partition, check, verify_method),
    *(advise, stress, audit, report, dashboard, quality, invert, export),
)
for command in commands:
    app.command()(command)
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedsynth import __version__

        print(f"fedsynth {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on skewed data, repaired with synthetic data."""


def main() -> None:
    """Run the command line: mistakes in the input are one sentence and exit code 2, other failures exit code 1."""
    try:
        app()
    except FedsynthError as error:
        print(f"fedsynth: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"fedsynth: there is no room left to write to ({error.filename or error.strerror}).", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("fedsynth: interrupted; 'fedsynth resume RUN' goes on from the last finished round.", file=sys.stderr)
        raise
