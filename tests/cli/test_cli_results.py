"""`report`, `quality` and `export` on a real run that has everything, and how a resume treats what they read."""

from __future__ import annotations

import csv
import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.export import export_run
from fedsynth.experiment.runner import load_data

PLUGIN = """
import torch
from fedsynth.federation import Federation, Outcome, method
from fedsynth.components.loop import LoopConfig, federated_loop

@method("showing", config=LoopConfig)
def showing(fed: Federation, cfg: LoopConfig) -> Outcome:
    "FedAvg that shows things."
    names = list(fed.clients)
    fed.record("similarity", {"kind": "matrix", "rows": names, "values": torch.eye(len(names)), "marks": [(0, 1)]})
    fed.record("groups", {"kind": "groups", "groups": {"first": names[:1], "rest": names[1:]}})
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    fed.show("made", images, torch.arange(40) % 10)
    return federated_loop(fed, cfg)
"""
WORDS = (
    "plugins=['mine.py']",
    "method.name=showing",
    "faults.dropout=0.4",
    "faults.delay=2",
    "train.rounds=4",
    "name=r",
)


@pytest.fixture(scope="module")
def shown(fedsynth, tiny, tmp_path_factory) -> Path:
    cwd = tmp_path_factory.mktemp("shown")
    (cwd / "mine.py").write_text(PLUGIN)
    done = fedsynth("run", *tiny, *WORDS, cwd=cwd, pictures=True)
    assert done.code == 0, done.err
    assert "simulated time  0.1 minutes" in done.out
    return cwd / "runs" / "r"


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "timeline.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_run_keeps_who_took_part_in_simulated_time(shown):
    rows = rows_of(shown)
    summary = json.loads((shown / "summary.json").read_text())
    assert sum(row["outcome"] != "answered" for row in rows) == summary["failed"] > 0
    asked = [row for row in rows if row["task"].endswith(".train")]
    assert {row["round"] for row in asked} == {"1", "2", "3", "4"}
    assert [float(row["simulated_start"]) for row in asked[::3]] == [0, 2, 4, 6]
    assert all(float(row["start"]) <= float(row["end"]) for row in rows)
    assert (shown / "timeline.png").stat().st_size > 5000


