"""`compare` as a referee: side by side on the cores, tuned with equal budgets, paired, and safe against kill -9."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedsynth.errors import FedsynthError, UserError
from fedsynth.evaluation.results import RunSummary
from fedsynth.evaluation.scores import ClientScores
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.studies.tuning import search_space, tune
from fedsynth.studies.work import side_by_side

METHODS = ("--methods", "fedavg,fedprox", "--seeds", "2", "--no-references")


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


@pytest.fixture(scope="module")
def tuned(fedsynth, tiny, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """Two methods, two seeds, two trials each, two runs at a time."""
    cwd = tmp_path_factory.mktemp("tuned")
    words = (*METHODS, "--tune", "2", "--jobs", "2", "name=cmp", "--json")
    done = fedsynth("compare", *tiny, *words, cwd=cwd)
    assert done.code == 0, done.err
    return cwd / "runs" / "cmp", done.json


def test_every_method_gets_the_same_number_of_trials_evaluated_by_validation(tuned):
    folder, _ = tuned
    for name in ("fedavg", "fedprox"):
        kept = json.loads((folder / "tuning" / f"{name}.json").read_text())
        assert len(kept["trials"]) == 2
        assert kept["trials"][0]["settings"] == {}, "the first trial has the settings as given"
        for number, trial in enumerate(kept["trials"]):
            summary = json.loads((folder / "tuning" / f"{name}-{number:03d}" / "summary.json").read_text())
            assert trial["validation"] == summary["validation"]["pooled"]
        assert kept["validation"] == max(trial["validation"] for trial in kept["trials"])
    searched = kept["trials"][1]["settings"]
    assert set(searched) == {"train.lr", "method.mu"}
    assert 0.01 <= searched["train.lr"] <= 0.3


def test_the_chosen_settings_are_those_of_all_seeds(tuned):
    folder, _ = tuned
    for name in ("fedavg", "fedprox"):
        chosen = json.loads((folder / "tuning" / f"{name}.json").read_text())["chosen"]
        for seed in (0, 1):
            config = json.loads((folder / f"{name}-s{seed}" / "config.json").read_text())
            for key, value in chosen.items():
                section, setting = key.split(".")
                assert config[section][setting] == value


def test_differences_are_paired_and_in_every_table(tuned, fedsynth, tmp_path):
    folder, result = tuned
    accuracy = {(run["label"], run["seed"]): run["test"]["accuracy"] for run in result["runs"]}
    differences = [accuracy["fedprox", seed] - accuracy["fedavg", seed] for seed in (0, 1)]
    row = result["rows"][1]
    assert row["difference"] == pytest.approx(sum(differences) / 2)
    # Student's t with one degree of freedom: 12.7062 · s / √2
    assert row["difference_half"] == pytest.approx(12.7062 * abs(differences[0] - differences[1]) / 2, rel=1e-4)
    text = f"{100 * row['difference']:+.2f}"
    assert text in (folder / "table.md").read_text()
    table = (folder / "table.tex").read_text()
    assert text in table
    assert r"\toprule" in table
    assert "difference" in (folder / "table.csv").read_text().splitlines()[0]
    assert f"fedprox − fedavg: {text}" in fedsynth("resume", folder, cwd=tmp_path).out


def test_one_seed_gives_no_interval(fedsynth, tiny, tmp_path):
    words = ("--methods", "fedavg,fedprox", "--no-references", "train.rounds=1", "--jobs", "2")
    done = fedsynth("compare", *tiny, *words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "(n = 1; single run: no conclusion)" in done.out
    assert "n = 1: single runs" in done.out


def test_a_comparison_survives_kill_9_and_ends_with_the_same_table(tuned, fedsynth, tiny, tmp_path):
    _, whole = tuned
    words = (*METHODS, "--tune", "2", "--jobs", "2", "name=cmp", "--json")
    folder = tmp_path / "runs" / "cmp"
    for pattern in ("tuning/*/metrics.jsonl", "*-s*/metrics.jsonl"):  # in the search, then in the runs themselves
        start = ("resume", folder, "--jobs", "2") if folder.exists() else ("compare", *tiny, *words)
        running = fedsynth.start(*start, cwd=tmp_path)
        end = time.monotonic() + 60
        while not [file for file in folder.glob(pattern) if file.stat().st_size] and time.monotonic() < end:
            time.sleep(0.02)
        running.kill()
    assert not (folder / "table.md").exists()
    done = fedsynth("resume", folder, "--jobs", "2", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert timeless(done.json["rows"]) == timeless(whole["rows"])


def test_tuning_without_validation_parts_is_refused(fedsynth, tiny, tmp_path):
    done = fedsynth("compare", *tiny, *METHODS, "--tune", "2", "data.validation=0", cwd=tmp_path)
    assert done.code == 2
    assert "data.validation" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_search_is_replayed_from_its_trials(tmp_path):
    table = {"method": {"name": "fedprox"}, "seed": 3}

    def score(experiment: Experiment) -> RunSummary:
        found = ClientScores(pooled=1.0 / (1.0 + abs(experiment.train.lr - 0.05)))
        return RunSummary.model_construct(validation=found)

    first = tune(tmp_path, table, 6, score)
    assert tune(tmp_path, table, 6, lambda experiment: pytest.fail("it was done before")) == first
    (tmp_path / "fedprox.json").unlink()
    assert tune(tmp_path, table, 6, score) == first
    assert first.validation > first.trials[0].validation
    low, high = search_space(make_experiment(table))["train.lr"]
    assert low <= first.chosen["train.lr"] <= high


@pytest.mark.parametrize("name", [found.name for found in all_methods() if found.search])
def test_every_setting_that_is_searched_may_have_both_ends(name):
    config = find_method(name).config
    for key, ends in find_method(name).search.items():
        assert ends[0] < ends[1]
        for end in ends:
            assert getattr(config(**{key: end}), key) == end


def test_pieces_of_work_run_side_by_side_and_a_failure_ends_them(tmp_path):
    def note(name: str) -> None:
        (tmp_path / name).write_text(str(os.getpid()))

    def fail() -> None:
        raise UserError("this cannot be")

    def crash() -> None:
        os._exit(3)

    side_by_side([(name, lambda name=name: note(name)) for name in "abc"], 2, lambda text: None)
    processes = {(tmp_path / name).read_text() for name in "abc"}
    assert len(processes) == 3
    assert str(os.getpid()) not in processes
    started = time.monotonic()
    with pytest.raises(UserError, match="bad: this cannot be"):
        side_by_side([("slow", lambda: time.sleep(60)), ("bad", fail)], 2, lambda text: None)
    with pytest.raises(FedsynthError, match="odd: its process ended without a word"):
        side_by_side([("odd", crash)], 2, lambda text: None)
    assert time.monotonic() - started < 30
