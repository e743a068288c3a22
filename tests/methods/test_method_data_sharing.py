"""Data sharing: who gives what, who gets what, and that the record says plainly that real images left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Clients, Finished, same_bits, some_clients
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.components.synthetic_store import KEPT
from fedsynth.data.federated import FederatedData
from fedsynth.methods.data_sharing import EXPOSED, ordered

RunMethod = Callable[..., Finished]


def ask_of(finished: Finished, task: str) -> Ask:
    (ask,) = [ask for ask in finished.asks if ask.name == task]
    return ask


def test_orders_by_hand():
    counts = {"a": np.array([30, 10]), "b": np.array([10, 30])}
    # 0.2 of 80 is 16: eight of each class, three from one client for each one from the other.
    assert {c: o.tolist() for c, o in ordered(counts, 0.2).items()} == {"a": [6, 2], "b": [2, 6]}
    scarce = {"a": np.array([40, 1]), "b": np.array([39, 0])}
    assert {c: o.tolist() for c, o in ordered(scarce, 0.2).items()} == {"a": [4, 1], "b": [4, 0]}
    assert ordered({}, 0.2) == {}


@given(
    table=arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(0, 60)),
    share=st.floats(0, 1),
)
def test_nobody_is_asked_for_more_than_it_has_and_classes_are_even(table, share):
    orders = np.stack(list(ordered({str(row): counts for row, counts in enumerate(table)}, share).values()))
    assert (orders >= 0).all()
    assert (orders <= table).all()
    each = int(share * table.sum() / table.shape[1])
    assert np.array_equal(orders.sum(0), np.minimum(each, table.sum(0)))


@pytest.fixture
def finished(digits: FederatedData, run_method: RunMethod) -> Finished:
    return run_method("data_sharing", digits, model=SMALL["mlp"])


def test_the_shared_set_is_uniform_real_and_of_the_wanted_size(finished: Finished, digits: FederatedData) -> None:
    contributed = ask_of(finished, "contribute")
    total = sum(digits.train_size(client) for client in digits.clients)
    labels = torch.cat([reply["labels"] for reply in contributed.replies.values()])
    assert set(np.bincount(labels, minlength=10).tolist()) == {int(0.2 * total / 10)}
    for client, reply in contributed.replies.items():
        x, y = digits.client(client).train.tensors()
        matches = (reply["images"][:, None] == x[None]).flatten(2).all(2) & (reply["labels"][:, None] == y[None])
        assert matches.any(1).all()  # its own, with their labels
        assert matches.any(0).sum() == len(reply["labels"])  # and no example twice


def test_each_client_gets_a_random_fifth_and_keeps_it(finished: Finished, digits: FederatedData) -> None:
    pool = torch.cat([reply["images"] for reply in ask_of(finished, "contribute").replies.values()])
    kept = ask_of(finished, "keep_shared")
    assert set(kept.requests) == set(digits.clients)
    rows = []
    for client, request in kept.requests.items():
        images = request["fields"]["samples"]["images"]
        assert len(images) == round(0.2 * len(pool))
        found = (images[:, None] == pool[None]).flatten(2).all(2)
        assert found.any(1).all()
        rows.append(frozenset(found.float().argmax(1).tolist()))
        assert torch.equal(finished.state(client)[KEPT]["images"], images)  # not rounded
    assert len(set(rows)) > 1


def test_clients_train_on_their_part(finished: Finished, digits: FederatedData) -> None:
    for ask in finished.rounds():
        for client, reply in ask.replies.items():
            size = digits.train_size(client) + len(finished.state(client)[KEPT]["labels"])
            assert reply["steps"] == -(-size // 16)


def test_without_a_share_or_a_part_it_is_fedavg_and_nothing_is_asked(
    digits: FederatedData, run_method: RunMethod
) -> None:
    common = {"model": SMALL["zda_cnn"], "rounds": 3, "fraction": 0.6}
    plain = run_method("fedavg", digits, **common)
    for off in ({"share": 0}, {"part": 0}):
        other = run_method("data_sharing", digits, settings=off, **common)
        assert same_bits(other.model, plain.model)
        assert {ask.name for ask in other.asks} == {"train"}
        assert EXPOSED not in other.fed.participation.notes


def test_the_record_says_that_real_images_left_unprotected(finished: Finished) -> None:
    assert EXPOSED in finished.fed.participation.notes
    ledger = finished.fed.participation.ledger
    rows = {row.release: row for row in ledger.rows(1e-5) if row.kind == "release"}
    assert rows["data_sharing.contribute.images"].proven == rows["class_counts.count_classes.counts"].proven == "none"
    said = " ".join(ledger.words(1e-5))
    assert "No differential privacy" in said
    assert "real images (examples) of its training data, as they are" in said
    assert "number of training examples of each class" in said


def test_a_class_too_rare_for_its_share_is_told(run_method: RunMethod) -> None:
    x = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    rare = Clients({c: (x, np.r_[np.zeros(39, int), [int(c == "a")]]) for c in "ab"}, classes=2)
    finished = run_method("data_sharing", rare, model=SMALL["mlp"])
    assert any("not uniform" in note for note in finished.fed.participation.notes)
    few = Clients({c: (x[:4], np.arange(4)) for c in "ab"}, classes=4)
    finished = run_method("data_sharing", few, model=SMALL["mlp"])
    assert any("Nothing was shared" in note for note in finished.fed.participation.notes)
    assert {ask.name for ask in finished.asks} == {"count_classes", "train"}


def test_it_also_works_for_what_is_no_image_and_for_bytes(run_method: RunMethod) -> None:
    assert run_method("data_sharing", some_clients(40, 50)).model
    x = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    stored = Clients({c: (x, np.arange(40) % 4) for c in "ab"}, classes=4)
    finished = run_method("data_sharing", stored, model=SMALL["mlp"])
    assert ask_of(finished, "contribute").replies["a"]["images"].dtype == torch.uint8
