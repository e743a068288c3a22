"""Examples kept beside a client's own: how they are stored, trained on and taken along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, farthest, same_bits

from fedsynth.components.samples import Samples
from fedsynth.components.synthetic_store import KEPT, KeptSamples, keep_samples, kept_samples
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import FederatedData
from fedsynth.federation.client import Client, PrivateState
from fedsynth.federation.store import StateStore

RunMethod = Callable[..., Finished]


@pytest.fixture
def client(tmp_path) -> Client:
    x = np.random.default_rng(0).random((6, 1, 4, 4), dtype=np.float32)
    part = Dataset(x, np.array([0, 1, 2, 0, 1, 2]))
    state = PrivateState(StateStore(tmp_path), "a", None)
    return Client("a", ClientData(part, part, part), Schema((1, 4, 4), 3), state, seed=0, round=1, device="cpu")


def trained_on(client: Client) -> tuple[torch.Tensor, torch.Tensor]:
    net = client.build(SMALL["mlp"])
    return KeptSamples().examples(client, net, *client.data.train.tensors(), None)


def keep(client: Client, images: torch.Tensor, labels: list[int], **how: Any) -> None:
    keep_samples(client, Samples(images=images, labels=torch.tensor(labels, dtype=torch.int64)), **how)


def images_of(client: Client) -> torch.Tensor:
    kept = kept_samples(client)
    assert kept is not None
    return kept.images


def test_nothing_kept_is_the_clients_own(client):
    assert kept_samples(client) is None
    x, y = trained_on(client)
    own_x, own_y = client.data.train.tensors()
    assert torch.equal(x, own_x)
    assert torch.equal(y, own_y)


def test_samples_are_kept_as_bytes_and_come_behind_the_clients_own(client):
    images, labels = torch.rand(3, 1, 4, 4), [2, 2, 0]
    keep(client, images, labels)
    assert client.state[KEPT]["images"].dtype == torch.uint8
    kept = images_of(client)
    assert kept.dtype == torch.float32
    assert (kept - images).abs().max() <= 0.5 / 255 + 1e-6
    x, y = trained_on(client)
    assert torch.equal(x[6:], kept)
    assert y.tolist() == [0, 1, 2, 0, 1, 2, 2, 2, 0]
    assert kept_samples(client).labels.tolist() == labels


def test_exact_and_wide_examples_stay_as_they_are(client):
    images = torch.rand(2, 1, 4, 4)
    keep(client, images, [0, 1], exact=True)
    assert torch.equal(images_of(client), images)
    wide = torch.randn(2, 1, 4, 4) * 3
    keep(client, wide, [0, 1])
    assert torch.equal(images_of(client), wide)


def test_bytes_are_read_as_a_clients_own_bytes_are(client):
    stored = np.random.default_rng(1).integers(0, 256, (5, 1, 4, 4), dtype=np.uint8)
    keep(client, torch.from_numpy(stored), [0] * 5, exact=True)
    assert torch.equal(images_of(client), Dataset(stored, np.zeros(5, dtype=np.int64)).tensors()[0])


def test_some_of_the_clients_own_may_be_left_out(client):
    keep(client, torch.rand(1, 1, 4, 4), [1], own=torch.tensor([0, 5]))
    x, y = trained_on(client)
    assert y.tolist() == [0, 2, 1]
    assert torch.equal(x[:2], client.data.train.tensors()[0][[0, 5]])


def test_it_acts_in_every_round():
    assert all(KeptSamples().active(index) for index in (1, 2, 99))


def test_a_client_that_keeps_nothing_trains_as_in_fedavg(digits: FederatedData, run_method: RunMethod) -> None:
    common = {"model": SMALL["zda_cnn"], "rounds": 2, "fraction": 0.6}
    kept = run_method("fedavg", digits, settings={"local_data": "kept"}, **common)
    assert same_bits(kept.model, run_method("fedavg", digits, **common).model)


def skewed(seed: int = 0) -> Clients:
    """Images of three classes, of which each client has one in plenty and two hardly."""
    rng = np.random.default_rng(seed)
    train = {}
    for position, name in enumerate("abc"):
        y = np.repeat([position, (position + 1) % 3, (position + 2) % 3], [12, 3, 2])
        x = rng.random((len(y), 1, 8, 8), dtype=np.float32) * 0.4 + y[:, None, None, None] * 0.3
        train[name] = (x.astype(np.float32), y.astype(np.int64))
    return Clients(train, 3)


@pytest.mark.parametrize(
    "slots",
    [
        {"objective": {"name": "proximal", "mu": 0.5}},
        {"objective": "logit_adjusted"},
        {"aggregator": "median"},
        {"server": {"name": "fedopt", "server_lr": 0.05}},
        {"post_aggregation": {"name": "interior_points", "steps": 2, "tune_epochs": 1}},
    ],
    ids=lambda slots: next(iter(slots)),
)
def test_kept_examples_go_with_other_slots(slots, run_method: RunMethod) -> None:
    data, common = skewed(), {"model": SMALL["mlp"], "rounds": 2}
    both = run_method("static_augmentation", data, settings=slots, **common)
    assert farthest(both.model, run_method("static_augmentation", data, **common).model) > 1e-6
    assert farthest(both.model, run_method("fedavg", data, settings=slots, **common).model) > 1e-6
    assert same_bits(both.model, run_method("static_augmentation", data, settings=slots, engine="wire", **common).model)


def test_another_value_of_the_slot_takes_its_place(run_method: RunMethod) -> None:
    data = skewed()
    own = run_method("static_augmentation", data, model=SMALL["mlp"], settings={"local_data": "own"})
    assert same_bits(own.model, run_method("fedavg", data, model=SMALL["mlp"]).model)


def test_kept_examples_weigh_nothing_in_the_average(run_method: RunMethod) -> None:
    finished = run_method("static_augmentation", skewed(), model=SMALL["mlp"])
    assert {reply["examples"] for ask in finished.rounds() for reply in ask.replies.values()} == {17}
    assert all(reply["steps"] == 2 for ask in finished.rounds() for reply in ask.replies.values())  # 17 + 5 examples
