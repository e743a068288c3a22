"""Variants in `compare`, the table in a narrow terminal, and what the commands say first and last."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsynth.cli import studies
from fedsynth.evaluation.results import RunSummary
from fedsynth.report.tables import comparison_rows
from fedsynth.studies.compare import Comparison

FILE = """
[rows]
fedavg = "fedavg"
"near, but slow" = {method = "fedprox", mu = 0.7, train = {lr = 0.01}}
"""
WORDS = "fedavg,weak=fedprox:mu=0.001,strong=fedprox:mu=5:train.lr=0.02"


@pytest.fixture(scope="module")
def compared(fedsynth, tiny, tmp_path_factory) -> tuple[Path, Any]:
    cwd = tmp_path_factory.mktemp("variants")
    words = ("--methods", WORDS, "--seeds", "2", "--no-references", "name=cmp", "--json")
    done = fedsynth("compare", *tiny, *words, cwd=cwd)
    assert done.code == 0, done.err
    return cwd / "runs" / "cmp", done.json


def settings_of(folder: Path, run: str) -> tuple[Any, Any, Any]:
    kept = json.loads((folder / run / "config.json").read_text())
    return kept["method"]["name"], kept["method"].get("mu"), kept["train"]["lr"]


def test_variants_are_rows_of_their_own_with_their_own_settings(compared):
    folder, result = compared
    assert [row["method"] for row in result["rows"]] == ["fedavg", "weak", "strong"]
    assert [row["n"] for row in result["rows"]] == [2, 2, 2]
    rate = settings_of(folder, "fedavg-s0")[2]
    assert settings_of(folder, "weak-s1") == ("fedprox", 0.001, rate)
    assert settings_of(folder, "strong-s0") == ("fedprox", 5, 0.02)
    assert len({run["data"]["split"] for run in result["runs"]}) == 2, "one split for each seed"
    assert len({row["test"] for row in result["rows"]} | {row["mean"] for row in result["rows"]}) > 2
    for name in ("table.md", "table.csv", "table.tex", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "weak" in text
        assert "strong" in text


def test_a_comparison_with_variants_is_resumed(fedsynth, compared, tmp_path):
    folder, result = compared
    copy = shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(copy / "strong-s1")
    done = fedsynth("resume", copy, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    scores = [[(row["method"], row["test"], row["worst"]) for row in found["rows"]] for found in (done.json, result)]
    assert scores[0] == scores[1]


def test_the_rows_of_a_file_run_where_none_are_named(fedsynth, tiny, tmp_path):
    (tmp_path / "rows.toml").write_text(FILE)
    words = ("--no-references", "train.rounds=1", "name=cmp", "--tune", "1")
    done = fedsynth("compare", "rows.toml", *tiny, *words, cwd=tmp_path)
    assert done.code == 2, "a comma would part it in --methods"
    assert '"near, but slow" cannot be the name of a row' in done.err
    (tmp_path / "rows.toml").write_text(FILE.replace("near, but slow", "near but slow"))
    done = fedsynth("compare", "rows.toml", *tiny, *words, cwd=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "cmp"
    assert settings_of(folder, "near-but-slow-s0") == ("fedprox", 0.7, 0.01)
    assert json.loads((folder / "tuning" / "near-but-slow.json").read_text())["label"] == "near but slow"
    assert done.out.splitlines()[-1] == f"report: {folder.relative_to(tmp_path) / 'report.html'}"
    single = fedsynth("run", "rows.toml", *tiny, "train.rounds=1", "name=one", cwd=tmp_path)
    assert single.code == 0, single.err
    assert single.out.splitlines()[-1] == "report: runs/one/report.html"


def printed(summaries: list[RunSummary], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> list[str]:
    """What a terminal of so many columns shows of these runs."""
    screen = Console(file=io.StringIO(), width=columns)
    monkeypatch.setattr(studies, "out", screen)
    monkeypatch.setattr("fedsynth.cli.common.out", screen)
    studies.print_comparison(Comparison(comparison_rows(summaries), summaries, [], Path("runs/cmp")))
    return screen.file.getvalue().splitlines()  # type: ignore[attr-defined]


def widest(label: str, accuracy: float, seed: int, failed: bool = False, **other: Any) -> RunSummary:
    check = {"check": "diversity", "mark": "failed" if failed else "good", "words": "all alike"}
    kept: dict[str, Any] = {
        "method": "m",
        "seed": seed,
        "label": label,
        "test": {"accuracy": accuracy, "class_variance": 1234.5},
        "clients": {"n": 10, "mean": accuracy, "worst": accuracy / 2, "variance": 1000.0},
        "validation": {},
        "best": {"round": 1, "score": 0.5},
        **{"rounds": 1, "bytes": {"up": 10**9, "down": 10**9}, "client_epochs": 1e5, "seconds": 1e4},
        **{"privacy": [], "data": {"name": "digits", "clients": 10, "split": f"s{seed}"}, "synthesis": [check]},
    }
    return RunSummary.model_validate(kept | other)


def test_a_table_with_long_names_and_wide_numbers_fits_eighty_columns(monkeypatch):
    names = ["fedavg", "private at ε = 8, noise at each client", "data_sharing"]
    found = [widest(name, 0.1 * k + 0.5 + 0.3 * seed, seed) for k, name in enumerate(names) for seed in (0, 1)]
    found += [widest("local", 0.7, seed, test={"accuracy": None}) for seed in (0, 1)]
    lines = printed(found, monkeypatch)
    table = lines[: next(place for place, line in enumerate(lines) if line.startswith("global:"))]
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["method", "global", "clients", "worst", "difference", "n"]
    text = "\n".join(table)
    for whole in (*names[1].split(), "data_sharing", "65.00 ± 21.21", "32.50 ± 10.61", "+10.00 ± 0.00"):
        assert whole in text
    assert "…" not in text


def test_without_personal_models_the_clients_mean_is_left_to_the_files(monkeypatch):
    lines = printed([widest("fedavg", 0.5, 0), widest("other", 0.75, 0)], monkeypatch)
    assert [line.split() for line in lines[:3]] == [
        ["method", "global", "worst", "difference", "n"],
        ["fedavg", "50.00", "25.00", "–", "1"],
        ["other", "75.00", "37.50", "+25.00", "1"],
    ]
    assert "n = 1: single runs; another seed may turn their order" in lines
    assert lines[-1] == "report: runs/cmp/report.html"


def test_a_failed_synthesis_comes_before_the_table(monkeypatch):
    lines = printed([widest("fedavg", 0.5, 0), widest("bad", 0.75, 0, failed=True)], monkeypatch)
    assert lines[0] == "✗ FAILED synthesis of bad, seed 0: diversity (all alike)"
    assert lines[1].startswith("method")


def test_a_failed_synthesis_comes_first_in_a_run_and_a_good_one_after_its_accuracy():
    from fedsynth.report.tables import summary_lines

    failed, good = (summary_lines(widest("x", 0.5, 0, failed=bad)) for bad in (True, False))
    assert failed[0] == ("synthesis", "✗ FAILED diversity: all alike")
    assert [name for name, _ in good][:3] == ["method", "global test", "synthesis"]
