"""Astraea: z-scores by hand, what clients copy and leave out, groups, and when it is FedAvg."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, same_bits, some_clients
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.components.synthetic_store import KEPT
from fedsynth.data.federated import FederatedData
from fedsynth.errors import UserError
from fedsynth.methods.astraea import class_ratios, even_groups, rows_left
from fedsynth.privacy import PrivacyConfig

RunMethod = Callable[..., Finished]


def test_ratios_by_hand():
    # Mean 20, deviation over 4 - 1: √((225 + 25 + 25 + 225) / 3) = 12.9099; z = −1.162, −.387, .387, 1.162.
    ratios = class_ratios(np.array([5, 15, 25, 35]), threshold=3)
    spread = np.sqrt(500 / 3)
    assert ratios[0] == pytest.approx((20 - spread * np.sqrt(15 / spread / 3)) / 5)  # to 11.97 examples
    assert ratios[0] == pytest.approx(2.393, abs=1e-3)
    assert ratios[1] == pytest.approx((20 - spread * np.sqrt(5 / spread / 3)) / 15)
    assert ratios[2:].tolist() == [1, 1]  # no class is common at threshold 3
    common = class_ratios(np.array([5, 15, 25, 35]), threshold=1)
    assert common[1:3].tolist() == [1, 1]
    assert common[3] == pytest.approx((20 + spread * np.sqrt(15 / spread)) / 35)


def test_even_classes_and_classes_that_nobody_has_are_left_alone():
    assert class_ratios(np.array([7, 7, 7]), 3).tolist() == [1, 1, 1]
    assert class_ratios(np.array([9]), 3).tolist() == [1]
    assert class_ratios(np.array([0, 30, 30]), 3)[0] == 1
    assert class_ratios(np.array([-2, 30, 30]), 3)[0] == 1  # noise


@given(arrays(np.int64, st.integers(1, 12), elements=st.integers(-3, 500)), st.floats(0.1, 9))
def test_rare_classes_grow_common_ones_shrink_and_none_passes_the_mean(counts, threshold):
    ratios = class_ratios(counts, threshold)
    counts = np.clip(counts, 0, None)
    mean = counts.mean()
    assert np.isfinite(ratios).all()
    grown, shrunk = ratios > 1, ratios < 1
    assert (counts[grown] < mean).all()
    assert (counts[shrunk] > mean).all()
    assert (ratios[grown] * counts[grown] <= mean + 1e-6).all()
    assert (ratios[shrunk] * counts[shrunk] >= mean - 1e-6).all()


def test_rows_left_are_random_ordered_and_at_least_one():
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 2])
    kept = rows_left(labels, np.array([2, 3, 0]), np.random.default_rng(0))
    assert np.bincount(labels[kept]).tolist() == [2, 3, 1]
    assert (np.diff(kept) > 0).all()
    others = {tuple(rows_left(labels, np.array([2, 3, 0]), np.random.default_rng(seed))) for seed in range(9)}
    assert len(others) > 1


def imbalanced() -> Clients:
    """Over all clients: 48 of class 0, 24 of classes 1 and 2, and 6 of class 3."""
    rng = np.random.default_rng(0)
    parts = {"a": (30, 4, 8, 3), "b": (10, 12, 10, 3), "c": (8, 8, 6, 0)}
    train = {}
    for name, counts in parts.items():
        y = np.repeat(np.arange(4), counts)
        train[name] = ((rng.random((len(y), 1, 8, 8)) * 0.5 + y[:, None, None, None] * 0.2).astype(np.float32), y)
    return Clients(train, 4)


def test_clients_grow_and_shrink_their_part_of_each_class(run_method: RunMethod) -> None:
    data = imbalanced()
    finished = run_method("astraea", data, model=SMALL["mlp"], settings={"threshold": 1.2})
    ratios = class_ratios(np.array([48, 24, 24, 6]), 1.2)
    # Mean 25.5, deviation 17.234: from z = 1.306 to √(1.306 · 1.2) = 1.252, from −1.131 to −√(1.131 / 1.2) = −.971.
    assert ratios == pytest.approx([0.9807, 1, 1, 1.4615], abs=1e-3)
    for client, own in {"a": [29, 4, 8, 3], "b": [10, 12, 10, 3]}.items():
        kept = finished.state(client)[KEPT]
        rows = kept.get("own", torch.arange(len(data.train[client])))
        assert np.bincount(data.train[client].y[rows.numpy()], minlength=4).tolist() == own
        assert kept["labels"].tolist() == [3]  # 0.46 · 3 copies
    assert "c" not in finished.fed._versions  # 8 of the common class stay 8, and it has none of the rare one


def test_copies_are_never_more_than_twice_the_originals(run_method: RunMethod) -> None:
    x = np.random.default_rng(0).random((400, 1, 8, 8), dtype=np.float32)
    data = Clients({"a": (x, np.r_[np.zeros(199, int), np.ones(200, int), [2]])}, classes=3)
    assert class_ratios(np.array([199, 200, 1]), 3)[2] > 30
    assert len(run_method("astraea", data, model=SMALL["mlp"]).state("a")[KEPT]["labels"]) == 2


@pytest.mark.parametrize("model", SMALL)
def test_groups_of_one_without_augmentation_are_fedavg(
    model: str, digits: FederatedData, run_method: RunMethod
) -> None:
    for fraction in (1.0, 0.6):
        common = {"model": SMALL[model], "rounds": 3, "momentum": 0.9, "fraction": fraction}
        alone = run_method("astraea", digits, settings={"augment": False, "mediators": 5}, **common)
        assert same_bits(alone.model, run_method("fedavg", digits, **common).model)


def test_augmentation_of_balanced_classes_changes_nothing(run_method: RunMethod) -> None:
    x = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    even = Clients({c: (x, (np.arange(12) + k) % 3) for k, c in enumerate("abc")}, classes=3)
    with_it, without = (
        run_method("astraea", even, model=SMALL["mlp"], settings={"augment": on}) for on in (True, False)
    )
    assert same_bits(with_it.model, without.model)
    assert not with_it.fed._versions  # nobody kept anything


def test_in_a_group_one_trains_what_the_other_has_left(run_method: RunMethod) -> None:
    """Two clients in one group: the second's received weights are those the first has sent."""
    finished = run_method("astraea", imbalanced(), model=SMALL["mlp"], settings={"mediators": 1}, rounds=1)
    hops = [ask for ask in finished.asks if ask.name == "train"]
    assert [len(ask.requests) for ask in hops] == [1, 1, 1]
    for before, after in itertools.pairwise(hops):
        (sent,), (received,) = before.replies.values(), after.requests.values()
        assert same_bits(sent["model"], received["fields"]["model"])
    (last,) = hops[-1].replies.values()
    assert same_bits(finished.model, last["model"])
    assert sum(reply["examples"] for hop in hops for reply in hop.replies.values()) == 102


