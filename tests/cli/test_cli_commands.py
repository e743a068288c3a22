"""The commands beside run and resume: methods, partition, check, compare, help."""

from __future__ import annotations

import csv
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REFERENCES = {"local", "finetune", "centralised"}


def test_methods_are_listed(fedsynth, tmp_path):
    done = fedsynth("methods", cwd=tmp_path)
    rows = fedsynth("methods", "--json", cwd=tmp_path).json
    names = [row["name"] for row in rows]
    assert {"fedavg", "fedprox", "moon", "scaffold", *REFERENCES} <= set(names)
    assert names == sorted(names)
    assert all(row["summary"] for row in rows)
    assert all(name in done.out for name in names)
    assert done.err == ""


def test_one_method_is_explained(fedsynth, tmp_path):
    shown = fedsynth("methods", "fedprox", cwd=tmp_path)
    assert "method.mu" in shown.out
    about = fedsynth("methods", "fedprox", "--json", cwd=tmp_path).json
    assert about["name"] == "fedprox"
    assert about["settings"]["mu"]["help"]
    assert "Li et al" in about["about"]


def test_every_method_can_be_explained_as_json(fedsynth, tmp_path):
    for row in fedsynth("methods", "--json", cwd=tmp_path).json:
        done = fedsynth("methods", row["name"], "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        assert done.json["about"]


def test_a_split_is_shown_and_saved(fedsynth, tiny, tmp_path):
    done = fedsynth("partition", *tiny, "--save", "split", cwd=tmp_path, pictures=True)
    assert done.code == 0, done.err
    assert "training examples by client and class" in done.out
    assert done.err == ""
    manifest = fedsynth("partition", *tiny, "--json", cwd=tmp_path).json
    assert manifest == json.loads((tmp_path / "split" / "manifest.json").read_text())
    assert manifest["clients"] == 3
    picture = (tmp_path / "split" / "split.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
    assert not (tmp_path / "runs").exists()


def test_a_sound_data_set_passes_the_check(fedsynth, tmp_path):
    done = fedsynth("check", "digits", cwd=tmp_path)
    assert done.code == 0
    assert "no problems found" in done.out
    found = fedsynth("check", "digits", "--json", cwd=tmp_path).json
    assert found["problems"] == []


def test_problems_of_a_data_set_are_listed_with_exit_code_1(fedsynth, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((60, 4), dtype=np.float32)
    x[3, 1] = np.nan
    np.savez(tmp_path / "holes.npz", x=x, y=np.arange(60) % 3)
    done = fedsynth("check", "npz:holes.npz", cwd=tmp_path)
    if done.code == 2:  # refused outright, in one sentence
        assert "holes.npz" in done.err
        return
    assert done.code == 1
    assert "problem: " in done.out
    assert fedsynth("check", "npz:holes.npz", "--json", cwd=tmp_path).json["problems"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["FILE", "KEY=VALUE", "--json", "--quiet"]),
        ("resume", ["FOLDER", "--json", "--quiet", "--accept-code-change", "--trust-plugins"]),
        ("compare", ["FILE", "--methods", "--seeds", "--no-references", "--controls", "--json", "--quiet"]),
        ("partition", ["FILE", "KEY=VALUE", "--save", "--json"]),
        ("check", ["DATA", "KEY=VALUE", "--json"]),
        ("methods", ["NAME", "--json"]),
    ],
)
def test_help_mentions_every_argument(fedsynth, tmp_path, command, words):
    done = fedsynth(command, "--help", cwd=tmp_path, env={"COLUMNS": "200"})
    assert done.code == 0
    for word in words:
        assert word.lower() in done.out.lower(), word
    assert command in fedsynth("--help", cwd=tmp_path).out


def test_the_version_is_told(fedsynth, tmp_path):
    assert fedsynth("--version", cwd=tmp_path).out.startswith("fedsynth 0.")


# -- comparisons ------------------------------------------------------------------------------------------------------

COMPARE = ("--methods", "fedavg,fedprox", "--seeds", "2")


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


@pytest.fixture(scope="module")
def comparison(fedsynth, tiny, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    cwd = tmp_path_factory.mktemp("comparison")
    done = fedsynth("compare", *tiny, *COMPARE, "name=cmp", "--json", cwd=cwd)
    assert done.code == 0, done.err
    assert done.err == ""
    return cwd / "runs" / "cmp", done.json


def test_a_comparison_has_a_row_per_method_and_the_references(comparison):
    folder, result = comparison
    assert [row["method"] for row in result["rows"]] == ["fedavg", "fedprox", "local", "finetune", "centralised"]
    assert all(row["n"] == 2 for row in result["rows"])
    assert len(result["runs"]) == 10
    splits = {(run["seed"], run["data"]["split"]) for run in result["runs"]}
    assert len(splits) == 2, "all methods of a seed have the same split"
    with (folder / "table.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in result["rows"]]
    table = (folder / "table.md").read_text()
    assert "fedprox" in table
    assert "±" in table
    assert (folder / "curves.png").is_file()


def test_a_comparison_without_references_or_seeds_is_stamped_a_single_run(fedsynth, tiny, tmp_path):
    done = fedsynth("compare", *tiny, "--methods", "fedavg", "--no-references", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.err == ""
    assert "single run" in done.out
    assert "centralised" not in done.out
    [folder] = (tmp_path / "runs").iterdir()
    assert str(folder.relative_to(tmp_path)) in done.out.replace("\n", "")


def test_a_finished_comparison_is_read_not_run_again(fedsynth, comparison, tmp_path):
    folder, result = comparison
    done = fedsynth("resume", folder, "--json", cwd=tmp_path)
    assert done.json["rows"] == result["rows"]
    assert "fedprox" in fedsynth("resume", folder, cwd=tmp_path).out


def test_a_comparison_with_holes_is_completed_also_elsewhere(fedsynth, comparison, tmp_path):
    folder, result = comparison
    copy = shutil.copytree(folder, tmp_path / "moved")
    (copy / "fedprox-s1" / "summary.json").unlink()
    newest = max((copy / "fedprox-s1" / "checkpoints").iterdir())
    newest.unlink()
    shutil.rmtree(copy / "local-s0")
    for name in ("versions.json", "manifest.json", "summary.json"):  # killed while the folder was being made
        (copy / "finetune-s1" / name).unlink()
    for path in (copy / "finetune-s1").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.name == "config.json" or path.unlink()
    done = fedsynth("resume", copy, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert timeless(done.json["rows"]) == timeless(result["rows"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved"]


def test_a_killed_comparison_is_resumed_to_the_same_table(fedsynth, tiny, comparison, tmp_path):
    running = fedsynth.start("compare", *tiny, *COMPARE, "--no-references", "name=cmp", cwd=tmp_path)
    folder, end = tmp_path / "runs" / "cmp", time.monotonic() + 60
    while not (folder / "fedprox-s0" / "metrics.jsonl").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    running.kill()
    assert not (folder / "table.csv").exists()
    done = fedsynth("resume", folder, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    # Without the row of training alone nobody is worse than it.
    whole = [{k: None if k == "worse" else v for k, v in row.items()} for row in comparison[1]["rows"][:2]]
    kept = [{k: v for k, v in row.items() if k != "worse_std"} for row in whole]
    assert timeless(done.json["rows"]) == timeless(kept)


def test_settings_of_single_methods_come_from_their_own_sections(fedsynth, tiny, tmp_path):
    (tmp_path / "exp.toml").write_text("[methods.fedprox]\nmu = 0.7\n")
    done = fedsynth("compare", "exp.toml", *tiny, *COMPARE[:2], "--no-references", "name=own", cwd=tmp_path)
    assert done.code == 0, done.err
    kept = json.loads((tmp_path / "runs" / "own" / "fedprox-s0" / "config.json").read_text())
    assert kept["method"]["mu"] == 0.7
