"""Logit adjustment against its equation, worked in numpy, and what it does for classes that clients lack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from by_hand import LINEAR, batches, close, gradient, theta
from federations import SMALL, Clients, Finished, same_bits, some_clients

LR, EPOCHS, BATCH = 0.2, 3, 4
TRAIN = {"local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR}


def log_shares(y: np.ndarray, classes: int, smoothing: float) -> np.ndarray:
    counts = np.array([(y == label).sum() for label in range(classes)]) + smoothing
    return np.log(counts / counts.sum())


def by_hand(finished: Finished, data: Clients, tau: float, smoothing: float) -> np.ndarray:
    """Two rounds in which every local step has tau · log shares in the biases of the scores."""
    w = theta(finished.rounds()[0].fields["model"])
    for number, ask in enumerate(finished.rounds(), start=1):
        total, count = np.zeros_like(w), 0
        for client in ask.requests:
            part, own = data.train[client], w.copy()
            offset = np.zeros_like(w)
            offset[:, -1] = tau * log_shares(part.y, len(w), smoothing)
            for rows in batches(client, number, len(part), BATCH, EPOCHS):
                own -= LR * gradient(own + offset, part.x[rows], part.y[rows])
            total, count = total + len(part) * own, count + len(part)
        w = total / count
    return w


@pytest.mark.parametrize(("tau", "smoothing"), [(1.0, 1e-3), (0.5, 1.0), (2.0, 1e-6)])
def test_two_rounds_by_hand(tau: float, smoothing: float, run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 8, 3)
    settings = {"tau": tau, "smoothing": smoothing}
    finished = run_method("logit_adjustment", data, model=LINEAR, settings=settings, **TRAIN)
    assert close(theta(finished.model), by_hand(finished, data, tau, smoothing))


def test_the_slot_value_is_the_method(run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 8, 3)
    own = run_method("logit_adjustment", data, settings={"tau": 0.7, "smoothing": 0.1})
    slot = {"name": "logit_adjusted", "tau": 0.7, "smoothing": 0.1}
    assert same_bits(own.model, run_method("fedavg", data, settings={"objective": slot}).model)


def one_class_each() -> Clients:
    """Three clients, each with one class only, well apart from the others; a fourth class that nobody has."""
    rng = np.random.default_rng(2)
    centres = 2 * np.eye(3)
    return Clients(
        {
            name: (rng.normal(centres[k], 0.3, size=(12, 3)).astype(np.float32), np.full(12, k))
            for k, name in enumerate("abc")
        },
        classes=4,
    )


@pytest.mark.parametrize("model", [LINEAR, SMALL["mlp"]], ids=["linear", "mlp"])
def test_clients_that_lack_classes_train_to_finite_weights(model: object, run_method: Callable[..., Finished]) -> None:
    for tau in (0.0, 1.0, 5.0):
        finished = run_method("logit_adjustment", one_class_each(), model=model, settings={"tau": tau}, lr=1.0)
        assert all(torch.isfinite(entry).all() for entry in finished.model.values())


def test_clients_do_not_unlearn_the_classes_they_lack(run_method: Callable[..., Finished]) -> None:
    """A client's update moves the biases of absent classes far less than FedAvg's does."""

    def moved(method: str) -> float:
        ask = run_method(method, one_class_each(), model=LINEAR, rounds=1, **TRAIN).rounds()[0]
        start, own = ask.fields["model"]["head.bias"], ask.replies["a"]["model"]["head.bias"]
        return float((own - start)[1:].abs().max())

    assert moved("logit_adjustment") < 0.01 * moved("fedavg")


def test_nothing_more_leaves_a_client_than_in_fedavg(run_method: Callable[..., Finished]) -> None:
    data = some_clients(5, 8, 3)
    sent = [run_method(method, data).rounds()[0].replies["a"] for method in ("logit_adjustment", "fedavg")]
    assert set(sent[0]) == set(sent[1])
    assert sent[0]["extra"] == sent[1]["extra"] == {}
    assert {name: entry.shape for name, entry in sent[0]["model"].items()} == {
        name: entry.shape for name, entry in sent[1]["model"].items()
    }
