"""`fedsynth invert`: a run's model as pictures and numbers, from its folder alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedsynth
from fedsynth.errors import ConfigError
from fedsynth.evaluation.quality import train_oracle
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import evaluate
from fedsynth.studies.inversion import invert_run
from fedsynth.studies.quality import measure_quality

ORACLE = LocalTraining(epochs=15, batch_size=32, lr=2e-3, optimizer="adam")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One client that holds all digits, and a small network with BatchNorm."""
    return fedsynth.run(
        "fedavg",
        partition={"name": "iid", "num_clients": 1},
        model={"name": "zda_cnn"},
        train={"rounds": 2, "local_epochs": 8, "batch_size": 32, "lr": 0.02},
        engine={"workers": 1},
        runs=str(tmp_path_factory.mktemp("runs")),
        progress=False,
    ).path


def test_images_of_a_trained_model_are_recognised_by_another_classifier(trained: Path) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    real = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    oracle = train_oracle(ModelSpec(name="cnn", channels=(16, 32), hidden=(32,)), *real, 10, training=ORACLE)
    found = invert_run(trained, per_class=16)
    assert found.recognised > 0.95
    assert evaluate(oracle, found.images, found.labels, 10).accuracy > 0.75  # .84; of noise .1
    assert 0 <= found.images.min() <= found.images.max() <= 1


def test_they_are_kept_as_a_picture_and_as_numbers_that_quality_reads(trained: Path) -> None:
    found = invert_run(trained, per_class=6, steps=10, form="published", saved="best")
    assert found.picture is not None
    assert found.picture.read_bytes().startswith(b"\x89PNG")
    with np.load(found.numbers, allow_pickle=False) as kept:
        assert np.array_equal(kept["images"], found.images.numpy())
        assert kept["labels"].tolist() == [label for label in range(10) for _ in range(6)]
    assert found.images.min() < 0, "published: pixels are free"
    assert "60 synthetic images" in measure_quality(trained, found.numbers).words[0]
    again = invert_run(trained, per_class=6, steps=10, form="published", saved="best")
    assert torch.equal(again.images, found.images)
    assert not torch.equal(invert_run(trained, 6, 10, "published", "best", seed=1).images, found.images)


def test_what_cannot_be_inverted_is_refused(trained: Path, tmp_path: Path) -> None:
    plain = fedsynth.run(
        model={"name": "mlp", "hidden": [4]},
        data={"name": "digits", "limit": 200},
        train={"rounds": 1, "local_epochs": 1},
        engine={"workers": 1},
        runs=str(tmp_path),
        progress=False,
    ).path
    with pytest.raises(ConfigError, match='model.norm = "batch"'):
        invert_run(plain)
    (plain / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no model.safetensors that can be read"):
        invert_run(plain)
    with pytest.raises(ConfigError, match="is not a run folder"):
        invert_run(tmp_path)
