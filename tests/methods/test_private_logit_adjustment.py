"""Logit adjustment with DP-SGD: shares come from noisy counts that leave once, and all of it is charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import SMALL, Finished, farthest, same_bits, some_clients

from fedsynth.components.class_counts import RELEASED
from fedsynth.data.federated import FederatedData
from fedsynth.methods.logit_adjustment import LogitAdjustedObjective
from fedsynth.privacy import PrivacyConfig, SampledGaussianEvent, epsilon
from fedsynth.privacy.discrete import discrete_gaussian_histogram

RunMethod = Callable[..., Finished]
DELTA = 1e-5


def private(**values: Any) -> dict[str, Any]:
    return {"privacy": PrivacyConfig(updates="dp_sgd", **values)}


def totals(finished: Finished) -> dict[str, float]:
    rows = finished.fed.participation.ledger.rows(DELTA)
    return {client: row.epsilon for row in rows if row.kind == "total" for client in row.clients}


def test_on_whole_batches_without_noise_it_is_logit_adjustment(run_method: RunMethod) -> None:
    data, train = some_clients(20, 20, 20), {"batch_size": 64, "local_epochs": 3}
    plain = run_method("logit_adjustment", data, model=SMALL["mlp"], **train)
    free = private(clip=1e3, noise=1e-9) | {"counts_epsilon": 100.0}
    guarded = run_method("logit_adjustment", data, model=SMALL["mlp"], settings=free, **train)
    assert farthest(plain.model, guarded.model) < 1e-5
    unadjusted = run_method("fedavg", data, model=SMALL["mlp"], settings=private(clip=1e3, noise=1e-9), **train)
    assert farthest(unadjusted.model, guarded.model) > 1e-3


def test_counts_and_rounds_are_charged_together(run_method: RunMethod) -> None:
    sizes = {"a": 12, "b": 40}
    settings = private(noise=2.0) | {"counts_epsilon": 0.5}
    finished = run_method(
        "logit_adjustment", some_clients(*sizes.values()), model=SMALL["mlp"], settings=settings, rounds=2
    )
    _, counts = discrete_gaussian_histogram(np.zeros(3, np.int64), 0.5, DELTA, np.random.default_rng(0))
    for client, n in sizes.items():
        steps = SampledGaussianEvent(rate=min(1, 16 / n), noise=2.0, steps=math.ceil(n / 16))
        assert totals(finished)[client] == pytest.approx(epsilon([counts, steps, steps], DELTA), rel=1e-9)
    [total, *_] = [row for row in finished.fed.participation.ledger.rows(DELTA) if row.kind == "total"]
    assert not total.not_covered


def test_only_noisy_counts_enter_the_loss() -> None:
    """Other records under the same noisy counts: the same loss, bit for bit."""
    rule, losses = LogitAdjustedObjective(), []
    scores, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0])
    for own in ([0, 0, 1], [2, 2, 2]):
        counts = np.bincount(own, minlength=3)
        client = SimpleNamespace(
            schema=SimpleNamespace(classes=3),
            state={RELEASED: np.array([7, -2, 1])},
            class_counts=lambda counts=counts: counts,
        )
        synthetic = [1, 1]  # they count as they are
        local: Any = SimpleNamespace(client=client, labels=torch.tensor([*own, *synthetic]))
        losses.append(rule.record_loss(local)(scores, labels))
    assert torch.equal(*losses)
    shares = torch.tensor([7, 2, 1]) + rule.smoothing
    assert float(losses[0]) == pytest.approx(float(F.cross_entropy(scores + (shares / shares.sum()).log(), labels)))


def test_counts_that_another_phase_has_released_are_released_again_for_nothing(
    digits: FederatedData, run_method: RunMethod
) -> None:
    settings = private(noise=2.0) | {"synthetic": "none", "static": False}
    alone, adjusted = (
        run_method("gandalf", digits, model=SMALL["mlp"], settings=settings | more)
        for more in ({}, {"objective": "logit_adjusted"})
    )
    first, again = [ask.replies for ask in adjusted.asks if ask.name == "count_classes"]
    for client in digits.clients:
        assert np.array_equal(first[client]["counts"], again[client]["counts"])
    assert totals(adjusted) == totals(alone)
    assert not same_bits(adjusted.model, alone.model)


def test_the_same_bits_on_the_wire(digits: FederatedData, run_method: RunMethod) -> None:
    here, wire = (
        run_method("logit_adjustment", digits, model=SMALL["mlp"], settings=private(), engine=engine)
        for engine in ("local", "wire")
    )
    assert same_bits(here.model, wire.model)
    assert here.fed.participation.as_dict()["ledger"] == wire.fed.participation.as_dict()["ledger"]


def test_with_tau_0_it_is_fedavg_and_no_counts_leave(digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method("fedavg", digits, model=SMALL["mlp"], settings=private())
    off = run_method("logit_adjustment", digits, model=SMALL["mlp"], settings=private() | {"tau": 0.0})
    assert same_bits(plain.model, off.model)
    assert totals(plain) == totals(off)


def test_sequential_training_is_calibrated_to_a_target(run_method: RunMethod) -> None:
    settings = private(target=4.0) | {"synthetic": "none", "static": False, "counts_epsilon": 0.1}
    finished = run_method("gandalf", some_clients(30, 40), model=SMALL["mlp"], settings=settings, rounds=2)
    assert all(4 < found < 4.1 for found in totals(finished).values()), "the counts come on top"
