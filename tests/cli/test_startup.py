"""Commands that need no PyTorch do not wait for it: help, the version, the list of methods, a wrong file name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedsynth.methods  # noqa: F401 - registers the methods
from fedsynth.experiment.catalogue import Entry, list_methods
from fedsynth.federation.methods import all_methods

HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "pydantic", "flwr")
CALL = "from fedsynth.cli import main; main()"
EVERY_HELP = """
from typer.main import get_command
from typer.testing import CliRunner
from fedsynth.cli.app import app

def ask(command, *words):
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
    for name, inner in getattr(command, "commands", {}).items():
        ask(inner, *words, name)

ask(get_command(app))
"""


def imported_by(code: str, *words: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """A process that runs the code with these arguments, and the modules that it imported."""
    line = [sys.executable, "-X", "importtime", "-c", code, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)
    return done, {text.split("|")[-1].strip() for text in done.stderr.splitlines() if text.startswith("import time:")}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("methods",), 0),
        (("methods", "--json"), 0),
        (("run", "nothing.toml"), 2),
        (("compare", "nothing.toml"), 2),
        (("resume", "nothing"), 2),
        (("verify-method", "nothing.py"), 2),
        (("run", "--no-such-option"), 2),
    ],
)
def test_a_command_that_needs_nothing_imports_nothing(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    done, modules = imported_by(CALL, *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "fedsynth.cli.app" in modules
    assert not modules & set(HEAVY)


def test_the_help_of_every_command_imports_nothing(tmp_path: Path) -> None:
    done, modules = imported_by(EVERY_HELP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not modules & set(HEAVY)


def test_a_command_that_trains_is_seen_to_import(tmp_path: Path) -> None:
    _, modules = imported_by(CALL, "run", "train.no_such_key=1", cwd=tmp_path)
    assert "torch" in modules


def test_the_list_says_what_the_registry_holds() -> None:
    registered = [m for m in all_methods() if m.program.__module__.startswith("fedsynth.")]
    assert list_methods() == [Entry(m.name, m.summary, m.model) for m in registered]
