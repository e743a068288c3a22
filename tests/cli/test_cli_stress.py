"""fedsynth stress: one command, a row for each method, trouble and share, and a folder that can be gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unrendered import unrendered

from fedsynth.cli.app import app

SMALL = ["data.limit=120", "model.name=mlp", "train.rounds=1", "partition.num_clients=4", "engine.workers=1"]


def stress(folder: Path, *words: str):
    return CliRunner().invoke(app, ["stress", *SMALL, f"runs={folder}", "--jobs", "1", *words])


@pytest.mark.pictures
def test_a_row_for_each_and_nothing_is_run_twice(tmp_path: Path) -> None:
    words = ("--methods", "fedavg,median", "--shares", "0,0.5", "--json")
    with unrendered():
        first = stress(tmp_path, *words)
    assert first.exit_code == 0, first.output
    rows = json.loads(first.stdout.splitlines()[-1])["rows"]
    assert len(rows) == 2 * 4 * 2
    untroubled = {row["accuracy"] for row in rows if row["method"] == "fedavg" and row["share"] == 0}
    assert len(untroubled) == 1  # one run for all kinds of trouble
    folder = tmp_path / "stress"
    runs = {path: path.stat().st_mtime for path in folder.glob("*/summary.json")}
    assert len(runs) == 2 * (1 + 4)
    assert json.loads(stress(tmp_path, *words).stdout.splitlines()[-1])["rows"] == rows
    assert (folder / "stress.png").stat().st_size > 5000
    assert {path: path.stat().st_mtime for path in folder.glob("*/summary.json")} == runs


def test_mistakes_are_told(tmp_path: Path) -> None:
    assert 'no trouble called "droput"' in str(stress(tmp_path, "--troubles", "droput").exception)
    assert "between 0 and 1" in str(stress(tmp_path, "--shares", "0,2").exception)
    assert "must be numbers" in str(stress(tmp_path, "--shares", "few").exception)
    assert not list(tmp_path.iterdir())
