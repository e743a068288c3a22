"""fedsynth advise: opposite skews get different answers, counts cost what they cost, and nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsynth.cli.app import app
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import load_data
from fedsynth.studies.advise import Question, answer
from fedsynth.studies.histograms import drop_noise, read_histograms, request_histograms, scale_counts
from fedsynth.studies.recommendation import recommend
from fedsynth.studies.work import Work

TRAINING = {"local_epochs": 5, "batch_size": 8}
QUICK = {"model": {"name": "mlp", "hidden": [32]}, "train": TRAINING, "engine": {"workers": 1}}
EVEN = {f"site {k}": [60] * 10 for k in range(8)}
SKEWED = {f"site {k}": [300 if c in (2 * k, 2 * k + 1) else 0 for c in range(10)] for k in range(5)}


def asked(folder: Path, table: dict[str, Any], **changes: Any) -> Question:
    file = folder / "counts.json"
    file.write_text(json.dumps(table))
    tables = {**QUICK, "runs": str(folder)}
    return Question(
        tables=tables,
        **{"histograms": file, "examples": 60, "rounds": 4, "methods": ("fedavg",), "seeds": 3, **changes},
    )


def test_opposite_skews_get_different_answers(tmp_path: Path) -> None:
    even = answer(asked(tmp_path, EVEN, seeds=5), "even", Work(jobs=1))
    skewed = answer(asked(tmp_path, SKEWED, methods=("finetune",)), "skewed", Work(jobs=1))
    assert even.recommended["own"].method == "fedavg"
    assert even.recommended["own"].gain["local"].mean > 0.03
    assert skewed.recommended["own"].method == "local"
    assert skewed.recommended["own"].gain["fedavg"].mean > 0.1
    assert {found.recommended["global"].method for found in (even, skewed)} <= {"fedavg", "finetune"}
    assert [row.client for row in skewed.clients] == list(SKEWED)
    assert all(row.gain.n == 3 for row in skewed.clients)
    assert any("stay local" in line for line in skewed.words)
    assert any("MB up and down" in line for line in even.words)
    fedavg = next(row for row in even.rows if row.method == "fedavg")
    assert fedavg.bytes > 10_000
    assert fedavg.unprotected


def test_the_command_goes_on_where_it_was_and_tells_two_questions_apart(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("client,a,b,c\nnorth,40,9,0\nsouth,0,30,31\n")
    settings = ["model.name=mlp", "model.hidden=[8]", "train.local_epochs=1", f"runs={tmp_path}", "engine.workers=1"]
    words = ["advise", *settings, "--histograms", str(file), "--epsilon", "1", "--rounds", "1", "--seeds", "2"]
    words += ["--methods", "fedavg", "--jobs", "1"]
    first = CliRunner().invoke(app, [*words, "--json"])
    assert first.exit_code == 0, first.output
    answer = json.loads(first.stdout.splitlines()[-1])
    # Noise on the counts is charged, with unit, neighbours and δ.
    assert any("ε = 1.000 per record (add or remove one, δ = 1e-05)" in line for line in answer["words"])
    times = {path: path.stat().st_mtime for path in tmp_path.glob("advise/*/summary.json")}
    assert len(times) == 4
    second = CliRunner().invoke(app, words)
    assert "north" in second.stdout
    assert {path: path.stat().st_mtime for path in tmp_path.glob("advise/*/summary.json")} == times
    assert json.loads((tmp_path / "advise" / "advice.json").read_text())["rows"] == answer["rows"]
    other = CliRunner().invoke(app, [*words, "--examples", "30"])
    assert "another question" in str(other.exception)


def test_noise_is_secret_and_drawn_once(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(json.dumps(EVEN))
    one, other = (read_histograms(file, 1.0, 1e-5).counts for _ in range(2))
    assert (one != other).any()
    assert np.abs(one - 60).mean() < 10
    assert (read_histograms(file, None, 1e-5).counts == 60).all()


def test_clients_of_an_experiment_are_asked(tmp_path: Path) -> None:
    experiment = make_experiment({"data": {"limit": 200}, "partition": {"num_clients": 3}, "runs": str(tmp_path)})
    exact = request_histograms(experiment, None)
    assert (exact.counts == load_data(experiment).counts()).all()
    assert exact.ledger[0].proven == "none"
    noisy = request_histograms(experiment, 2.0)
    assert noisy.ledger[0].epsilon == pytest.approx(2.0, rel=1e-3)
    assert not list(tmp_path.iterdir())


def test_scaling_keeps_the_skew_and_fits_the_supply() -> None:
    counts = np.array([[1000, 0, 10], [0, 50, 50], [3, 0, 0]])
    made = scale_counts(counts, np.array([40, 40, 40]), most=60)
    assert (made.sum(axis=0) <= 40).all()
    assert made[0, 1] == made[1, 0] == 0
    assert made[1, 1] == made[1, 2]
    assert made.sum(axis=1).min() >= 8
    assert made[0, 0] > 20 * max(1, made[0, 2] - 1)
    with pytest.raises(ConfigError, match="larger --data"):
        scale_counts(counts, np.array([4, 4, 4]), most=60)


def test_counts_that_noise_alone_would_give_are_none() -> None:
    made = drop_noise(np.array([[100, 5, -3], [2, 1, -9]]), 1.0, 1e-5)  # σ is 3.7
    assert made.tolist() == [[100, 0, 0], [2, 0, 0]]


def scores(**by_method: list[float]) -> dict[str, dict[int, float | None]]:
    return {method: dict(enumerate(values)) for method, values in by_method.items()}


ORDER = ["local", "fedavg", "cheap", "dear"]


@pytest.mark.parametrize(
    ("given", "chosen", "best"),
    [
        (scores(local=[0.5, 0.51, 0.52], fedavg=[0.8, 0.82, 0.81], dear=[0.81, 0.80, 0.83]), "fedavg", "dear"),
        (scores(local=[0.9, 0.92, 0.91], fedavg=[0.5, 0.4, 0.6], dear=[0.91, 0.91, 0.92]), "local", "dear"),
        (scores(local=[0.5, 0.51, 0.52], fedavg=[0.6, 0.61, 0.6], dear=[0.8, 0.81, 0.79]), "dear", "dear"),
        # Not cheap, which is not clearly worse than the best but worse than FedAvg.
        (scores(fedavg=[0.70, 0.71, 0.72], cheap=[0.60, 0.75, 0.66], dear=[0.73, 0.74, 0.75]), "dear", "dear"),
    ],
)
def test_the_simplest_that_is_not_clearly_beaten_is_recommended(given: Any, chosen: str, best: str) -> None:
    found = recommend(given, ORDER)
    assert (found.method, found.best) == (chosen, best)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "client,a,b\nnorth,1,x\n", "holds no histograms"),
        ("a.csv", "client,a,b\nnorth,1,2\nsouth,1\n", "holds no histograms"),
        ("a.json", "{}", "holds no histograms"),
        ("a.json", '{"north": [1, -2]}', "whole numbers"),
        ("a.json", '{"north": [1.5, 2]}', "whole numbers"),
        ("a.json", "[1, 2]", "holds no histograms"),
    ],
)
def test_bad_histograms_are_told(tmp_path: Path, name: str, text: str, match: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=match):
        read_histograms(tmp_path / name, None, 1e-5)


def test_questions_that_cannot_be_answered_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to tell apart"):
        answer(asked(tmp_path, {"a": [5, 0], "b": [9, 0]}), "one-class")
    with pytest.raises(ConfigError, match="12 classes"):
        answer(asked(tmp_path, {"a": [5] * 12}), "many-classes")
    with pytest.raises(ConfigError, match="2 seeds"):
        answer(asked(tmp_path, EVEN, seeds=1), "one-seed")
    with pytest.raises(ConfigError, match="no file|cannot be read"):
        read_histograms(tmp_path / "nothing.json", None, 1e-5)
