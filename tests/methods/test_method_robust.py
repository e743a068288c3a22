"""Robust averages inside the loop: what the server makes of the replies, and a client that lies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, close, theta
from federations import SMALL, Finished, same_bits, some_clients

from fedsynth.data.federated import FederatedData

RunMethod = Callable[..., Finished]


def sent(finished: Finished) -> np.ndarray:
    return np.stack([theta(reply["model"]) for reply in finished.rounds()[-1].replies.values()])


@pytest.mark.parametrize("clients", [3, 4])
def test_median_of_the_replies(clients: int, run_method: RunMethod) -> None:
    finished = run_method("median", some_clients(*[5, 9, 7, 6][:clients]), model=LINEAR)
    assert close(theta(finished.model), np.median(sent(finished), axis=0))


def test_trimmed_mean_of_the_replies_is_weighted_by_examples(run_method: RunMethod) -> None:
    finished = run_method("trimmed_mean", some_clients(5, 9, 7, 6, 20), model=LINEAR, settings={"trim": 0.2})
    values, sizes = sent(finished), np.array([5, 9, 7, 6, 20])
    order = np.argsort(values, axis=0)[1:-1]
    kept, weights = np.take_along_axis(values, order, axis=0), sizes[order]
    assert close(theta(finished.model), (kept * weights).sum(0) / weights.sum(0))


def test_a_clamp_brings_each_coordinate_of_an_update_into_its_range(run_method: RunMethod) -> None:
    data, limit = some_clients(5, 9, 7, 6, 20), 0.05
    finished = run_method("trimmed_mean", data, model=LINEAR, settings={"clamp": limit}, rounds=1)
    start = theta(finished.fed.initial_weights(LINEAR))
    moved = sent(finished) - start
    assert np.abs(moved).max() > limit
    expected = start + np.average(np.clip(moved, -limit, limit), axis=0, weights=[5, 9, 7, 6, 20])
    assert close(theta(finished.model), expected)


def test_a_wide_clamp_is_fedavg(run_method: RunMethod, digits: FederatedData) -> None:
    """Counters and BatchNorm's statistics are no updates: they are averaged as they are."""
    wide, plain = (
        run_method(method, digits, model=SMALL["zda_cnn"], settings=settings)
        for method, settings in (("trimmed_mean", {"clamp": 1e3}), ("fedavg", {}))
    )
    assert same_bits(wide.model, plain.model)


def test_krum_takes_one_of_the_replies(run_method: RunMethod) -> None:
    finished = run_method("krum", some_clients(5, 9, 7, 6, 20), model=LINEAR)
    values = sent(finished).reshape(5, -1)
    squares = ((values[:, None] - values[None]) ** 2).sum(2)
    scores = np.sort(squares, axis=1)[:, 1:3].sum(1)  # n − f − 2 = 2 nearest others
    assert close(theta(finished.model).ravel(), values[scores.argmin()])


@pytest.mark.parametrize("method", ["median", "trimmed_mean", "krum"])
def test_a_client_with_absurd_data_does_not_ruin_the_model(method: str, run_method: RunMethod) -> None:
    data = some_clients(8, 8, 8, 8, 8)
    data.train["c"].x[:] *= 1e5
    settings = {"trim": 0.2} if method == "trimmed_mean" else {}
    if method == "trimmed_mean":
        clamped = run_method(method, data, model=LINEAR, settings={"clamp": 0.5})
        assert np.abs(theta(clamped.model)).max() < 10
    assert np.abs(theta(run_method(method, data, model=LINEAR, settings=settings).model)).max() < 10
    assert np.abs(theta(run_method("fedavg", data, model=LINEAR).model)).max() > 100
