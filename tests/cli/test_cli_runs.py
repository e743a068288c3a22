"""Whole runs: what they print and leave behind, and that killing them costs nothing but time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors import safe_open

# Private state at the clients, a sample of them in every round, best model, metrics of every round.
LONG = ("method.name=moon", "train.rounds=12", "train.fraction=0.7", "name=run", "seed=3", "evaluation.test_curve=true")


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def timeless(value: Any) -> Any:
    """A summary or row of metrics without what may differ between equal runs."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in {"seconds", "run_dir", "notes"}}
    return value


def contents(folder: Path) -> dict[str, Any]:
    """What a run gave: models to the byte, metrics and summary apart from time."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "best": (folder / "model-best.safetensors").read_bytes(),
        "metrics": [timeless(row) for row in rows],
        "summary": timeless(json.loads((folder / "summary.json").read_text())),
        "clients": (folder / "clients.csv").read_text(),
        "ledger": (folder / "ledger.csv").read_text(),
    }


def rounds_done(folder: Path) -> int:
    numbers = [int(path.stem) for path in (folder / "checkpoints").glob("*.safetensors")]
    return max(numbers, default=0)


@pytest.fixture(scope="module")
def whole(fedsynth, tiny, tmp_path_factory) -> Path:
    """The folder of a run that nobody interrupts."""
    cwd = tmp_path_factory.mktemp("whole")
    done = fedsynth("run", "--json", *tiny, *LONG, cwd=cwd, pictures=True)
    assert done.code == 0, done.err
    return cwd / "runs" / "run"


def interrupted(fedsynth, tiny, cwd: Path, after: int = 4, workers: int = 2) -> Path:
    """The folder of a run that was killed with -9 after some rounds."""
    folder = cwd / "runs" / "run"
    running = fedsynth.start("run", *tiny, *LONG, f"engine.workers={workers}", cwd=cwd)
    until(lambda: rounds_done(folder) >= after)
    assert running.kill().code == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    return folder


# -- what a run prints ------------------------------------------------------------------------------------------------


def test_the_installed_script_runs_and_prints_one_json_object_last(tiny, tmp_path):
    script = Path(sys.executable).with_name("fedsynth")
    done = subprocess.run(
        [script, "run", "--json", *tiny], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    summary = json.loads(line)
    assert summary["method"] == "fedavg"
    assert summary["seed"] == 0
    assert 0 <= summary["test"]["accuracy"] <= 1
    assert summary["test"]["class_variance"] >= 0
    assert {"mean", "variance", "worst"} <= set(summary["clients"])
    assert summary["clients"]["worst"] <= summary["clients"]["mean"]
    assert summary["bytes"]["up"] > 0
    assert summary["bytes"]["down"] > 0
    assert summary["seconds"] > 0
    assert summary["failures"] == []
    assert (tmp_path / summary["run_dir"] / "summary.json").is_file()


def test_without_json_the_results_are_printed_and_nothing_else(fedsynth, tiny, tmp_path):
    done = fedsynth("run", *tiny, cwd=tmp_path)
    assert done.code == 0
    assert done.err == "", "no progress where nobody looks"
    for words in ("fedavg, seed 0, 2 rounds (single run)", "global test", "No differential privacy", "run folder"):
        assert words in done.out, words
    assert "\x1b" not in done.out


def test_a_run_leaves_its_record(whole):
    names = {path.name for path in whole.iterdir()}
    expected = "config.json versions.json manifest.json metrics.jsonl metrics.csv summary.json clients.csv"
    assert names >= {*expected.split(), "model.safetensors", "model-best.safetensors", "participation.json"}
    assert names >= {"ledger.csv", "tensorboard", "checkpoints", "split.png", "curves.png"}
    assert min(path.stat().st_size for path in whole.glob("*.png")) > 5000
    assert not list(whole.rglob("*.tmp"))
    assert len((whole / "metrics.jsonl").read_text().splitlines()) == 12
    with safe_open(whole / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedsynth"])
    assert about["method"] == "moon"
    assert about["model"]["name"] == "mlp"


def test_two_runs_of_one_experiment_are_equal_to_the_byte(fedsynth, tiny, tmp_path, whole):
    assert fedsynth("run", *tiny, *LONG, "engine.workers=2", cwd=tmp_path).code == 0
    assert contents(tmp_path / "runs" / "run") == contents(whole)


def test_the_wire_engine_gives_the_same_run(fedsynth, tiny, tmp_path, whole):
    assert fedsynth("run", *tiny, *LONG, "engine.name=wire", cwd=tmp_path).code == 0
    assert contents(tmp_path / "runs" / "run") == contents(whole)


def test_runs_without_a_name_do_not_get_in_each_others_way(fedsynth, tiny, tmp_path):
    started = [fedsynth.start("run", "--json", *tiny, cwd=tmp_path) for _ in range(3)]
    folders = {running.wait().json["run_dir"] for running in started}
    assert len(folders) == 3


def test_a_name_that_is_taken_is_refused(fedsynth, tiny, whole):
    before = contents(whole)
    done = fedsynth("run", *tiny, *LONG, cwd=whole.parent.parent)
    assert done.code == 2
    assert "exists" in done.err
    assert contents(whole) == before


def test_no_rounds_at_all_are_a_run_too(fedsynth, tiny, tmp_path):
    done = fedsynth("run", "--json", *tiny, "train.rounds=0", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["rounds"] == 0
    assert fedsynth("resume", done.json["run_dir"], "--json", cwd=tmp_path).json == done.json


# -- killed runs ------------------------------------------------------------------------------------------------------


def test_a_run_killed_with_its_server_is_resumed_to_the_same_bytes(fedsynth, tiny, tmp_path, whole):
    folder = interrupted(fedsynth, tiny, tmp_path)
    done = fedsynth("resume", folder, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert contents(folder) == contents(whole)


def test_a_run_killed_twice_and_moved_is_resumed_to_the_same_bytes(fedsynth, tiny, tmp_path, whole):
    folder = interrupted(fedsynth, tiny, tmp_path, after=2, workers=1)
    running = fedsynth.start("resume", folder, cwd=tmp_path)
    reached = rounds_done(folder)
    until(lambda: rounds_done(folder) >= reached + 2)
    running.kill()
    assert not (folder / "summary.json").exists()
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert fedsynth("resume", moved, cwd=tmp_path).code == 0
    assert contents(moved) == contents(whole)


def test_a_run_goes_on_when_a_worker_is_killed(fedsynth, tiny, tmp_path, whole):
    folder = tmp_path / "runs" / "run"
    running = fedsynth.start("run", *tiny, *LONG, "engine.workers=2", cwd=tmp_path)
    for after in (2, 5):
        until(lambda after=after: rounds_done(folder) >= after)
        os.kill(psutil.Process(running.pid).children()[0].pid, signal.SIGKILL)
    assert running.wait().code == 0
    assert contents(folder) == contents(whole)


def test_metrics_written_before_the_first_checkpoint_are_not_doubled(fedsynth, tiny, tmp_path, whole):
    """As if killed between the first line of metrics and the first checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "versions.json", "manifest.json"):
        shutil.copy(whole / name, folder / name)
    first = (whole / "metrics.jsonl").read_text().splitlines()[0]
    (folder / "metrics.jsonl").write_text(first + "\n" + first[:20])
    assert fedsynth("resume", folder, cwd=tmp_path).code == 0
    assert contents(folder) == contents(whole)