def test_groups_are_averaged_by_their_examples(run_method: RunMethod) -> None:
    finished = run_method("astraea", imbalanced(), model=SMALL["mlp"], settings={"mediators": 2}, rounds=1)
    hops = [ask for ask in finished.asks if ask.name == "train"]
    assert [len(ask.requests) for ask in hops] == [2, 1]
    ((last, ended),) = hops[1].replies.items()
    [(_, alone)] = [item for item in hops[0].replies.items() if not in_one_group(finished, item[0], last)]
    for name, entry in finished.model.items():
        mean = (alone["examples"] * alone["model"][name] + (102 - alone["examples"]) * ended["model"][name]) / 102
        assert torch.allclose(entry, mean, atol=1e-6)


def in_one_group(finished: Finished, first: str, last: str) -> bool:
    """Whether the last client was handed what the first had made."""
    [hop, final] = [ask for ask in finished.asks if ask.name == "train"]
    return same_bits(hop.replies[first]["model"], final.requests[last]["fields"]["model"])


def test_groups_have_an_even_mix_and_those_who_were_not_heard_are_in_one(run_method: RunMethod) -> None:
    fed = run_method("fedavg", some_clients(5, 5, 5, 5)).fed
    counts = {"a": np.array([9, 0, 0]), "b": np.array([9, 1, 1]), "c": np.array([0, 5, 4])}
    groups = even_groups(fed, counts, 2)
    assert sorted(client for group in groups for client in group) == ["a", "b", "c", "d"]
    assert any({"b", "c"} <= set(group) for group in even_groups(fed, counts | {"d": np.array([9, 0, 0])}, 2))


def test_class_counts_leave_exact_or_with_a_guarantee(digits: FederatedData, run_method: RunMethod) -> None:
    def row(**settings: Any) -> dict[str, Any]:
        finished = run_method("astraea", digits, model=SMALL["mlp"], settings=settings, rounds=1)
        rows = finished.fed.participation.ledger.rows(1e-5)
        return next(row for row in rows if row.release == "class_counts.count_classes.counts")

    assert row().proven == "none"
    noisy = row(counts_epsilon=1.0)
    assert (noisy.unit, noisy.adjacency) == ("record", "add or remove one")
    assert 0.9 < noisy.epsilon <= 1.0


def test_what_has_no_place_in_groups_is_refused(run_method: RunMethod, digits: FederatedData) -> None:
    for wrong, sentence in (
        ({"privacy": PrivacyConfig(updates="clipped")}, "nothing is summed up"),
        ({"privacy": PrivacyConfig(updates="dp_sgd")}, "it is for own examples"),
        ({"objective": "control_variates", "aggregator": "scaffold"}, "speaks with the server after every client"),
        ({"post_aggregation": {"name": "interior_points", "secure": True}}, "cannot ask the clients"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_method("astraea", digits, model=SMALL["mlp"], settings=wrong)


def test_what_is_not_an_image_can_only_be_trained_on(run_method: RunMethod) -> None:
    with pytest.raises(UserError, match="needs images of at least"):
        run_method("astraea", some_clients(6, 8))
    assert run_method("astraea", some_clients(6, 8), settings={"augment": False}).model
