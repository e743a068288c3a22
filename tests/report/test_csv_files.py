"""CSV files of results: a spreadsheet must show names and run none of them, and fedsynth reads them as they were."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsynth
from fedsynth.report.csv_files import plain_cell, read_rows, safe_cell, write_csv
from fedsynth.report.reading import read_run
from fedsynth.studies.work import own_scores

FORMULA = "=cmd|' C calc'!A0"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(start: str) -> None:
    assert safe_cell(start + "1+1") == f"'{start}1+1"


@pytest.mark.parametrize("cell", [-1, -0.5, 3, None, True, "client-1", "0", "", "'tis", "a=b"])
def test_numbers_and_other_text_stay_as_they_are(cell: object) -> None:
    assert safe_cell(cell) is cell


@given(st.text() | st.text("'=-+@a"))
def test_what_was_made_safe_is_read_back_as_it_was(text: str) -> None:
    assert plain_cell(str(safe_cell(text))) == text


def test_columns_and_cells_go_through_a_file_and_back(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"client": FORMULA, "-gain": -1.5}, {"client": "b", "more": "+"}])
    written = (tmp_path / "t.csv").read_text()
    assert written.splitlines() == ["client,'-gain,more", f"'{FORMULA},-1.5,", "b,,'+"]
    with (tmp_path / "t.csv").open(newline="") as file:
        assert read_rows(file) == [
            {"client": FORMULA, "-gain": "-1.5", "more": ""},
            {"client": "b", "-gain": "", "more": "+"},
        ]


def test_a_line_that_is_not_whole_can_still_be_seen() -> None:
    assert read_rows(io.StringIO("a,b\n1\n1,2,3\n")) == [{"a": "1", "b": None}, {"a": "1", "b": "2", None: ["3"]}]


def test_the_files_of_a_run_hold_no_formula_and_are_read_with_the_clients_own_names(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "clients"
    folder.mkdir()
    for name in (FORMULA, "plain"):
        np.savez(folder / f"{name}.npz", x=rng.normal(size=(30, 4)).astype(np.float32), y=np.arange(30) % 2)
    done = fedsynth.run(
        data={"name": f"clients:{folder}"},
        train={"rounds": 1, "local_epochs": 1},
        model={"name": "mlp", "hidden": [4]},
        faults={"delay": 1.0},
        runs=tmp_path,
        engine={"workers": 1},
        progress=False,
    )
    for name in ("clients.csv", "ledger.csv", "timeline.csv", "metrics.csv"):
        with (done.path / name).open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell[:1] in set("=+-@")], name
        assert f"'{FORMULA}" in cells or name == "metrics.csv"
    assert set(own_scores(done.path, done.summary)) == {FORMULA, "plain"}
    run = read_run(done.path)
    assert {row["client"] for row in run.clients} == {row["client"] for row in run.timeline} == {FORMULA, "plain"}
