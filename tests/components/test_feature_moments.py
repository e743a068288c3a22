"""Moments of features: pooled whatever the split, and no record moves them farther than is said."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.components.feature_moments import FeatureMoments
from fedsynth.components.feature_sums import Features
from fedsynth.components.released_sums import release_sum
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation import Client
from fedsynth.federation.client import PrivateState
from fedsynth.federation.store import StateStore
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.weights import weights_of
from fedsynth.synthesis.moments import class_sums

SCHEMA = Schema((1, 6, 6), 3)
CNN = ModelSpec(name="cnn", channels=(2,), hidden=(4,))
NORMED = ModelSpec(name="zda_cnn", channels=(2,), hidden=())
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.floats(-3, 3, width=32)


def client_of(x: np.ndarray, y: np.ndarray) -> Client:
    data = Dataset(x.astype(np.float32), y)
    nothing = data.subset(np.zeros(0, np.int64))
    state = PrivateState(StateStore(Path()), "0", None)
    return Client("0", ClientData(data, nothing, nothing), SCHEMA, state, 0, 1, "cpu")


def network(spec: ModelSpec = CNN, number: float | None = None) -> Features:
    """Any network; a server may have put any number into it."""
    weights = weights_of(build_model(spec, SCHEMA.shape, SCHEMA.classes, seed=0))
    if number is not None:
        weights["body.0.weight"][0, 0, 0, 0] = number
    return Features(spec=spec, model=weights)


def some(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.random((count, 1, 6, 6), np.float32), rng.integers(0, 3, count)


@pytest.mark.parametrize("spec", [CNN, NORMED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("covariance", ["class", "shared"])
def test_sums_are_those_of_pooled_data_whatever_the_split(spec: ModelSpec, covariance: str) -> None:
    x, y = some(301)
    of = network(spec)
    statistic = FeatureMoments(of=of, covariance=covariance, unit=0.5)
    net = instantiate(spec, SCHEMA.shape, SCHEMA.classes, of.model).eval().double()
    with torch.no_grad():
        pooled = class_sums(net.body(torch.from_numpy(x).double()) / 0.5, torch.from_numpy(y), 3, covariance)
    for cuts in ([301], [1, 300], [150, 200, 299], list(range(20, 301, 20))):
        parts = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
        total = sum(statistic.total(client_of(*part)) for part in parts if len(part[1]))
        assert total.dtype == torch.float64
        assert torch.allclose(total, pooled, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    record=st.lists(NUMBERS, min_size=36, max_size=36),
    label=st.integers(0, 2),
    middle=st.floats(allow_nan=True, allow_infinity=True) | st.floats(-1, 1),
    radius=st.floats(0, 1e300, exclude_min=True),
    covariance=st.sampled_from(["class", "shared"]),
    number=NUMBERS,
    fixed=st.booleans(),
)
def test_no_record_moves_them_farther_than_root_two(record, label, middle, radius, covariance, number, fixed) -> None:
    """Whatever centre, radius and weights a server sends."""
    of = Features(spec=ModelSpec(name="pixels", dimension=4)) if fixed else network(number=number)
    centre = torch.full((4,), middle, dtype=torch.float64)
    statistic = FeatureMoments(of=of, covariance=covariance, centre=centre, radius=radius)
    x, y = some(5)
    own = np.array(record, np.float32).reshape(1, 1, 6, 6)
    without = statistic.total(client_of(x, y))
    with_it = statistic.total(client_of(np.concatenate([x, own]), np.append(y, label)))
    assert torch.isfinite(with_it).all()
    assert float((with_it - without).norm()) <= statistic.sensitivity + 1e-9
    assert statistic.sensitivity == math.sqrt(2)


def test_the_bound_is_reached() -> None:
    x, y = some(4)
    statistic = FeatureMoments(of=network(), covariance="shared", radius=1e-4)
    one, other = (statistic.total(client_of(x[:n], y[:n])) for n in (3, 4))
    assert float((other - one).norm()) == pytest.approx(math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("how", [{}, {"radius": 1.0, "components": 2}])
def test_what_nothing_bounds_is_not_released_with_noise(how: dict[str, float]) -> None:
    statistic = FeatureMoments(of=network(), covariance="shared", **how)
    with pytest.raises(FedsynthError, match="std = inf cannot be used"):
        release_sum(client_of(*some(9)), statistic, 1.0)


def test_components_add_up_to_their_class_and_small_ones_stay_at_home() -> None:
    client = client_of(*some(60))
    split = FeatureMoments(of=network(), covariance="class", components=3)
    whole = FeatureMoments(of=network(), covariance="class")
    counts = [each.total(client)[: 3 * each.components].reshape(3, -1).sum(1) for each in (split, whole)]
    assert torch.allclose(*counts)
    left = split.exact(client)[:9] / 0.3
    assert bool(((left < 1e-9) | (left > 2.9)).all())
    assert torch.equal(split.total(client), split.total(client_of(*some(60))))
