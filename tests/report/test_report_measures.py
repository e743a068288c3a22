"""The report's section of measures says what the summary holds, and gets along with whatever is missing."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from folders import put, write_run

import fedsynth
from fedsynth.evaluation.scores import WORDS
from fedsynth.report.blocks import Figure, Section, Table, Words
from fedsynth.report.measures import shown
from fedsynth.report.page import Page, make_page

SMALL = {
    "data": {"name": "digits", "limit": 300, "classes": [0, 1]},
    "partition": {"name": "iid", "num_clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 3, "lr": 0.05},
    "engine": {"workers": 1},
}


def measures_of(page: Page) -> Section:
    return next(part for part in page.sections if part.id == "measures")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedsynth.RunResult:
    runs = str(tmp_path_factory.mktemp("runs"))
    return fedsynth.run("fedavg", **SMALL, evaluation={"metric": "auroc"}, runs=runs)


def test_every_measure_stands_in_the_table_and_the_chosen_one_is_marked(result: fedsynth.RunResult) -> None:
    page = make_page([result.path])
    assert page.problems == []
    found, summary = measures_of(page), result.summary
    tables = {block.caption: block for block in found.blocks if isinstance(block, Table)}
    rows = tables["All measures"].rows
    assert len(rows) == len(WORDS)
    for (name, words), row in zip(WORDS.items(), rows, strict=True):
        assert row[0].startswith(words)
        assert ("chosen" in row[0]) == (name == "auroc")
        assert row[1] == shown(name, summary.test.of(name))
        assert row[2] == shown(name, summary.clients.of(name).mean)
        assert row[3].endswith(f"({summary.clients.of(name).worst_client})")
    clients = tables["Every client on its own test part"]
    assert list(clients.columns)[-3:] == ["Sensitivity", "Specificity", "examples"]  # of the second class of two
    assert [row[0] for row in clients.rows] == ["0", "1", "2"]
    assert len(tables["Sensitivity and specificity by class"].rows) == 2


def test_the_confusion_matrix_and_the_reliability_are_drawn_with_their_numbers(result: fedsynth.RunResult) -> None:
    figures = {
        block.title: block for block in measures_of(make_page([result.path])).blocks if isinstance(block, Figure)
    }
    confusion = figures["Confusion matrix"].numbers
    assert confusion is not None
    assert [[int(cell) for cell in row[1:]] for row in confusion.rows] == result.summary.test.confusion
    reliability = figures["Reliability"].numbers
    assert reliability is not None
    assert sum(int(row[-1]) for row in reliability.rows) == result.summary.test.examples


def test_the_report_goes_by_the_chosen_metric(result: fedsynth.RunResult) -> None:
    text = html.unescape(make_page([result.path]).html())
    for words in ("AUROC over the rounds", "Best validation AUROC", "AUROC by client", "AUROC of the clients, mean"):
        assert words in text
    both = html.unescape(make_page([result.path, result.path]).html())
    assert "The results side by side: AUROC" in both


def test_a_run_of_an_earlier_version_has_a_report_without_measures(tmp_path: Path) -> None:
    page = make_page([write_run(tmp_path / "old")])
    [block] = measures_of(page).blocks
    assert isinstance(block, Words)
    assert page.problems == []


def test_damaged_measures_cost_no_more_than_their_section(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", classes=2)
    kept = json.loads((path / "summary.json").read_text())
    kept["test"] |= {"measures": {"auroc": None}, "confusion": [[1, 2], [3]], "reliability": []}
    put(path / "summary.json", kept)
    assert "Confusion matrix" in make_page([path]).html()
    kept["test"]["confusion"] = [[1, 2, 3]] * 3
    put(path / "summary.json", kept)
    page = make_page([path])
    assert len(page.sections) > 5


def test_a_run_without_a_usable_model_says_so_before_anything_else(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    kept = json.loads((path / "summary.json").read_text())
    put(path / "summary.json", kept | {"problem": "all examples are of one class (<b>)"})
    page = make_page([path])
    assert page.sections[0].id == "failed"
    assert "failed: all examples are of one class (&lt;b&gt;)." in page.html()
    assert page.stamps[0]["text"] == "no usable model"
    other = write_run(tmp_path / "other", method="moon")
    both = make_page([path, other])
    assert both.sections[0].id == "failed"
    assert "failed: fedavg, seed 0: all examples" in both.html()
    assert make_page([other]).sections[0].id != "failed"