def test_an_interrupt_from_the_keyboard_says_how_to_go_on(fedsynth, tiny, tmp_path, whole):
    folder = tmp_path / "runs" / "run"
    running = fedsynth.start("run", *tiny, *LONG, "engine.workers=2", cwd=tmp_path)
    until(lambda: rounds_done(folder) >= 3)
    os.kill(running.pid, signal.SIGINT)
    done = running.wait()
    assert done.code == 130
    assert "resume" in done.err
    assert "Traceback" not in done.err
    assert fedsynth("resume", folder, cwd=tmp_path).code == 0
    assert contents(folder) == contents(whole)


def test_resuming_a_finished_run_gives_the_same_summary(fedsynth, tmp_path, whole):
    copy = shutil.copytree(whole, tmp_path / "copy")
    before = contents(copy)
    done = fedsynth("resume", copy, "--json", cwd=tmp_path)
    kept = json.loads((whole / "summary.json").read_text())
    assert done.json == {**kept, "run_dir": str(copy)}
    assert contents(copy) == before


def test_two_processes_on_one_folder_are_one_too_many(fedsynth, tiny, tmp_path):
    folder = tmp_path / "runs" / "run"
    running = fedsynth.start("run", *tiny, *LONG, "train.rounds=200", cwd=tmp_path)
    until(lambda: rounds_done(folder) >= 1)
    second = fedsynth("resume", folder, cwd=tmp_path)
    running.kill()
    assert second.code == 2
    assert "in use" in second.err


# -- a resume that would give a mixture -------------------------------------------------------------------------------


def assert_refused(done, *words: str) -> None:
    assert done.code == 2, done.err
    [line] = done.err.splitlines()
    assert line.startswith("fedsynth: ")
    for word in words:
        assert word in line, word


def edit(path: Path, change) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def test_another_config_is_refused(fedsynth, copy):
    edit(copy / "config.json", lambda table: table["train"].update(lr=0.2))
    assert_refused(fedsynth("resume", copy, cwd=copy), "config.json", "another config")


def test_how_a_run_is_carried_out_may_change(fedsynth, copy):
    edit(copy / "config.json", lambda table: table["engine"].update(workers=2))
    assert fedsynth("resume", copy, cwd=copy).code == 0


def test_other_code_is_refused_unless_accepted(fedsynth, copy, whole):
    edit(copy / "versions.json", lambda table: table.update(code="0" * 64))
    assert_refused(fedsynth("resume", copy, cwd=copy), "other code", "--accept-code-change")
    assert fedsynth("resume", copy, "--accept-code-change", cwd=copy).code == 0
    assert contents(copy) == contents(whole)


