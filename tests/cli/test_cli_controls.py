"""`compare --controls`: a method beside its controls and logit adjustment, and what is said about them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsynth.errors import ConfigError
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.studies.compare import compare_methods

PLUGIN = """
from typing import Literal

from pydantic import Field

from fedsynth.federation import Federation, Outcome, method
from fedsynth.methods.fedprox import ProximalObjective
from fedsynth.components.loop import LoopConfig, federated_loop

CONTROLS = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "No filter (all)": {"filter": "none"},
}

class PatchedConfig(LoopConfig):
    synthetic: Literal["good", "noise", "none"] = Field("good", description="what is added")
    filter: Literal["own", "none"] = Field("own", description="who filters it")
    strength: float = Field(0.5, description="how much of it")

@method("patched", config=PatchedConfig, controls=CONTROLS)
def patched(fed: Federation, cfg: PatchedConfig) -> Outcome:
    "Stands for a method with synthetic data; without it, it is FedAvg."
    strength = {"good": cfg.strength, "noise": 2 * cfg.strength, "none": 0}[cfg.synthetic]
    return federated_loop(fed, cfg, objective=ProximalObjective(mu=strength))

@method("misspelt", config=PatchedConfig, controls={"noise": {"synthetc": "noise"}})
def misspelt(fed: Federation, cfg: PatchedConfig) -> Outcome:
    "Has a control that its settings do not know."
    return patched(fed, cfg)

@method("doubled", config=PatchedConfig, controls={"no filter": {"filter": "none"}, "No-Filter": {"filter": "none"}})
def doubled(fed: Federation, cfg: PatchedConfig) -> Outcome:
    "Has two controls whose folders would be one."
    return patched(fed, cfg)
