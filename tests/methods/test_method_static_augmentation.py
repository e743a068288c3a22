"""Static augmentation: which classes are doubled, what is kept and sent, and when it is FedAvg."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, run, same_bits, some_clients
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsynth.components.synthetic_store import KEPT
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.errors import UserError
from fedsynth.federation.methods import find_method
from fedsynth.methods.static_augmentation import minority_classes

RunMethod = Callable[..., Finished]


def test_minorities_are_the_six_small_classes_of_the_paper():
    assert np.flatnonzero(minority_classes(np.array([50, 5, 5, 50, 5, 5, 50, 50, 5, 5]))).tolist() == [1, 2, 4, 5, 8, 9]


def test_there_are_none_where_classes_are_even_or_missing():
    assert not minority_classes(np.array([7, 7, 7])).any()
    assert not minority_classes(np.array([0, 9, 9, 0])).any()  # n-class: nothing to copy
    assert not minority_classes(np.zeros(4, dtype=int)).any()


@given(arrays(np.int64, 6, elements=st.integers(0, 50)))
def test_a_minority_has_examples_and_the_largest_class_is_none(counts):
    few = minority_classes(counts)
    assert (counts[few] > 0).all()
    assert not few[counts.argmax()]


@pytest.fixture(scope="module")
def major_minor() -> FederatedData:
    """Four clients, four classes ten times as large as the six others."""
    config = DataConfig(name="digits", validation=0, test=0)
    return load_federated(config, {"name": "major_minor", "num_clients": 4, "major": 4, "ratio": 10}, seed=2)


@pytest.mark.parametrize("copies", [1, 2])
def test_each_image_of_a_minority_class_gets_its_copies(copies: int, major_minor: FederatedData, tmp_path) -> None:
    settings = {"copies": copies, "rotate": 0, "shift": 0}
    finished = run("static_augmentation", major_minor, tmp_path, SMALL["mlp"], settings)
    for client in major_minor.clients:
        train = major_minor.client(client).train
        counts = train.counts(10)
        copied = finished.state(client)[KEPT]
        few = np.flatnonzero(counts < counts.max())
        assert len(few) == 6
        assert set(copied["labels"].tolist()) == set(few.tolist())
        x, y = train.tensors()
        for label in few:
            originals = x[y == label]
            kept = copied["images"][copied["labels"] == label].float() / 255
            distance = (kept[:, None] - originals[None]).flatten(2).abs().amax(2)
            assert (distance < 0.01).sum(0).min() >= copies  # moved by nothing, each original is there again
            assert len(kept) == copies * len(originals)


def test_images_are_really_moved(major_minor: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("static_augmentation", major_minor, model=SMALL["mlp"])
    x, y = major_minor.client("0").train.tensors()
    copied = finished.state("0")[KEPT]
    for image, label in zip(copied["images"].float() / 255, copied["labels"], strict=True):
        assert (x[y == label] - image).flatten(1).abs().amax(1).min() > 0.02


def test_without_copies_and_without_minorities_it_is_fedavg(digits: FederatedData, run_method: RunMethod) -> None:
    common = {"model": SMALL["zda_cnn"], "rounds": 3, "fraction": 0.6}
    plain = run_method("fedavg", digits, **common)
    off = run_method("static_augmentation", digits, settings={"copies": 0}, **common)
    assert same_bits(off.model, plain.model)
    assert [ask.name for ask in off.asks] == ["train"] * 3
    x = np.random.default_rng(0).random((8, 1, 8, 8), dtype=np.float32)
    even = Clients({c: (x, np.arange(8) % 4) for c in "ab"}, classes=4)
    on, plain = (run_method(name, even, model=SMALL["mlp"]) for name in ("static_augmentation", "fedavg"))
    assert same_bits(on.model, plain.model)
    assert not on.fed._versions  # nobody kept anything


def test_the_form_of_the_paper_mirrors_and_ours_does_not():
    config = find_method("static_augmentation").config
    assert not config().static_augmentation().flip
    assert config(form="published").static_augmentation().flip
    assert not config(form="published", flip=False).static_augmentation().flip


def test_nothing_but_fedavgs_update_leaves_a_client(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("static_augmentation", digits)
    [ask] = [ask for ask in finished.asks if ask.name == "augment_minorities"]
    assert all(reply == {} for reply in ask.replies.values())
    record = finished.fed.participation.ledger
    plain = run_method("fedavg", digits, settings={"local_data": "own"}).fed.participation.ledger  # in the loop
    assert record.rows(1e-5) == plain.rows(1e-5)
    assert record.words(1e-5)[0] == (
        "No differential privacy: weights of the model after local training; number of training examples; mean "
        "training loss; number of optimiser steps left the clients without a guarantee."
    )


def test_what_is_not_an_image_is_refused_before_anybody_is_asked(run_method: RunMethod) -> None:
    with pytest.raises(UserError, match=r"needs images of at least 1x1 pixels.*shape \(3,\)"):
        run_method("static_augmentation", some_clients(6, 8))
    assert run_method("static_augmentation", some_clients(6, 8), settings={"copies": 0}).model


def test_copies_depend_on_the_seed_and_the_client_alone(major_minor: FederatedData, tmp_path) -> None:
    kept = [
        run("static_augmentation", major_minor, tmp_path, SMALL["mlp"], seed=seed, engine=engine).state("1")[KEPT]
        for seed, engine in ((0, "local"), (0, "wire"), (1, "local"))
    ]
    assert torch.equal(kept[0]["images"], kept[1]["images"])
    assert not torch.equal(kept[0]["images"], kept[2]["images"])
