"""FedOpt against algorithm 2 of its paper: the server's rule, worked in numpy on what the clients sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LINEAR, close, theta
from federations import SMALL, Ask, Finished, some_clients

from fedsynth.data.federated import FederatedData


def mean_sent(ask: Ask, name: str | None = None) -> np.ndarray:
    """The mean of what clients sent, weighted by their examples: of the weights, or of one entry."""
    replies = ask.replies.values()
    entries = [theta(r["model"]) if name is None else r["model"][name].double().numpy() for r in replies]
    return np.average(entries, axis=0, weights=[reply["examples"] for reply in replies])


def rounds_of(finished: Finished) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each round the model before, the clients' average, the model after."""
    asks = finished.rounds()
    before = [theta(ask.fields["model"]) for ask in asks]
    after = [*before[1:], theta(finished.model)]
    yield from zip(before, map(mean_sent, asks), after, strict=True)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_three_rounds_of_an_adaptive_server_by_hand(kind: str, run_method: Callable[..., Finished]) -> None:
    settings: dict[str, Any] = {"optimizer": kind, "server_lr": 0.05, "beta1": 0.8, "beta2": 0.95, "tau": 0.01}
    finished = run_method("fedopt", some_clients(5, 12, 7), model=LINEAR, settings=settings, rounds=3)
    m, v = 0.0, 0.01**2
    for x, average, after in rounds_of(finished):
        delta = average - x
        m = 0.8 * m + 0.2 * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - 0.05 * delta**2 * np.sign(v - delta**2)
        else:
            v = 0.95 * v + 0.05 * delta**2
        assert close(after, x + 0.05 * m / (np.sqrt(v) + 0.01))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_three_rounds_of_server_momentum_by_hand(momentum: float, run_method: Callable[..., Finished]) -> None:
    settings = {"optimizer": "sgd", "server_lr": 0.5, "momentum": momentum}
    finished = run_method("fedopt", some_clients(5, 12, 7), model=LINEAR, settings=settings, rounds=3)
    speed = 0.0
    for x, average, after in rounds_of(finished):
        speed = momentum * speed + (average - x)
        assert close(after, x + 0.5 * speed)


def test_running_statistics_take_the_average_and_are_not_optimised(
    digits: FederatedData, run_method: Callable[..., Finished]
) -> None:
    finished = run_method("fedopt", digits, model=SMALL["zda_cnn"], rounds=1)
    for name in ("body.1.running_mean", "body.1.running_var", "body.4.running_var"):
        expected = mean_sent(finished.rounds()[0], name)
        assert np.allclose(finished.model[name], expected, rtol=1e-6, atol=1e-7)
    assert finished.model["body.1.num_batches_tracked"].dtype == torch.int64