def test_other_data_is_refused(fedsynth, copy):
    edit(copy / "manifest.json", lambda table: table["fingerprint"].update(split="0" * 64))
    assert_refused(fedsynth("resume", copy, cwd=copy), "other data")


@pytest.mark.parametrize("name", ["config.json", "versions.json", "manifest.json"])
@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_record_is_refused(fedsynth, copy, name, content):
    (copy / name).write_text(content)
    assert_refused(fedsynth("resume", copy, cwd=copy), str(copy))


def test_two_damaged_checkpoints_are_refused(fedsynth, copy):
    for path in (copy / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    assert_refused(fedsynth("resume", copy, cwd=copy), "checkpoint", "anew")


# -- runs that fail ---------------------------------------------------------------------------------------------------

PLUGIN = """
from fedsynth.federation import Client, Done, Federation, Outcome, State, method, task
from fedsynth.components.settings import MethodConfig

@task
def stumble(client: Client) -> Done:
    if client.id == "1" and client.round == 2:
        raise RuntimeError("a stone in the way")
    return client.release(Done())

@method("stumbling", config=MethodConfig)
def stumbling(fed: Federation, cfg: MethodConfig) -> Outcome:
    "Falls in round 2."
    for _ in fed.rounds("walk", cfg.train.rounds, State()):
        fed.broadcast(stumble)
    return Outcome(None, no_global="it only walks")
"""


def test_a_client_that_fails_stops_the_run_with_its_traceback_and_exit_code_1(fedsynth, tiny, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    done = fedsynth("run", *tiny, 'plugins=["mine.py"]', "method.name=stumbling", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("fedsynth: Round 2")
    for words in ('client "1"', "stumble", "a stone in the way", "mine.py"):
        assert words in done.err, words


def test_a_quorum_lets_a_run_finish_and_list_who_failed(fedsynth, tiny, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    settings = ('plugins=["mine.py"]', "method.name=stumbling", "train.quorum=0.5", "train.rounds=3")
    done = fedsynth("run", "--json", *tiny, *settings, cwd=tmp_path)
    assert done.code == 0, done.err
    [failure] = done.json["failures"]
    assert failure["client"] == "1"
    assert failure["round"] == 2
    assert failure["task"] == "mine.stumble"


def test_a_run_with_faults_finishes_and_lists_them(fedsynth, tiny, tmp_path):
    faults = ("faults.dropout=0.4", "faults.failure=0.1", "faults.delay=2", "train.rounds=6")
    done = fedsynth("run", "--json", *tiny, *faults, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["failed"] == len(done.json["failures"]) > 0
    assert done.json["simulated_seconds"] > 0
    shown = fedsynth("resume", done.json["run_dir"], cwd=tmp_path)
    assert f"{done.json['failed']} requests were not answered" in shown.out


def test_a_run_in_which_nobody_can_be_reached_finishes_without_results(fedsynth, tiny, tmp_path):
    for extra in ((), ("method.name=fedbn", "model.norm=batch"), ("method.name=local",)):
        done = fedsynth("run", *tiny, "faults.dropout=1", *extra, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "requests were not answered" in done.out


def test_early_stopping_ends_a_run(fedsynth, tiny, tmp_path):
    done = fedsynth("run", "--json", *tiny, "train.rounds=50", "train.patience=1", "train.lr=1e-9", cwd=tmp_path)
    assert done.json["rounds"] == 2
    assert done.json["best"]["round"] == 1


FAILURES = {
    "takes each of 40 test examples for one class": ("train.lr=100",),
    "all examples are of one class (3)": ("data.classes=[3]",),
}


@pytest.mark.parametrize("words", FAILURES)
def test_a_run_without_a_usable_model_says_so_first_and_fails(words, fedsynth, tiny, tmp_path):
    done = fedsynth("run", *tiny, *FAILURES[words], "name=run", cwd=tmp_path)
    assert done.code == 1
    text = " ".join(done.out.split())
    assert text.startswith("failed ")
    assert words in text
    assert "global test" in text, "and then what there is"
    report = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert report.index("failed: ") < report.index("The result of this run")
    again = fedsynth("resume", tmp_path / "runs" / "run", "--json", cwd=tmp_path)
    assert again.code == 1
    assert words in again.json["problem"]


def test_training_that_ends_with_numbers_that_are_not_finite_fails(fedsynth, tiny, tmp_path):
    done = fedsynth("run", *tiny, "train.lr=1e12", cwd=tmp_path)
    assert done.code == 1
    assert "not finite" in done.err


def test_a_comparison_names_the_rows_without_a_model_and_fails_when_no_row_has_one(fedsynth, tiny, tmp_path):
    one = ("--methods", "fedavg,wild=fedavg:train.lr=100", "--no-references", "name=one")
    done = fedsynth("compare", *tiny, *one, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("failed: wild, seed 0: the model takes each of 40 test examples for one class")
    assert "failed: wild, seed 0" in (tmp_path / "runs" / "one" / "report.html").read_text()
    done = fedsynth("compare", *tiny, "--methods", "fedavg", "--no-references", "train.lr=100", cwd=tmp_path)
    assert done.code == 1
