"""The harness of the studies keeps what earlier runs found."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import harness

    yield harness
    sys.modules.pop("harness")


def test_a_row_whose_runs_are_gone_stays_and_more_seeds_win(harness, tmp_path):
    target = tmp_path / "table.csv"
    parts = [harness.Part("part", dict, {"first": {}, "second": {}})]

    def line(row, late, n):
        return {"part": "part", "row": row, "late": late, "n": n}

    harness.save(parts, [line("second", 2.0, 3), line("dropped from the plan", 9.0, 3)], target)
    harness.save(parts, [line("first", 1.0, 1), line("second", 5.0, 1)], target)
    harness.save(parts, [line("first", 4.0, 1)], target)
    found = [(of["row"], float(of["late"]), int(of["n"])) for of in harness.read_table(target)]
    assert found == [("first", 4.0, 1), ("second", 2.0, 3)]
