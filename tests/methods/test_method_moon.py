"""MOON against eq. 3 and 4 of its paper: a run of its own in float64, with the clients' models kept by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from by_hand import batches
from federations import Clients, Finished, same_bits, some_clients
from torch import Tensor

from fedsynth.learning.models import ModelSpec

HIDDEN = ModelSpec(name="mlp", hidden=(6,))
MU, TEMPERATURE, LR = 2.0, 0.5, 0.2
NAMES = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
Parts = list[Tensor]


def parts_of(weights: dict[str, Tensor]) -> Parts:
    return [weights[name].double() for name in NAMES]


def representation(parts: Parts, x: Tensor) -> Tensor:
    return torch.relu(x @ parts[0].T + parts[1])


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp_min(1e-8)


def moon_loss(parts: Parts, received: Parts, previous: Parts | None, x: Tensor, y: Tensor) -> Tensor:
    z = representation(parts, x)
    loss = F.cross_entropy(z @ parts[2].T + parts[3], y)
    if previous is None:
        return loss
    near = torch.exp(cosine(z, representation(received, x)) / TEMPERATURE)
    far = torch.exp(cosine(z, representation(previous, x)) / TEMPERATURE)
    return loss + MU * (-torch.log(near / (near + far))).mean()


def train_by_hand(start: Parts, previous: Parts | None, data: Clients, client: str, round: int) -> Parts:
    x = torch.from_numpy(data.train[client].x).double()
    y = torch.from_numpy(data.train[client].y)
    parts = [part.clone().requires_grad_() for part in start]
    for rows in batches(client, round, len(y), batch=4, epochs=2):
        slopes = torch.autograd.grad(moon_loss(parts, start, previous, x[rows], y[rows]), parts)
        parts = [(p - LR * g).detach().requires_grad_() for p, g in zip(parts, slopes, strict=True)]
    return [part.detach() for part in parts]


def far_apart(one: Parts, other: Parts) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def run_moon(run_method: Callable[..., Finished], data: Clients, **train: Any) -> Finished:
    settings = {"mu": MU, "temperature": TEMPERATURE}
    defaults = {"local_epochs": 2, "batch_size": 4, "lr": LR, "rounds": 5, "fraction": 0.5, "seed": 4}
    return run_method("moon", data, model=HIDDEN, settings=settings, **defaults | train)


def test_previous_model_is_the_clients_own_from_its_last_visit(run_method: Callable[..., Finished]) -> None:
    """Some clients of this run come at another position than the last time, or after rounds away."""
    data = some_clients(9, 6, 11, 8, seed=2)
    finished = run_moon(run_method, data, seed=0)
    picked = [list(ask.requests) for ask in finished.rounds()]
    assert moved_within_the_list(picked), picked
    previous: dict[str, Parts] = {}
    for number, ask in enumerate(finished.rounds(), start=1):
        start = parts_of(ask.fields["model"])
        for client, reply in ask.replies.items():
            expected = train_by_hand(start, previous.get(client), data, client, number)
            assert far_apart(parts_of(reply["model"]), expected) < 2e-5, (number, client)
            # The previous model is what the client sent the last time it was asked, whenever that was.
            previous[client] = parts_of(reply["model"])


def moved_within_the_list(picked: list[list[str]]) -> bool:
    """Whether a client comes back at another position, or finds another client's model at its old one."""
    for before, after in itertools.pairwise(picked):
        for client in set(before) & set(after):
            if before.index(client) != after.index(client):
                return True
    return False


def test_a_previous_model_looked_up_by_position_would_be_seen(run_method: Callable[..., Finished]) -> None:
    data = some_clients(9, 6, 11, 8, seed=2)
    finished = run_moon(run_method, data, seed=0)
    wrong, last = 0.0, {}
    for number, ask in enumerate(finished.rounds(), start=1):
        start = parts_of(ask.fields["model"])
        for position, (client, reply) in enumerate(ask.replies.items()):
            by_position = train_by_hand(start, last.get(position), data, client, number)
            wrong = max(wrong, far_apart(parts_of(reply["model"]), by_position))
        last = {position: parts_of(reply["model"]) for position, reply in enumerate(ask.replies.values())}
    assert wrong > 1e-3


def test_a_first_visit_is_fedavg_and_leaves_the_model_with_the_client(run_method: Callable[..., Finished]) -> None:
    data = some_clients(9, 6)
    moon = run_moon(run_method, data, rounds=1, fraction=1.0)
    plain = run_method("fedavg", data, model=HIDDEN, local_epochs=2, batch_size=4, lr=LR, rounds=1, seed=4)
    assert same_bits(moon.model, plain.model)
    for client, reply in moon.rounds()[0].replies.items():
        assert same_bits(moon.state(client)["previous"], reply["model"])
        assert reply["extra"] == {}