def test_a_killed_run_ends_with_the_same_timeline_and_records(fedsynth, tiny, shown, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    running = fedsynth.start("run", *tiny, *WORDS, cwd=tmp_path)
    run = tmp_path / "runs" / "r"
    end = time.monotonic() + 60
    while not (run / "checkpoints" / "000002.safetensors").exists() and time.monotonic() < end:
        time.sleep(0.01)
    running.kill()
    with (run / "timeline.csv").open("a") as file:
        file.write("a torn line")
    assert fedsynth("resume", run, "--trust-plugins", cwd=tmp_path).code == 0
    assert fedsynth("resume", run, "--trust-plugins", cwd=tmp_path).code == 0, "a finished run only says its result"
    keys = ("client", "task", "round", "simulated_start", "simulated_end", "outcome")
    assert [[row[k] for k in keys] for row in rows_of(run)] == [[row[k] for k in keys] for row in rows_of(shown)]
    assert (run / "records.json").read_text() == (shown / "records.json").read_text()
    pictures = sorted(file.name for file in (run / "samples").iterdir())
    shown_once = ["made-round-0000.png", "made-round-0000.safetensors", "real-class-means.safetensors"]
    assert pictures == shown_once, "not again on resume"


def test_a_report_of_a_real_run_shows_it_all(fedsynth, shown, tmp_path):
    done = fedsynth("report", shown, "-o", tmp_path / "out.html", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "not there" not in done.out
    text = (tmp_path / "out.html").read_text()
    for word in (
        "showing on digits",
        "similarity",
        "1 cells are marked",
        "made, round 0",
        "did not answer",
        "simulated",
    ):
        assert word in text
    done = fedsynth("report", shown, "--json", cwd=tmp_path)
    assert done.json == {"path": str(shown / "report.html"), "problems": []}


def test_a_failed_run_says_why(fedsynth, tiny, tmp_path):
    words = ("faults.failure=1.0", "train.quorum=1.0", "name=bad")
    assert fedsynth("run", *tiny, *words, cwd=tmp_path).code == 1
    assert "clients answered" in json.loads((tmp_path / "runs" / "bad" / "failed.json").read_text())["message"]
    assert fedsynth("report", "runs/bad", cwd=tmp_path).code == 0
    assert "The run failed: Round 1" in (tmp_path / "runs" / "bad" / "report.html").read_text()


def test_quality_of_noise_and_of_real_images(fedsynth, shown, tmp_path):
    copy = shutil.copytree(shown, tmp_path / "copy")
    noise = fedsynth("quality", copy, "--trust-plugins", "--json", cwd=shown.parents[1]).json
    assert [len(values) for values in noise["per_class"].values()] == [10] * 4
    assert "40 synthetic images" in noise["words"][0]
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    file = tmp_path / "real.safetensors"
    save_file(
        {"images": torch.tensor(x[:400] / 16).float().reshape(-1, 1, 8, 8), "labels": torch.tensor(y[:400])}, file
    )
    real = fedsynth("quality", copy, "--images", file, "--trust-plugins", "--json", cwd=shown.parents[1]).json
    better = {row["measure"]: float(row["value"].rstrip("%")) for row in real["measures"]}
    worse = {row["measure"]: float(row["value"].rstrip("%")) for row in noise["measures"]}
    for measure in ("trained on synthetic, evaluated on real", "coverage"):
        assert better[measure] > worse[measure]
    meanings = {row["measure"]: row["meaning"] for row in real["measures"]}
    assert "a screen, not a proof" in meanings["closer to training than to held-out records"]
    fedsynth("report", copy, cwd=tmp_path)
    assert "trained on as many real, evaluated on synthetic" in (copy / "report.html").read_text()


def test_a_gan_that_repeats_its_clients_records_is_seen(fedsynth, shown, tmp_path):
    copy = shutil.copytree(shown, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    data = load_data(make_experiment(config | {"plugins": [], "method": {"name": "fedavg"}}))
    client = data.clients[0]
    x, y = data.client(client).train.tensors()
    save_file({"images": x, "labels": y}, copy / "samples" / "group-1-own-gan-round-0001.safetensors")
    groups = {"kind": "groups", "about": "", "groups": {"group 1": [client]}}
    (copy / "records.json").write_text(json.dumps({"groups of clients": groups}))
    told = fedsynth("quality", copy, "--trust-plugins", "--json", cwd=shown.parents[1]).json
    fewest = min(int(count) for count in torch.bincount(y) if count)
    assert f"the class with fewest records ({fewest})" in told["words"][-1]
    found = told["own_gans"]
    assert [part["client"] for part in found] == [client]
    assert found[0]["rows"]
    assert all(share > 0.9 for _, _, share in found[0]["rows"])
    fedsynth("report", copy, cwd=tmp_path)
    assert f"The GAN of client {client}: images nearer" in (copy / "report.html").read_text()


def test_images_that_do_not_fit_are_refused(fedsynth, shown, tmp_path):
    file = tmp_path / "odd.safetensors"
    save_file({"images": torch.rand(4, 1, 3, 3), "labels": torch.arange(4)}, file)
    done = fedsynth("quality", shown, "--images", file, "--trust-plugins", cwd=shown.parents[1])
    assert done.code == 2
    assert "do not fit" in done.err
    file.write_bytes(b"nothing")
    assert fedsynth("quality", shown, "--images", file, "--trust-plugins", cwd=shown.parents[1]).code == 2


def test_a_run_goes_to_mlflow(shown, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: nothing was exported to it")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'ml.db'}")
    said = export_run(shown, "mlflow", "mine")
    history = mlflow.MlflowClient().get_metric_history(said.split()[1], "validation/accuracy")
    assert [point.step for point in history] == [1, 2, 3, 4]


def test_a_run_goes_to_weights_and_biases(shown, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: nothing was exported to it")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    export_run(shown, "wandb")
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
