"""The dependency arrows of the design hold, and files stay small enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedsynth

ROOT = Path(fedsynth.__file__).parent
LONGEST_FILE = 400  # lines

EVERYWHERE = ("errors",)
ALLOWED = {
    "learning": ("learning",),
    "synthesis": (
        "synthesis",
        "archives",
        "learning.effort",
        "learning.weights",
        "privacy.dpsgd",  # clipping, sampling and noise are written once
        "privacy.mechanisms",
    ),
    "privacy": ("privacy", "seeding"),
    "data": ("data", "archives", "seeding"),
    "federation": (
        "federation",
        "data.dataset",
        "learning.weights",
        "learning.models",
        "learning.effort",
        "privacy",
        "seeding",
    ),
    "engines": ("engines", "federation", "data.dataset", "learning.weights", "privacy", "seeding"),
    "methods": ("methods", "federation", "learning", "synthesis", "privacy", "data.dataset", "seeding"),
    "evaluation": ("evaluation", "federation", "learning", "data.dataset", "seeding"),
}


def imports_of(file: Path) -> set[str]:
    """The modules of fedsynth that a file imports, wherever in it, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} uses a relative import"
            module = node.module or ""
            # `from fedsynth.learning import models` means the module fedsynth.learning.models.
            for alias in node.names:
                inner = ROOT.parent.joinpath(*module.split("."), f"{alias.name}.py")
                found.add(f"{module}.{alias.name}" if inner.is_file() else module)
    return {name.removeprefix("fedsynth.") for name in found if name.split(".")[0] == "fedsynth"}


def files_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_leans_only_on_those_it_may(room):
    wrong = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files_of(room)
        for name in imports_of(file)
        if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in (*ALLOWED[room], *EVERYWHERE))
    }
    assert not wrong


def test_every_room_is_ruled():
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert rooms - set(ALLOWED) <= {"report", "network"}  # these may lean on all others


def test_errors_and_seeding_lean_on_nothing():
    assert imports_of(ROOT / "errors.py") == set()
    assert imports_of(ROOT / "seeding.py") == set()


def test_no_file_is_too_long_to_read():
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in ROOT.rglob("*.py")}
    assert not {str(file): length for file, length in lengths.items() if length > LONGEST_FILE}


def test_methods_do_not_know_how_they_are_carried_out():
    """No processes, sockets, files or terminals in a server program."""
    foreign = {"multiprocessing", "subprocess", "socket", "threading", "rich", "tempfile", "shutil", "flwr"}
    for file in files_of("methods"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not foreign & {name.split(".")[0] for name in names}, file
