"""SCAFFOLD against algorithm 1 of its paper, worked in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from by_hand import LINEAR, batches, close, descend, gradient, theta
from federations import Clients, Finished, same_bits, some_clients

BATCH, LR, EPOCHS = 4, 0.3, 2


def control_changes(finished: Finished, round: int) -> dict[str, np.ndarray]:
    replies = finished.rounds()[round].replies
    return {client: theta(reply["extra"]) for client, reply in replies.items()}


def follow(finished: Finished, data: Clients, option: str, server_lr: float) -> dict[str, np.ndarray]:
    """Algorithm 1, round by round, next to what the package sent and received; the clients' last control variates."""
    rounds = finished.rounds()
    x = theta(rounds[0].fields["model"])
    c, own = np.zeros_like(x), {client: np.zeros_like(x) for client in data.clients}
    for number, ask in enumerate(rounds, start=1):
        assert close(theta(ask.fields["model"]), x)
        assert close(theta(ask.fields["request"]["sent"]), c)
        moves, changes = [], []
        for client in ask.requests:
            images, labels = data.train[client].x, data.train[client].y
            steps = batches(client, number, len(labels), BATCH, EPOCHS)
            y_i = descend(x, images, labels, steps, LR, extra=lambda w, c_i=own[client], c=c: c - c_i)
            if option == "I":
                new = gradient(x, images, labels)
            else:
                new = own[client] - c + (x - y_i) / (len(steps) * LR)
            assert close(control_changes(finished, number - 1)[client], new - own[client])
            moves.append(y_i - x)
            changes.append(new - own[client])
            own[client] = new
        x = x + server_lr * np.mean(moves, axis=0)
        c = c + len(ask.requests) / len(data.clients) * np.mean(changes, axis=0)
    assert close(theta(finished.model), x)
    return own


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(("fraction", "server_lr"), [(1.0, 1.0), (0.5, 0.7)])
def test_three_rounds_by_hand(
    option: str, fraction: float, server_lr: float, run_method: Callable[..., Finished]
) -> None:
    data = some_clients(5, 8, 3, 10)
    settings = {"option": option, "server_lr": server_lr}
    train = {"rounds": 3, "local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "fraction": fraction}
    finished = run_method("scaffold", data, model=LINEAR, settings=settings, **train)
    own = follow(finished, data, option, server_lr)
    picked = [tuple(ask.requests) for ask in finished.rounds()]
    if fraction < 1:  # the case is worth something only if somebody comes back and somebody else comes in
        assert len(set(picked)) > 1
        assert any(set(one) & set(other) for one, other in itertools.pairwise(picked))
    for client in {client for clients in picked for client in clients}:
        assert close(theta(finished.state(client)["control"]), own[client])


def test_two_clients_two_rounds_full_batch_by_hand(run_method: Callable[..., Finished]) -> None:
    """The smallest case, written out: one full-batch step makes option II the gradient at x."""
    data = some_clients(6, 6)
    finished = run_method("scaffold", data, model=LINEAR, local_epochs=1, batch_size=6, lr=0.5)
    x0 = theta(finished.rounds()[0].fields["model"])
    g = {c: (lambda w, c=c: gradient(w, data.train[c].x, data.train[c].y)) for c in "ab"}
    x1 = x0 - 0.5 * (g["a"](x0) + g["b"](x0)) / 2
    c_a, c_b = g["a"](x0), g["b"](x0)
    c = (c_a + c_b) / 2
    y_a = x1 - 0.5 * (g["a"](x1) - c_a + c)
    y_b = x1 - 0.5 * (g["b"](x1) - c_b + c)
    assert close(theta(finished.model), (y_a + y_b) / 2)
    assert close(theta(finished.state("a")["control"]), g["a"](x1))


def test_the_change_of_the_control_variate_leaves_not_the_variate(run_method: Callable[..., Finished]) -> None:
    """A public version sends c_i; from the second visit on that is something else."""
    finished = run_method("scaffold", some_clients(6, 9), model=LINEAR, rounds=2)
    first, second = control_changes(finished, 0), control_changes(finished, 1)
    for client in "ab":
        kept = theta(finished.state(client)["control"])
        assert close(kept, first[client] + second[client])
        assert np.abs(kept - second[client]).max() > 1e-2


def test_the_servers_control_variate_moves_by_the_share_that_answered(run_method: Callable[..., Finished]) -> None:
    finished = run_method("scaffold", some_clients(6, 9, 7, 5), model=LINEAR, rounds=2, fraction=0.25)
    (change,) = control_changes(finished, 0).values()
    assert close(theta(finished.rounds()[1].fields["request"]["sent"]), change / 4)


def test_clients_weigh_the_same_whatever_their_size(run_method: Callable[..., Finished]) -> None:
    finished = run_method("scaffold", some_clients(3, 30), model=LINEAR, rounds=1)
    models = [theta(reply["model"]) for reply in finished.rounds()[0].replies.values()]
    assert close(theta(finished.model), np.mean(models, axis=0))


@pytest.mark.parametrize(
    ("train", "option"),
    [({}, "II"), ({"momentum": 0.9}, "I"), ({"optimizer": "adam", "lr": 0.01}, "I"), ({"weight_decay": 0.1}, "I")],
)
def test_option_two_is_chosen_only_where_it_is_exact(
    train: dict[str, object], option: str, run_method: Callable[..., Finished]
) -> None:
    models = {
        chosen: run_method("scaffold", some_clients(6, 9), model=LINEAR, settings={"option": chosen}, **train).model
        for chosen in ("auto", "I", "II")
    }
    assert not same_bits(models["I"], models["II"])
    assert same_bits(models["auto"], models[option])
