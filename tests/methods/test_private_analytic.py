"""What the ε of the closed form rests on: no record, request or broken number moves a sum farther than is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsynth.audit.trials import run_trial
from fedsynth.components.feature_sums import COLUMNS, Features, FeatureSum
from fedsynth.components.released_sums import Statistic, release_sum
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation import Client
from fedsynth.federation.client import PrivateState
from fedsynth.federation.store import StateStore
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.learning.weights import weights_of
from fedsynth.methods.analytic.statistics import RidgeMoments
from fedsynth.privacy import GaussianEvent
from fedsynth.privacy.mechanisms import clip_rows

SCHEMA = Schema((1, 6, 6), 3)
CNN = ModelSpec(name="cnn", channels=(2,), hidden=(4,))
ROOT_OF_TWO = math.sqrt(2) + 1e-9
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.floats(-3, 3, width=32)
CENTRES = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-1, 1)


def client_of(x: np.ndarray, y: np.ndarray) -> Client:
    data = Dataset(x, y)
    nothing = data.subset(np.zeros(0, np.int64))
    state = PrivateState(StateStore(Path()), "0", None)
    return Client("0", ClientData(data, nothing, nothing), SCHEMA, state, 0, 1, "cpu")


@st.composite
def records(draw: st.DrawFn) -> np.ndarray:
    """An image: ordinary, constant, or of any numbers at all."""
    kind = draw(st.sampled_from(["ordinary", "constant", "any"]))
    if kind == "ordinary":
        return np.random.default_rng(draw(st.integers(0, 99))).random((1, 6, 6), np.float32)
    if kind == "constant":
        return np.full((1, 6, 6), draw(NUMBERS), np.float32)
    return np.array(draw(st.lists(NUMBERS, min_size=36, max_size=36)), np.float32).reshape(1, 6, 6)


def moved_by(statistic: Statistic, record: np.ndarray, label: int) -> tuple[float, Tensor]:
    """How far a record moves the sum over a client's three others; and the sum."""
    rest = np.random.default_rng(1).random((3, 1, 6, 6), np.float32)
    labels = np.array([0, 1, label])
    without = statistic.total(client_of(rest, labels))
    with_it = statistic.total(client_of(np.concatenate([rest, record[None]]), np.append(labels, label)))
    return float((with_it - without).norm()), with_it


@pytest.mark.parametrize("spec", ["wavelets", "random_conv", "pixels", "columns", "cnn"])
@given(
    record=records(), label=st.integers(0, 2), at=CENTRES, radius=st.floats(0, 1e300, exclude_min=True), data=st.data()
)
@settings(max_examples=40, deadline=None)
def test_no_record_moves_the_moments_farther_than_root_two(
    spec: str, record: np.ndarray, label: int, at: float, radius: float, data: st.DataObject
) -> None:
    """Whatever centre and radius the server sends, and weights with them."""
    of = Features(spec=ModelSpec(name=spec, dimension=8)) if spec != "cnn" else backbone(data.draw(NUMBERS))
    size = 4 if spec == "cnn" else 8
    centre = torch.linspace(0, 1, size, dtype=torch.float64) + at
    statistic = RidgeMoments(of=of, centre=centre, radius=radius)
    moved, total = moved_by(statistic, record, label)
    assert moved <= ROOT_OF_TWO
    assert torch.isfinite(total).all()
    assert statistic.sensitivity == math.sqrt(2)


@pytest.mark.parametrize("spec", ["wavelets", "pixels", "columns", "cnn"])
@given(record=records(), label=st.integers(0, 2), length=st.floats(0, 1e300, exclude_min=True), data=st.data())
@settings(max_examples=30, deadline=None)
def test_no_record_moves_the_sum_of_features_farther_than_one(
    spec: str, record: np.ndarray, label: int, length: float, data: st.DataObject
) -> None:
    of = Features(spec=ModelSpec(name=spec, dimension=8)) if spec != "cnn" else backbone(data.draw(NUMBERS))
    moved, total = moved_by(FeatureSum(of=of, length=length), record, label)
    assert moved <= 1 + 1e-9
    assert torch.isfinite(total).all()


