"""Measures of synthetic data on things whose quality is known."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits

from fedsynth.evaluation.quality import feature_distance, features_of, train_oracle, trained_on_these_only
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import evaluate

SPEC = ModelSpec(name="mlp", hidden=(32,))
QUICK = LocalTraining(epochs=30, batch_size=32, lr=0.1)


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    found = load_digits()
    return torch.tensor(found.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(found.target)


def test_an_oracle_knows_real_images_from_noise_and_from_wrong_labels(digits):
    x, y = digits
    oracle = train_oracle(SPEC, x[:1000], y[:1000], 10, training=QUICK)
    assert evaluate(oracle, x[1000:], y[1000:], 10).accuracy > 0.8
    assert evaluate(oracle, torch.rand(500, 1, 8, 8), y[:500], 10).accuracy < 0.3
    assert evaluate(oracle, x[1000:], (y[1000:] + 1) % 10, 10).accuracy < 0.2
    assert len(evaluate(oracle, x[1000:], y[1000:], 10).per_class()) == 10


def test_a_model_learns_from_real_images_and_not_from_noise(digits):
    x, y = digits
    test = (x[1000:], y[1000:])
    assert trained_on_these_only(SPEC, x[:600], y[:600], test, 10, training=QUICK).accuracy > 0.8
    assert trained_on_these_only(SPEC, torch.rand(600, 1, 8, 8), y[:600], test, 10, training=QUICK).accuracy < 0.4


def test_feature_distance_by_hand():
    """Eq. 19 as it is printed: over all pairs."""
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    second = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    cosines = [1.0, 1 / math.sqrt(2), 0.0, 1 / math.sqrt(2)]
    assert feature_distance(first, second) == pytest.approx(1 - sum(cosines) / 4)
    assert feature_distance(first, first[:0]) != feature_distance(first, first[:0])  # nan: nothing to compare


def test_a_class_is_nearer_to_itself_than_to_another(digits):
    x, y = digits
    oracle = train_oracle(SPEC, x[:1000], y[:1000], 10, training=QUICK)
    some, same, other = (
        features_of(oracle, part) for part in (x[:800][y[:800] == 3], x[800:][y[800:] == 3], x[y == 6])
    )
    assert feature_distance(some, same) < 0.7 * feature_distance(some, other)
