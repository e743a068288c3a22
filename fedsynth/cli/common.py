"""What the commands share: their options, how words become tables, and how results are printed."""

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsynth.errors import ConfigError
from fedsynth.experiment.files import Tables, load_tables

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE] [KEY=VALUE]…", help="An experiment file (TOML) and settings that change it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, last, on standard output.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core unless engine.workers is set.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
TrustPlugins = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="Execute the plug-ins, Python files, that the run's config names. Look at them first.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from the experiment's.")]
StudyName = Annotated[str, typer.Option(help="Folder in the runs folder; one that exists is gone on with.")]

# A pipe has no width of its own, unless the caller says one.
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


def read_words(words: list[str] | None) -> Tables:
    """The tables of an experiment file, where the first word is one, changed by the settings in the other words."""
    words = list(words or [])
    named = words and ("=" not in words[0] or os.path.isfile(words[0]))  # False for what no file can be called
    return load_tables(Path(words.pop(0)) if named else None, words)


def split_list(text: str, what: str, example: str) -> list[str]:
    """Names separated by commas, but for those inside of brackets, one at least; `what` one of them is."""
    names = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", text) if part.strip()]
    if not names:
        raise ConfigError(f"--{what}s is empty: name at least one {what}, such as --{what}s {example}.")
    return names


def choose_say(quiet: bool) -> Callable[[str], None]:
    """Where progress of a study is shown: at a terminal, unless it should be quiet."""
    shown = Console(stderr=True)
    return shown.print if shown.is_terminal and not quiet else (lambda text: None)


def print_json(value: Any) -> None:
    """One JSON object on standard output; numbers that JSON does not have become null."""
    print(json.dumps(_finite(value)))


def print_line(text: str) -> None:
    """One line as it is: nothing in it is markup, coloured or wrapped."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def print_report(folder: Path) -> None:
    """Where the report of a run or a comparison is: the last line of a command that leaves one."""
    print_line(f"report: {folder / 'report.html'}")


def _finite(value: Any) -> Any:
    if hasattr(value, "as_dict"):  # a result that has a type
        value = value.as_dict()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