"""
LABELS = ["patched", "patched: without synthesis", "patched: noise", "patched: No filter (all)"]
FOLDERS = ["patched", "patched-without-synthesis", "patched-noise", "patched-no-filter-all"]
CONTROLS = ["without synthesis", "noise", "No filter (all)", "logit_adjustment"]


def with_plugin(folder: Path) -> Path:
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "exp.toml").write_text('plugins = ["mine.py"]\n[methods.patched]\nstrength = 0.7\n')
    return folder


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


@pytest.fixture(scope="module")
def controlled(fedsynth, tiny, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """Two seeds of a method with controls and of FedAvg."""
    cwd = with_plugin(tmp_path_factory.mktemp("controls"))
    words = ("--methods", "patched,fedavg", "--seeds", "2", "--controls", "--no-references", "name=cmp", "--json")
    done = fedsynth("compare", "exp.toml", *tiny, *words, cwd=cwd)
    assert done.code == 0, done.err
    return cwd / "runs" / "cmp", done.json


def test_controls_stand_below_their_method_and_logit_adjustment_runs_once(controlled):
    folder, result = controlled
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == [*LABELS, "fedavg", "logit_adjustment"]
    assert all(row["n"] == 2 for row in rows.values())
    with (folder / "table.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == list(rows)
    folders = {f"{name}-s{seed}" for name in (*FOLDERS, "fedavg", "logit_adjustment") for seed in (0, 1)}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == folders


def test_a_control_changes_its_settings_and_no_others(controlled):
    folder, result = controlled
    kept = {name: json.loads((folder / f"{name}-s0" / "config.json").read_text())["method"] for name in FOLDERS}
    changed = [("good", "own"), ("none", "own"), ("noise", "own"), ("good", "none")]
    assert [(kept[name]["synthetic"], kept[name]["filter"]) for name in FOLDERS] == changed
    assert {settings["strength"] for settings in kept.values()} == {0.7}
    rows = {row["method"]: row for row in result["rows"]}
    assert rows["patched: without synthesis"]["test"] == rows["fedavg"]["test"]
    splits = {(run["seed"], run["data"]["split"]) for run in result["runs"]}
    assert len(splits) == 2, "all rows of a seed have the same split"


def test_labels_are_in_the_plan_and_not_in_the_experiment(controlled):
    folder, result = controlled
    planned = json.loads((folder / "comparison.json").read_text())["planned"]
    assert [run["label"] for run in planned][::2] == [*LABELS, "fedavg", "logit_adjustment"]
    assert all(
        set(run) == {"label", "experiment", *(["base", "control"] if ": " in run["label"] else [])} for run in planned
    )
    assert "label" not in json.loads((folder / "patched-noise-s0" / "summary.json").read_text())
    assert [run["label"] for run in result["runs"]] == [run["label"] for run in planned]


def test_verdicts_are_in_the_json_in_the_table_and_on_the_screen(fedsynth, controlled, tmp_path):
    folder, result = controlled
    assert [(found["method"], found["control"]) for found in result["controls"]] == [("patched", c) for c in CONTROLS]
    accuracy = {row["method"]: row["test"] for row in result["rows"]}
    noise = result["controls"][1]
    assert noise["gain"] == pytest.approx(100 * (accuracy["patched"] - accuracy["fedavg"]))
    assert noise["difference"] == pytest.approx(100 * (accuracy["patched"] - accuracy["patched: noise"]))
    assert noise["verdict"] in ("noise gives less", "noise gives as much: the gain is not knowledge transfer")
    shown = fedsynth("resume", folder, "--trust-plugins", cwd=tmp_path).out
    for text in (shown, (folder / "table.md").read_text()):
        assert "patched gains" in text
        assert noise["verdict"] in text
        assert "over the run without synthesis; difference" in text


def test_one_seed_is_called_a_single_run(fedsynth, tiny, tmp_path):
    words = ("--methods", "patched", "--controls", "--no-references", "train.rounds=1")
    done = fedsynth("compare", "exp.toml", *tiny, *words, cwd=with_plugin(tmp_path))
    assert done.code == 0, done.err
    [line] = [line for line in done.out.splitlines() if ", noise" in line]
    assert line.endswith("(n = 1); single run")


def test_a_comparison_with_controls_is_resumed(fedsynth, controlled, tmp_path):
    folder, result = controlled
    copy = shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(copy / "patched-noise-s1")
    (copy / "patched-without-synthesis-s0" / "summary.json").unlink()
    done = fedsynth("resume", copy, "--trust-plugins", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert timeless(done.json["rows"]) == timeless(result["rows"])
    assert done.json["controls"] == result["controls"]


@pytest.mark.parametrize("content", ["{}", '{"planned": [3]}', '{"planned": 3}', '{"planned": [{"label": "a"}]}', "{"])
def test_a_damaged_plan_is_refused(fedsynth, tmp_path, content):
    (tmp_path / "comparison.json").write_text(content)
    done = fedsynth("resume", tmp_path, cwd=tmp_path)
    assert done.code == 2
    [line] = done.err.splitlines()
    assert "is not the folder of a comparison" in line


def test_without_the_switch_no_control_runs(fedsynth, tiny, tmp_path):
    words = ("--methods", "patched", "--no-controls", "--no-references", "train.rounds=1", "--json")
    done = fedsynth("compare", "exp.toml", *tiny, *words, cwd=with_plugin(tmp_path))
    assert [row["method"] for row in done.json["rows"]] == ["patched"]
    assert done.json["controls"] == []


def test_controls_of_methods_that_have_none_are_refused(fedsynth, tiny, tmp_path):
    done = fedsynth("compare", *tiny, "--methods", "fedavg,moon", "--controls", cwd=tmp_path)
    assert done.code == 2
    having = [m.name for m in all_methods() if m.controls and m.program.__module__.startswith("fedsynth.methods.")]
    for word in ("--controls", "fedavg, moon", *(having or ["No method has any"])):
        assert word in done.err
    named = fedsynth("compare", "exp.toml", *tiny, "--methods", "moon", "--controls", cwd=with_plugin(tmp_path))
    assert named.code == 2
    assert "patched" in named.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("misspelt", ["synthetc", '"synthetic"']), ("doubled", ["doubled-no-filter"])]
)
def test_controls_that_cannot_be_run_are_refused_before_anything_runs(fedsynth, tiny, tmp_path, name, words):
    done = fedsynth("compare", "exp.toml", *tiny, "--methods", name, "--controls", cwd=with_plugin(tmp_path))
    assert done.code == 2, done.err
    for word in words:
        assert word in done.err
    assert not (tmp_path / "runs").exists()


def test_a_method_has_no_controls_unless_told() -> None:
    assert find_method("fedavg").controls == {}
    with pytest.raises(ConfigError, match="--controls"):
        compare_methods({}, ["fedavg"], 1, controls=True)
