"""FedNova against eq. 6–8 of its paper, worked in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, batches, close, descend, theta
from federations import Finished, some_clients

from fedsynth.methods.fednova import effective_steps


def accumulated(steps: int, momentum: float) -> np.ndarray:
    """a_i: how often each step's gradient is in the total movement, by running momentum SGD on unit gradients."""
    weights = np.zeros(steps)
    buffer = np.zeros(steps)  # how much of each gradient the momentum buffer holds
    for step in range(steps):
        buffer *= momentum
        buffer[step] += 1
        weights += buffer
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_effective_steps_are_the_explicit_sum(steps: int, momentum: float) -> None:
    assert effective_steps(steps, momentum) == pytest.approx(accumulated(steps, momentum).sum(), rel=1e-9)


def test_no_steps_are_no_effective_steps() -> None:
    assert effective_steps(0, 0.9) == effective_steps(0, 0.0) == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("fraction", [1.0, 0.67])
def test_two_rounds_with_different_numbers_of_steps_by_hand(
    momentum: float, fraction: float, run_method: Callable[..., Finished]
) -> None:
    data = some_clients(4, 9, 17)  # 1, 3 and 5 steps an epoch
    train = {"local_epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": momentum, "fraction": fraction}
    finished = run_method("fednova", data, model=LINEAR, **train)
    w = theta(finished.rounds()[0].fields["model"])
    for number, ask in enumerate(finished.rounds(), start=1):
        assert close(theta(ask.fields["model"]), w)
        sizes = {client: len(data.train[client]) for client in ask.requests}
        d, length = {}, {}
        for client, size in sizes.items():
            steps = batches(client, number, size, batch=4, epochs=2)
            part = data.train[client]
            length[client] = accumulated(len(steps), momentum).sum()
            d[client] = (w - descend(w, part.x, part.y, steps, 0.1, momentum)) / length[client]
        p = {client: size / sum(sizes.values()) for client, size in sizes.items()}
        tau_eff = sum(p[c] * length[c] for c in sizes)
        w = w - tau_eff * sum(p[c] * d[c] for c in sizes)
    assert close(theta(finished.model), w)


def test_equal_numbers_of_steps_give_fedavg(run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 6, 8)  # two steps each
    train = {"local_epochs": 2, "batch_size": 4, "momentum": 0.5}
    nova = run_method("fednova", data, model=LINEAR, **train)
    assert {reply["steps"] for reply in nova.rounds()[0].replies.values()} == {4}
    assert close(theta(nova.model), theta(run_method("fedavg", data, model=LINEAR, **train).model))
