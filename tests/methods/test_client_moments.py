"""Who is similar by class moments, with no GAN trained: distances, groups, what is drawn, what leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LINEAR
from federations import SMALL, Finished, some_clients
from test_method_pfl_gan import groups_of, two_kinds

from fedsynth.components.class_moments import ClassMoments
from fedsynth.components.moment_release import ReleasedMoments, gaussians_of
from fedsynth.components.synthetic_store import KEPT
from fedsynth.errors import UserError
from fedsynth.methods.pfl_gan.client_moments import distance
from fedsynth.synthesis.moments import class_sums

RunMethod = Callable[..., Finished]
MOMENTS: dict[str, Any] = {"shared": "moments"}
DIMENSIONS, CLASSES = 12, 4


def released(
    examples: int, shift: float = 0.0, std: float = 0.0, seed: int = 0, only: int = CLASSES
) -> ReleasedMoments:
    """The moments of a client whose classes lie around places that all clients share, moved by `shift`."""
    rng, places = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(CLASSES, DIMENSIONS))
    y = np.arange(examples) % only
    x = torch.from_numpy(0.05 * (rng.normal(size=(examples, DIMENSIONS)) + 3 * places[y] + shift))
    total = class_sums(x, torch.from_numpy(y), CLASSES, "class")
    total += torch.from_numpy(std * rng.normal(size=len(total)))
    return gaussians_of(total, std, ClassMoments(size=1, covariance="class"), DIMENSIONS, CLASSES)


@pytest.mark.parametrize(("examples", "std"), [(24, 0.0), (400, 0.0), (20000, 0.0), (400, 0.3), (4000, 0.8)])
def test_parts_of_the_same_data_are_about_1_apart_and_others_farther(examples: int, std: float) -> None:
    same = [distance(released(examples, 0.0, std, 2 * k), released(examples, 0.0, std, 2 * k + 1)) for k in range(12)]
    assert np.mean(same) < 1.5
    other = [distance(released(examples, 2.0, std, k), released(examples, 0.0, std, 50 + k)) for k in range(12)]
    assert min(other) > 2.5 * np.mean(same)


def test_clients_without_a_class_in_common_and_clients_that_sent_nothing() -> None:
    one, other = released(40, only=1), released(40, only=1)
    apart = ReleasedMoments.model_validate(
        {**dict(other), "model": other.model.model_copy(update={"known": torch.arange(CLASSES) == 3})}
    )
    assert distance(one, apart) == 1.0
    assert distance(one, None) == np.inf


@pytest.mark.parametrize(("epsilon", "examples"), [(None, 24), (20.0, 400)])
def test_two_kinds_of_clients_fall_into_two_groups(run_method: RunMethod, epsilon: float | None, examples: int) -> None:
    data = two_kinds(examples=examples)
    done = run_method("cluster_fedavg", data, model=LINEAR, settings={**MOMENTS, "epsilon": epsilon}, rounds=1)
    assert groups_of(done) == [["a", "b", "c"], ["d", "e", "f"]]
    assert {ask.name for ask in done.asks} == {"release_sum", "join_group", "train"}
    if epsilon is not None:
        rows = done.fed.participation.ledger.rows(1e-5)
        [row] = [row for row in rows if row.release.endswith("release_sum.total")]
        assert row.epsilon == pytest.approx(epsilon, abs=1e-6)


def test_clients_of_one_kind_stay_together(run_method: RunMethod) -> None:
    done = run_method("cluster_fedavg", two_kinds(6, 0), model=LINEAR, settings=MOMENTS, rounds=1)
    assert groups_of(done) == [["a", "b", "c", "d", "e", "f"]]


def test_clients_top_up_with_draws_from_the_moments_of_their_own_kind(run_method: RunMethod) -> None:
    data = two_kinds()
    done = run_method("cluster_fedavg", data, model=LINEAR, settings={**MOMENTS, "top_up": True}, rounds=1)
    drawn: dict[bool, list[dict[str, torch.Tensor]]] = {}
    for client in data.clients:
        counts, kept = np.bincount(data.train[client].y, minlength=3), done.state(client)[KEPT]
        assert (np.bincount(kept["labels"], minlength=3) == counts.max() - counts).all()
        drawn.setdefault(client in "abc", []).append(kept)
    for rows, parts in drawn.items():
        images = torch.cat([kept["images"] for kept in parts]).float()
        stripes = 2 * torch.cat([kept["labels"] for kept in parts]) + 1
        own, other = (images.mean(dim=(1, 3 if along else 2)).argmax(1) for along in (rows, not rows))
        assert (own == stripes).float().mean() > 0.9
        assert (other == stripes).float().mean() < 0.7


def test_tables_are_compared_too(run_method: RunMethod) -> None:
    data = some_clients(60, 60, 60)
    done = run_method("cluster_fedavg", data, model=SMALL["mlp"], settings=MOMENTS, rounds=1)
    assert done.outcome.model is not None


def test_pfl_gan_mixes_draws_from_similar_clients_into_its_batches(run_method: RunMethod) -> None:
    data = two_kinds()
    settings = {**MOMENTS, "use": "direct", "samples_per_class": 5}
    done = run_method("pfl_gan", data, model=SMALL["mlp"], settings=settings, rounds=1)
    assert groups_of(done) == [["a", "b", "c"], ["d", "e", "f"]]
    given = next(ask for ask in done.asks if ask.name == "receive_samples")
    assert {len(request["fields"]["samples"]["labels"]) for request in given.requests.values()} == {2 * 3 * 5}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 1.0}, 'epsilon is for shared = "moments"'),
        ({**MOMENTS, "gans_from": "runs/x"}, "gans_from has no meaning"),
    ],
)
def test_what_does_not_go_together_is_refused(run_method: RunMethod, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises((UserError, ValueError), match=words):
        run_method("cluster_fedavg", two_kinds(), model=LINEAR, settings=wrong, rounds=1)
