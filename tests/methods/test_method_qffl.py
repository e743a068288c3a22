"""q-FedAvg against algorithm 2 of its paper, worked in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, close, loss, theta
from federations import Finished, some_clients


@pytest.mark.parametrize("q", [0.1, 1, 5])
@pytest.mark.parametrize("fraction", [1.0, 0.67])
def test_two_rounds_by_hand(q: float, fraction: float, run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 12, 7)
    train = {"lr": 0.2, "fraction": fraction, "schedule": "step", "lr_step": 1, "batch_size": 4}
    finished = run_method("qffl", data, model=LINEAR, settings={"q": q}, **train)
    rates, asks = [0.2, 0.1], finished.rounds()
    after = [theta(ask.fields["model"]) for ask in asks[1:]] + [theta(finished.model)]
    for ask, lr, got in zip(asks, rates, after, strict=True):
        w, lipschitz = theta(ask.fields["model"]), 1 / lr  # L = 1/η, with the η of the round
        top, bottom = np.zeros_like(w), 0.0
        for client, reply in ask.replies.items():
            part = data.train[client]
            f = loss(w, part.x, part.y)
            assert reply["extra"] == {"loss_before": pytest.approx(f, rel=1e-5)}
            delta = lipschitz * (w - theta(reply["model"]))
            # Every sum carries the client's examples, because clients are sampled uniformly here.
            top += len(part) * f**q * delta
            bottom += len(part) * (q * f ** (q - 1) * (delta**2).sum() + lipschitz * f**q)
        assert close(got, w - top / bottom)


def test_a_larger_q_lowers_the_worst_loss(run_method: Callable[..., Finished]) -> None:
    """What the method is for: with q the client that is worst off counts more."""
    data = some_clients(40, 6, features=4, classes=2, seed=1)
    train = {"rounds": 20, "local_epochs": 1, "batch_size": 40, "lr": 0.5}
    worst = []
    for q in (0, 2):
        w = theta(run_method("qffl", data, model=LINEAR, settings={"q": q}, **train).model)
        worst.append(max(loss(w, part.x, part.y) for part in data.train.values()))
    assert worst[1] < worst[0]


def test_a_loss_of_zero_does_not_divide(run_method: Callable[..., Finished]) -> None:
    data = some_clients(4, 4)
    part = data.train["a"]
    part.x[:] = 1e4 * np.eye(3, dtype=np.float32)[[0, 0, 0, 0]]
    w = run_method("fedavg", data, model=LINEAR, rounds=0).model["head.weight"]
    part.y[:] = int(w[:, 0].argmax())
    finished = run_method("qffl", data, model=LINEAR, settings={"q": 0.5}, lr=0.01)
    assert finished.rounds()[0].replies["a"]["extra"]["loss_before"] == 0
    assert np.isfinite(theta(finished.model)).all()
