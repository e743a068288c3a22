"""FedProx against eq. 2 of its paper, worked in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, batches, close, descend, theta
from federations import Finished, some_clients

LR, EPOCHS, BATCH = 0.2, 3, 4


def by_hand(finished: Finished, data: object, pull: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Two rounds in which every local step also goes along pull(v, w)."""
    w = theta(finished.rounds()[0].fields["model"])
    for number, ask in enumerate(finished.rounds(), start=1):
        total, count = np.zeros_like(w), 0
        for client in ask.requests:
            part = data.train[client]  # type: ignore[attr-defined]
            steps = batches(client, number, len(part), BATCH, EPOCHS)
            total += len(part) * descend(w, part.x, part.y, steps, LR, extra=lambda v, w=w: pull(v, w))
            count += len(part)
        w = total / count
    return w


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_two_rounds_by_hand(mu: float, run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 8, 3)
    train = {"local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
    finished = run_method("fedprox", data, model=LINEAR, settings={"mu": mu}, **train)
    assert close(theta(finished.model), by_hand(finished, data, lambda v, w: mu * (v - w)))


def test_versions_with_the_term_twice_or_unsquared_are_told_apart(run_method: Callable[..., Finished]) -> None:
    data, mu = some_clients(5, 8, 3), 1.0
    train = {"local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
    got = run_method("fedprox", data, model=LINEAR, settings={"mu": mu}, **train)

    def unsquared(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        return mu / 2 * (v - w) / max(float(np.linalg.norm(v - w)), 1e-12)

    for wrong in (lambda v, w: 2 * mu * (v - w), unsquared, lambda v, w: mu / 2 * (v - w)):
        assert np.abs(theta(got.model) - by_hand(got, data, wrong)).max() > 1e-3


def test_a_large_mu_keeps_the_clients_near(run_method: Callable[..., Finished]) -> None:
    data = some_clients(8, 8)
    moved = []
    for mu in (0, 5):
        finished = run_method("fedprox", data, model=LINEAR, settings={"mu": mu}, rounds=1, local_epochs=20, lr=0.1)
        moved.append(np.abs(theta(finished.model) - theta(finished.rounds()[0].fields["model"])).max())
    assert moved[1] < moved[0] / 2
