"""fedsynth audit on whole runs: a row for each release, attacks that find what is there, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import fedsynth
from fedsynth.audit.run import audit_run
from fedsynth.cli.app import app
from fedsynth.cli.common import out
from fedsynth.synthesis.latent_statistics import Calibration

SMALL = {
    "data": {"name": "digits", "limit": 320, "validation": 0.25, "test": 0.25},
    "partition": {"name": "iid", "num_clients": 2},
    "engine": {"workers": 1},
    "evaluation": {"every": 0},
}


def run(folder: Path, method: Any = "fedavg", **sections: Any) -> Path:
    return fedsynth.run(method, runs=str(folder), progress=False, **(SMALL | sections)).path


def audit(*words: object) -> Any:
    out.width = 120  # whatever the terminal of the test that was first to import it
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture(scope="module")
def smudged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Digits of which four in ten have any label: who learns that has learnt it by heart."""
    rng, digits = np.random.default_rng(0), load_digits()
    labels = np.where(rng.random(len(digits.target)) < 0.4, rng.integers(0, 10, len(digits.target)), digits.target)
    file = tmp_path_factory.mktemp("smudged") / "digits.npz"
    np.savez(file, x=(digits.images[:, None] / 16).astype(np.float32), y=labels)
    data = SMALL["data"] | {"name": f"npz:{file}", "limit": 500}
    partition = {"name": "iid", "num_clients": 1}  # an average with others would blur it
    return {"data": data, "partition": partition, "model": {"name": "mlp", "hidden": [64]}}


def test_membership_inference_finds_an_overfitted_model(tmp_path: Path, smudged: dict[str, Any]) -> None:
    done = audit_run(run(tmp_path, **smudged, train={"rounds": 1, "local_epochs": 60, "batch_size": 8}))
    assert all(attack.result.found for attack in done.attacks)
    by_loss = {attack.how: attack.result for attack in done.attacks}["loss"]
    assert by_loss.auc > 0.65
    assert not by_loss.enough  # two hundred others cannot show one false alarm in a thousand
    assert not done.refuted  # nothing was claimed
    assert {row.audit for row in done.rows} == {"nothing is claimed"}


def test_membership_inference_does_not_find_a_dp_sgd_model(tmp_path: Path, smudged: dict[str, Any]) -> None:
    training = {"rounds": 2, "local_epochs": 10, "batch_size": 25, "lr": 0.5}
    done = audit_run(run(tmp_path, **smudged, train=training, privacy={"updates": "dp_sgd", "noise": 1.0}), runs=80)
    assert len(done.attacks) == 3
    assert not any(attack.result.found for attack in done.attacks)
    rows = {row.row.release: row.as_dict() for row in done.rows}
    weights = rows["local_training.train.model"]
    assert (weights["unit"], weights["adjacency"], weights["runs"]) == ("record", "add or remove one", 80)
    assert weights["against"] == "everybody"
    assert 0 <= weights["lower_bound"] <= weights["claimed"]
    assert rows["local_training.train.loss"]["audit"].startswith("a constant")
    assert rows["views.score.scores"]["proven"] == "none"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedDPMS with its calibrated release at ε = 4."""
    folder = tmp_path_factory.mktemp("shared")
    method = {"name": "feddpms", "epsilon": 4.0, "senders": 2, "filter": "none"}
    return run(folder, method, train={"rounds": 2, "local_epochs": 1}, data=SMALL["data"] | {"limit": 600})


def test_the_calibrated_mechanism_of_a_run_is_not_refuted(shared: Path) -> None:
    done = audit(shared, "--runs", 160, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    row = next(row for row in found["rows"] if row["release"] == "feddpms.clients.share_statistics.statistics")
    assert row["claimed"] == pytest.approx(5.99, abs=0.01)  # of the two releases of a trial, 4 each
    assert 0.2 < row["lower_bound"] < row["claimed"]
    assert found["refuted"] == []
    assert "never prove" in found["note"]


def test_a_broken_mechanism_is_refuted_with_exit_code_1(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Calibration.noise.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Calibration, "noise", property(lambda self: honest(self) / 2))
    done = audit(shared, "--runs", 320)
    assert done.exit_code == 1, done.output
    assert "REFUTED" in done.stdout
    assert "never prove one" in done.stdout


def test_published_means_are_evaluated_by_three_readings(tmp_path: Path) -> None:
    data, method = SMALL["data"] | {"limit": 600}, {"name": "feddpms", "form": "published"}
    done = audit_run(run(tmp_path, method, data=data, train={"rounds": 2, "local_epochs": 1}), runs=200)
    readings = [row.as_dict() for row in done.rows if row.row.release == "feddpms.clients.train_augmented.means"]
    assert [row["audit"][:9] for row in readings] == ["reading A", "reading B", "reading C"]
    assert readings[1]["refuted"]
    assert readings[1]["proven"] == "none"
    assert done.refuted


LEAKING = '''
import torch
from fedsynth.federation import Client, Federation, Outcome, Reply, leaves, method, task
from fedsynth.components.settings import MethodConfig
from fedsynth.privacy import GaussianEvent, Guarantee

class LeakConfig(MethodConfig):
    """Settings."""

class Sums(Reply):
    sums: torch.Tensor = leaves("sums with noise, it says")

@task
def sums_of_images(client: Client) -> Sums:
    client.noise_rng("never used")
    claimed = Guarantee(mechanism="noise", events=(GaussianEvent(mu=0.1),))
    return client.release(Sums(sums=client.data.train.tensors()[0]), sums=claimed)

@method("leak", config=LeakConfig)
def leak(fed: Federation, cfg: LeakConfig) -> Outcome:
    """Sends raw images under a claimed event."""
    fed.broadcast(sums_of_images)
    return Outcome(None, no_global="there is none")
'''


def test_a_claim_that_declares_no_trial_is_not_tested_and_never_called_not_refuted(tmp_path: Path) -> None:
    """It is not tried by the trial of some other mechanism whose event looks alike."""
    (tmp_path / "leak.py").write_text(LEAKING)
    folder = run(tmp_path / "runs", "leak", plugins=[str(tmp_path / "leak.py")])
    done = audit(folder, "--runs", 80, "--trust-plugins", "--json")
    [row] = [row for row in json.loads(done.stdout.splitlines()[-1])["rows"] if row["task"] == "leak.sums_of_images"]
    assert row["verdict"] == "not tested"
    assert (row["lower_bound"], row["refuted"]) == (None, False)
    said = " ".join(audit(folder, "--runs", 80, "--trust-plugins").stdout.split())
    assert "not tested" in said
    assert "not refuted" not in said


def test_mistakes_are_told(tmp_path: Path) -> None:
    assert "not a run folder" in str(audit(tmp_path).exception)
    (tmp_path / "config.json").write_text("{}")
    assert "not finished" in str(audit(tmp_path).exception)
