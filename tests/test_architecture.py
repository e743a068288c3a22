"""The dependency arrows of the design hold, and files stay small enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedsynth
import fedsynth.methods
from fedsynth.federation.methods import all_methods

ROOT = Path(fedsynth.__file__).parent
LONGEST_FILE = 400  # lines

EVERYWHERE = ("errors",)
BASE = ("data.dataset", "seeding")
ALLOWED = {
    "learning": ("learning", "seeding"),
    "synthesis": (
        "synthesis",
        "seeding",
        "data.readers.arrays",
        "learning",
        "privacy.dpsgd",  # clipping, sampling and noise are written once
        "privacy.gaussian",
        "privacy.mechanisms",
    ),
    "privacy": ("privacy", "seeding"),
    "data": ("data", "seeding"),
    "federation": ("federation", "learning.weights", "learning.models", "learning.effort", "privacy", *BASE),
    "engines": ("engines", "federation", "learning.weights", "privacy", *BASE),
    "components": ("components", "federation", "learning", "synthesis", "privacy", *BASE),
    "methods": ("methods", "components", "federation", "learning", "synthesis", "privacy", *BASE),
    "evaluation": ("evaluation", "federation", "learning", "privacy.rows", *BASE),
    # Reads what runs have left in their folders; a run has its report written at its end.
    "report": (
        *("report", "evaluation.results", "evaluation.scores", "components.class_counts", "federation", "privacy"),
        *("data", "__version__"),
    ),
    "experiment": (
        *("experiment", "report", "evaluation", "engines", "methods", "components", "federation", "learning"),
        *("privacy", "data", "seeding", "__version__", "network.launch"),  # the last on demand
    ),
    "studies": (
        *("studies", "experiment", "report", "evaluation", "engines", "components", "federation", "learning"),
        *("privacy", "data", "seeding"),
    ),
    "audit": (
        *("audit", "experiment", "report", "evaluation", "methods", "components", "federation", "learning"),
        *("synthesis", "privacy", "data", "seeding"),
    ),
    "network": (
        *("network", "experiment", "engines", "evaluation", "methods", "federation", "learning", "privacy", "data"),
        "__version__",
    ),
    "cli": (
        *("cli", "network", "studies", "audit", "report", "experiment", "federation", "privacy", "data"),
        "__version__",
    ),
}
ROOT_MODULES = {"__init__.py", "api.py", "errors.py", "seeding.py"}


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
                if module == "fedsynth":
                    found.add(f"fedsynth.{alias.name}")
                    continue
                inner = ROOT.parent.joinpath(*module.split("."), f"{alias.name}.py")
                found.add(f"{module}.{alias.name}" if inner.is_file() else module)
    ours = {name for name in found if name.split(".")[0] == "fedsynth"}
    return {name.removeprefix("fedsynth.") for name in ours} - {"fedsynth"}


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
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()} == set(ALLOWED)


def test_the_root_holds_nothing_that_belongs_in_a_room():
    assert {path.name for path in ROOT.glob("*.py")} <= ROOT_MODULES


def test_everything_in_methods_registers_a_method():
    """What methods are built from stands in components; a large method is a package that registers it."""
    modules = {found.program.__module__ for found in all_methods()}
    homes = {module.split(".")[2] for module in modules if module.startswith("fedsynth.")}
    there = {path.stem for path in (ROOT / "methods").iterdir() if not path.name.startswith("__")}
    assert there == homes


def test_the_authors_of_methods_find_all_in_one_module():
    assert {name.split(".")[0] for name in imports_of(ROOT / "api.py")} <= {
        *("components", "federation", "learning", "methods", "privacy")
    }


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
