"""Robust averages inside the loop: what the server makes of the replies, and a client that lies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, close, theta
from federations import Finished, some_clients

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
    assert np.abs(theta(run_method(method, data, model=LINEAR, settings=settings).model)).max() < 10
    assert np.abs(theta(run_method("fedavg", data, model=LINEAR).model)).max() > 100
