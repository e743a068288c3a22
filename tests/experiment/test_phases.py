"""Phases are not rounds: training GANs has steps of its own, and rounds count those of the evaluated model alone."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from federations import same_bits

import fedsynth
from fedsynth.experiment.recorder import Recorder

ROUNDS = 3
GANS = {"gan_channels": 2, "gan_latent": 4}
METHODS: dict[str, dict[str, Any]] = {
    "gandalf": GANS | {"name": "gandalf", "gan_steps": 8, "visit_steps": 1, "counts_epsilon": None},
    "pfl_gan": GANS
    | {
        "name": "pfl_gan",
        "gan_steps": 2,
        "use": "refined",
        "refined_steps": 2,
        "encoder_steps": 2,
        "samples_per_class": 3,
    }
    | {"side_by_side": 1, "threshold": "none"},
}
PHASE = {"gandalf": "GANs", "pfl_gan": "own GANs"}


def run(method: str, folder: Path) -> fedsynth.RunResult:
    return fedsynth.run(
        METHODS[method],
        data={"name": "digits", "limit": 150},
        partition={"name": "dirichlet", "num_clients": 3, "alpha": 1.0},
        model={"name": "mlp", "hidden": [6]},
        train={"rounds": ROUNDS, "local_epochs": 1},
        engine={"workers": 1},
        runs=str(folder),
        progress=False,
    )


def run_until_killed(method: str, folder: Path) -> None:
    """The process kills itself in the third step of the phase that trains GANs."""
    steps = []
    follow = Recorder.step_done

    def step_done(self: Recorder, fed: Any, name: str) -> None:
        follow(self, fed, name)
        steps.append(name)
        if steps.count(PHASE[method]) == 3:  # the third is done, and not yet kept
            os.kill(os.getpid(), signal.SIGKILL)

    Recorder.step_done = step_done  # type: ignore[method-assign]
    run(method, folder)


def assert_rounds(result: fedsynth.RunResult) -> None:
    """Metrics, summary and timeline count the rounds of the evaluated model, from 1 to the last."""
    rows = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert [row.round for row in result.metrics] == list(range(1, ROUNDS + 1))
    assert {row["phase"] for row in rows} == {"train"}
    assert all("validation" in row for row in rows)
    assert result.summary.rounds == result.experiment.train.rounds == ROUNDS
    assert 1 <= result.summary.best.round <= ROUNDS
    with (result.path / "timeline.csv").open(newline="") as file:
        rounds = {int(row["round"]) for row in csv.DictReader(file)}
    assert rounds == set(range(ROUNDS + 1)), "what comes before the first round is in round 0"


@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_those_of_the_evaluated_model_also_after_a_kill_among_the_gans(method: str, tmp_path: Path) -> None:
    whole = run(method, tmp_path / "whole")
    assert_rounds(whole)
    killed = multiprocessing.get_context("fork").Process(target=run_until_killed, args=(method, tmp_path / "killed"))
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    [folder] = (tmp_path / "killed").iterdir()
    assert not (folder / "metrics.jsonl").read_text()
    resumed = fedsynth.resume(folder, progress=False)
    assert_rounds(resumed)
    for name in ("test", "clients", "views", "best"):
        assert getattr(resumed.summary, name) == getattr(whole.summary, name)
    if whole.weights is not None:
        assert resumed.weights is not None
        assert same_bits(resumed.weights, whole.weights)
