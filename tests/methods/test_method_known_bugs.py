"""Mistakes of public implementations that must not happen here (those of one method are in its own test file:
FedProx's term twice or unsquared, FedMix's Jacobian, MOON's previous model by position, SCAFFOLD's c_i)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, batches, close, descend, theta
from federations import Finished, some_clients

from fedsynth.data.federated import FederatedData

RunMethod = Callable[..., Finished]

SCHEDULES = {
    "constant": [0.4, 0.4, 0.4, 0.4],
    "step": [0.4, 0.4, 0.1, 0.1],
    "exponential": [0.4, 0.2, 0.1, 0.05],
    "cosine": [0.4 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", ["fedavg", "local", "centralised", "scaffold"])
def test_the_schedule_steps_every_round(method: str, schedule: str, run_method: RunMethod) -> None:
    """Public versions make a scheduler and never step it. What counts is the rate that a client is sent."""
    train = {"schedule": schedule, "lr": 0.4, "lr_step": 2, "lr_gamma": 0.25, "rounds": 4}
    finished = run_method(method, some_clients(5, 7), model=LINEAR, **train)
    sent = [ask.training["lr"] for ask in finished.asks]
    assert sent == pytest.approx(SCHEDULES[schedule])


def test_the_rate_that_is_sent_is_the_rate_that_is_used(run_method: RunMethod) -> None:
    data = some_clients(5, 7)
    train = {"schedule": "step", "lr": 0.4, "lr_step": 1, "lr_gamma": 0.25, "batch_size": 4}
    finished = run_method("fedavg", data, model=LINEAR, **train)
    for number, (ask, lr) in enumerate(zip(finished.rounds(), [0.4, 0.1], strict=True), start=1):
        for client, reply in ask.replies.items():
            part = data.train[client]
            steps = batches(client, number, len(part), batch=4, epochs=1)
            end = descend(theta(ask.fields["model"]), part.x, part.y, steps, lr)
            assert close(theta(reply["model"]), end)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_averages_are_weighted_by_the_examples_of_those_who_answered(
    fraction: float, digits: FederatedData, run_method: RunMethod
) -> None:
    finished = run_method("fedavg", digits, fraction=fraction)
    asks = finished.rounds()
    after = [ask.fields["model"] for ask in asks[1:]] + [finished.model]
    for ask, model in zip(asks, after, strict=True):
        sizes = [digits.train_size(client) for client in ask.requests]
        assert [reply["examples"] for reply in ask.replies.values()] == sizes
        for name, entry in model.items():
            sent = np.stack([reply["model"][name].double().numpy() for reply in ask.replies.values()])
            assert np.allclose(entry, np.average(sent, axis=0, weights=sizes), rtol=1e-6, atol=1e-8)
        head = np.stack([reply["model"]["head.weight"].double().numpy() for reply in ask.replies.values()])
        assert not np.allclose(model["head.weight"], head.mean(0), atol=1e-4)


def test_equal_weights_are_there_for_those_who_ask(run_method: RunMethod) -> None:
    data = some_clients(3, 30)
    settings = {"aggregator": {"name": "mean", "weights": "equal"}}
    finished = run_method("fedavg", data, model=LINEAR, settings=settings, rounds=1)
    sent = [theta(reply["model"]) for reply in finished.rounds()[0].replies.values()]
    assert close(theta(finished.model), np.mean(sent, axis=0))


def test_an_optimisers_momentum_does_not_leak_from_client_to_client(run_method: RunMethod) -> None:
    """Each visit starts with a fresh optimiser: a client's update does not depend on who was asked before it."""
    data = some_clients(5, 7, 9)
    train = {"momentum": 0.9, "rounds": 1}
    together = run_method("fedavg", data, model=LINEAR, **train).rounds()[0].replies
    for client in data.clients:
        alone = run_method("fedavg", data, model=LINEAR, clients=[client], **train).rounds()[0].replies[client]
        assert np.array_equal(theta(alone["model"]), theta(together[client]["model"]))
