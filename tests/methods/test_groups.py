"""IFCA and Clustered FL: the papers' rules by hand, and whether they find the groups that there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LINEAR, batches, close, descend, loss, theta
from federations import SMALL, Clients, Finished, same_bits, some_clients

from fedsynth.components.groups import join_models, of_group
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.errors import UserError
from fedsynth.evaluation.views import client_tallies
from fedsynth.learning.grouping import bipartition
from fedsynth.learning.models import initial_model
from fedsynth.methods.ifca import IfcaConfig, start_models

RunMethod = Callable[..., Finished]
FOUND = {frozenset("abc"), frozenset("def")}


def two_kinds(kind: str) -> Clients:
    """Six clients with the same digits: three as they are, three with other labels or on their side."""
    data = load_federated(DataConfig(name="digits", limit=600), {"name": "iid", "num_clients": 6}, seed=3)
    train = {}
    for name, client in zip("abcdef", data.clients, strict=True):
        x, y = data.client(client).train.x, data.client(client).train.y
        if name in "def":
            x, y = (x, (y + 3) % 10) if kind == "labels" else (np.rot90(x, axes=(2, 3)).copy(), y)
        train[name] = (x, y)
    return Clients(train, 10)


def groups_of(done: Finished) -> set[frozenset[str]]:
    recorded = done.fed.participation.records.get("groups of clients", {"groups": {}})
    return {frozenset(members) for members in recorded["groups"].values()}


def accuracy(done: Finished, view: str = "personal/test") -> float:
    tallies = client_tallies(done.fed, done.outcome, SMALL["mlp"], ["test"])[view]
    return float(np.mean([tally.accuracy for tally in tallies.values()]))


@pytest.mark.parametrize(("kind", "seed"), [("labels", 0), ("rotation", 1)])
def test_ifca_finds_the_kinds_of_clients(kind: str, seed: int, run_method: RunMethod) -> None:
    settings = {"model": SMALL["mlp"], "rounds": 5, "local_epochs": 5, "lr": 0.3, "seed": seed}
    done = run_method("ifca", two_kinds(kind), settings={"groups": 2}, **settings)
    assert groups_of(done) == FOUND
    assert accuracy(done) > 0.8


@pytest.mark.parametrize("kind", ["labels", "rotation"])
def test_cfl_finds_the_kinds_of_clients(kind: str, run_method: RunMethod) -> None:
    settings = {"model": SMALL["mlp"], "rounds": 11, "local_epochs": 5, "lr": 0.3}
    done = run_method("cfl", two_kinds(kind), **settings)
    assert groups_of(done) == FOUND
    assert accuracy(done) > 0.9
    assert {done.state(client)["group"] for client in "abc"} == {"1.1"}


def test_cfl_leaves_clients_of_one_kind_together(run_method: RunMethod) -> None:
    data = two_kinds("labels")
    same = Clients({c: (part.x, (part.y - 3 * (c in "def")) % 10) for c, part in data.train.items()}, 10)
    done = run_method("cfl", same, model=SMALL["mlp"], rounds=11, local_epochs=5, lr=0.3)
    assert groups_of(done) == set()
    assert not done.outcome.personal
    assert accuracy(done, "global/test") > 0.9


def test_a_round_of_ifca_is_the_papers(run_method: RunMethod) -> None:
    """ĵ = argmin_j F_i(θ_j), and θ_j the mean of those who chose j, by hand; who was not chosen waits."""
    data, rounds = some_clients(12, 20, 16), 2
    settings = {"groups": 3, "form": "published"}
    done = run_method("ifca", data, model=LINEAR, settings=settings, rounds=rounds, lr=0.1)
    starts = start_models(done.fed, IfcaConfig(groups=3, model=LINEAR))
    assert same_bits(starts["1"], initial_model(0, LINEAR, data.schema).state_dict())
    models = {group: theta(model) for group, model in starts.items()}
    for round in range(1, rounds + 1):
        trained: dict[str, list[np.ndarray]] = {group: [] for group in models}
        for client, part in data.train.items():
            chosen = min(models, key=lambda group: loss(models[group], part.x, part.y))
            steps = batches(client, round, len(part.y), 16, 1)
            trained[chosen].append(descend(models[chosen], part.x, part.y, steps, 0.1))
        models = {group: sum(new) / len(new) if new else models[group] for group, new in trained.items()}
    for group, model in models.items():
        assert close(theta(of_group(done.model, group)), model)
    tallies = client_tallies(done.fed, done.outcome, LINEAR, ["test"])["personal/test"]
    for client, part in data.train.items():
        best = min(models.values(), key=lambda model: loss(model, part.x, part.y))
        test = data.client(client).test
        assert tallies[client].loss == pytest.approx(loss(best, test.x, test.y) * len(test.y), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_has_the_smallest_largest_similarity_across(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(7, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    similar = points @ points.T
    one, other, across = bipartition(similar)
    cuts = [set(part) for size in range(1, 7) for part in itertools.combinations(range(7), size)]
    best = min(max(similar[i, j] for i in cut for j in set(range(7)) - cut) for cut in cuts)
    assert across == pytest.approx(best)
    assert across == max(similar[i, j] for i in one for j in other)
    assert sorted(one + other) == list(range(7))


@pytest.mark.parametrize(("epsilon1", "epsilon2", "apart"), [(1e9, 0.0, True), (1e9, 1e9, False), (0.0, 0.0, False)])
def test_cfl_splits_by_both_norms_and_the_cosines_of_the_changes(
    epsilon1: float, epsilon2: float, apart: bool, run_method: RunMethod
) -> None:
    data = some_clients(12, 20, 16, 14)
    settings = {"norms": "absolute", "epsilon1": epsilon1, "epsilon2": epsilon2}
    done = run_method("cfl", data, model=LINEAR, settings=settings, rounds=1)
    if not apart:
        assert groups_of(done) == set()
        return
    start, [ask] = theta(initial_model(0, LINEAR, data.schema).state_dict()), done.rounds()
    changes = np.stack([(theta(ask.replies[c]["model"]) - start).ravel() for c in data.clients])
    unit = changes / np.linalg.norm(changes, axis=1, keepdims=True)
    one, other, _ = bipartition(unit @ unit.T)
    assert groups_of(done) == {frozenset(data.clients[i] for i in part) for part in (one, other)}
    mean = sum(len(data.train[c]) * theta(ask.replies[c]["model"]) for c in data.clients) / 62
    for group in ("1.1", "1.2"):
        assert close(theta(of_group(done.model, group)), mean)


@pytest.mark.parametrize(("method", "settings"), [("ifca", {"groups": 1}), ("cfl", {"epsilon1": 0.0})])
@pytest.mark.parametrize("slots", [{}, {"aggregator": "median"}, {"objective": "proximal", "server": "fedopt"}])
def test_one_group_is_fedavg(
    method: str, settings: dict[str, Any], slots: dict[str, Any], run_method: RunMethod, digits: FederatedData
) -> None:
    common = {"model": SMALL["zda_cnn"], "rounds": 3, "momentum": 0.5}
    done = run_method(method, digits, settings=settings | slots, **common)
    assert same_bits(done.model, run_method("fedavg", digits, settings=slots, **common).model)
    assert not done.outcome.personal


@pytest.mark.parametrize("method", ["ifca", "cfl", "cluster_fedavg"])
def test_objectives_that_end_with_a_model_for_each_client_are_refused(
    method: str, run_method: RunMethod, digits: FederatedData
) -> None:
    for objective in ("ditto", "mixed", "moreau"):
        with pytest.raises(UserError, match=f'"{objective}" ends with a model for each client'):
            run_method(method, digits, model=SMALL["mlp"], settings={"objective": objective})
    with pytest.raises(UserError, match=r"remove method\.post_aggregation"):
        run_method(method, digits, model=SMALL["mlp"], settings={"post_aggregation": "ccvr"})


def test_cfl_needs_everybody(run_method: RunMethod, digits: FederatedData) -> None:
    with pytest.raises(UserError, match=r"set train\.fraction = 1"):
        run_method("cfl", digits, model=SMALL["mlp"], fraction=0.5)


def test_tables_of_groups_come_apart_again() -> None:
    models = {"1": {"a": torch.zeros(1)}, "1.2": {"a": torch.ones(1), "b/c": torch.ones(2)}}
    assert all(same_bits(of_group(join_models(models), group), model) for group, model in models.items())
