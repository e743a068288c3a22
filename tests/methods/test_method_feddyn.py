"""FedDyn against algorithm 1 of its paper, worked in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, batches, close, descend, gradient, theta
from federations import Finished, some_clients


@pytest.mark.parametrize(("fraction", "alpha"), [(1.0, 0.1), (0.5, 0.5)])
def test_three_rounds_by_hand(fraction: float, alpha: float, run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 8, 3, 10)
    train = {"rounds": 3, "local_epochs": 3, "batch_size": 4, "lr": 0.2, "fraction": fraction}
    finished = run_method("feddyn", data, model=LINEAR, settings={"alpha": alpha}, **train)
    w = theta(finished.rounds()[0].fields["model"])
    h, own = np.zeros_like(w), {client: np.zeros_like(w) for client in data.clients}
    for number, ask in enumerate(finished.rounds(), start=1):
        assert close(theta(ask.fields["model"]), w)
        ends = []
        for client in ask.requests:
            part = data.train[client]
            steps = batches(client, number, len(part), batch=4, epochs=3)
            # The gradient of L_i(v) − ⟨h_i, v⟩ + α/2 ‖v − w‖².
            end = descend(w, part.x, part.y, steps, 0.2, extra=lambda v, h_i=own[client], w=w: alpha * (v - w) - h_i)
            assert close(theta(ask.replies[client]["model"]), end)
            own[client] = own[client] - alpha * (end - w)
            ends.append(end)
        h = h - alpha / len(data.clients) * sum(end - w for end in ends)
        w = np.mean(ends, axis=0) - h / alpha
    assert close(theta(finished.model), w)
    for client in {client for ask in finished.rounds() for client in ask.requests}:
        assert close(theta(finished.state(client)["linear"]), own[client])


def test_linear_terms_never_leave_the_clients(run_method: Callable[..., Finished]) -> None:
    finished = run_method("feddyn", some_clients(6, 9), model=LINEAR)
    assert all(reply["extra"] == {} for ask in finished.rounds() for reply in ask.replies.values())


def test_the_linear_term_approaches_the_clients_gradient(run_method: Callable[..., Finished]) -> None:
    """What the method is for: at a local optimum of the regularised objective, h_i is the gradient there."""
    data = some_clients(12, 12)
    train = {"rounds": 1, "local_epochs": 400, "batch_size": 12, "lr": 0.3}
    finished = run_method("feddyn", data, model=LINEAR, settings={"alpha": 0.3}, **train)
    part, reply = data.train["a"], finished.rounds()[0].replies["a"]
    expected = gradient(theta(reply["model"]), part.x, part.y)
    assert np.abs(expected).max() > 1e-2
    assert np.allclose(theta(finished.state("a")["linear"]), expected, atol=1e-4)