def backbone(number: float) -> Features:
    """A network that a server has put any number into."""
    weights = weights_of(build_model(CNN, SCHEMA.shape, SCHEMA.classes, seed=0))
    weights["body.0.weight"][0, 0, 0, 0] = number
    return Features(spec=CNN, model=weights)


def test_an_ordinary_record_moves_them_as_far_as_can_be() -> None:
    """The bound is reached, so the noise is not too large either."""
    record = np.random.default_rng(5).random((1, 6, 6), np.float32)
    moved, _ = moved_by(RidgeMoments(of=Features(spec=ModelSpec(name="pixels")), radius=1e-3), record, 1)
    assert moved > 1.38


def test_sums_that_nothing_bounds_are_not_released_with_noise() -> None:
    client = client_of(np.zeros((1, 1, 6, 6), np.float32), np.zeros(1, np.int64))
    with pytest.raises(FedsynthError, match="std = inf cannot be used"):
        release_sum(client, RidgeMoments(of=Features(spec=ModelSpec(name="pixels"))), 1.0)


def test_the_mean_is_that_of_the_features_and_stays_in_bounds_under_noise() -> None:
    asked = FeatureSum(of=Features(spec=ModelSpec(name="pixels")), length=1.0)
    x = np.random.default_rng(0).random((9, 1, 6, 6), np.float32)
    total = asked.total(client_of(x, np.zeros(9, np.int64)))
    body = build_model(ModelSpec(name="pixels"), SCHEMA.shape, 3).body
    assert torch.allclose(asked.mean(total), body(torch.from_numpy(x).double()).mean(0), atol=1e-12)
    assert float(asked.mean(total * 0 - 50).norm()) <= 1


# -- audit ----------------------------------------------------------------------------------------------------------


class WiderThanSaid(RidgeMoments, name="wider_than_said"):
    """Cut twice as far out as it says."""

    def measured(self, features: Tensor) -> Tensor:
        return clip_rows(features / self.radius, 2.0)


class HardlyAnyNoise(FeatureSum, name="hardly_any_noise"):
    """A centre whose noise is as good as none: the sum is a thousand times as large as it says."""

    def total(self, client: Client) -> Tensor:
        return 1000 * super().total(client)


@pytest.mark.parametrize("statistic", [RidgeMoments(of=COLUMNS, radius=1.0), FeatureSum(of=COLUMNS, length=1.0)])
def test_an_audit_does_not_refute_the_releases(statistic: Any) -> None:
    trial = statistic.trial(Schema((4,), 2), mu=2.0)
    found = run_trial(trial, 240, 1e-5, 0.95, np.random.default_rng(0))
    assert not found.refuted
    assert found.bound.epsilon > 1  # it does see the record


def test_an_audit_refutes_a_clip_twice_as_wide_as_said_and_a_centre_that_has_hardly_any_noise() -> None:
    for broken in (WiderThanSaid(of=COLUMNS, radius=1.0), HardlyAnyNoise(of=COLUMNS, length=1.0)):
        trial = broken.trial(Schema((4,), 2), mu=2.0)
        assert run_trial(trial, 240, 1e-5, 0.95, np.random.default_rng(0)).refuted


def test_what_an_audit_tests_is_what_was_claimed() -> None:
    trial = RidgeMoments(of=COLUMNS, radius=1.0).trial(Schema((4,), 2), mu=0.5)
    without, with_it = trial.neighbours(1)
    assert len(with_it) == len(without) + 1
    client = Client(
        "0",
        ClientData(with_it, without, without),
        trial.schema,
        client_of(np.zeros((1, 1, 6, 6), np.float32), np.zeros(1, np.int64)).state,
        0,
        1,
        "cpu",
    )
    trial.release(client, 1)
    assert [event for g in client.guarantees.values() for event in g.events] == [GaussianEvent(mu=0.5)]
