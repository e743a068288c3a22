"""Fed-ZDA: what leaves, how much of which class is synthesised, its controls, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Clients, Finished, farthest, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsynth
from fedsynth.components.ablations import stand_ins
from fedsynth.components.samples import Samples
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.learning.models import build_model
from fedsynth.learning.training import measure_batch_norm
from fedsynth.methods.fed_zda import ZeroShotData, spread
from fedsynth.seeding import generator

RunMethod = Callable[..., Finished]
METHODS = ("fed_zdac", "fed_zdas", "fed_zda")
QUICK = {"steps": 2, "per_class": 2, "start_round": 1}
TINY = {"model": SMALL["zda_cnn"], "rounds": 2, "local_epochs": 1, "batch_size": 64}
WORDS = (
    "No differential privacy. Zero-shot data is post-processing of the shared weights: it adds no leak beyond them and "
    "removes none."
)


def asked(done: Finished, task: str) -> list[Ask]:
    return [ask for ask in done.asks if ask.name == task]


def pictures(*shares: dict[int, int], classes: int = 4) -> Clients:
    """Clients "a", "b", … with 8x8 images: a bright row for each class."""
    rng = np.random.default_rng(0)
    train = {}
    for name, share in zip("abcd", shares, strict=False):
        y = np.repeat(list(share), list(share.values())).astype(np.int64)
        x = 0.3 * rng.random((len(y), 1, 8, 8), dtype=np.float32)
        x[np.arange(len(y)), 0, y] += 0.7
        train[name] = (x, y)
    return Clients(train, classes)


SKEWED = ({0: 20, 1: 8}, {2: 10, 3: 10})


def somebody(y: np.ndarray, classes: int) -> Any:
    """As much of a client as synthesis needs."""
    data = Clients({"a": (np.zeros((len(y), 1, 8, 8), np.float32), y)}, classes)
    return SimpleNamespace(
        data=data.client("a"),
        state=SimpleNamespace(note=lambda key, value: None),
        schema=data.schema,
        device="cpu",
        rng=lambda purpose: generator(0, purpose, "a", 1),
        class_counts=lambda: data.train["a"].counts(classes),
    )


# -- what leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_what_leaves_a_client_is_what_leaves_in_fedavg(
    method: str, digits: FederatedData, run_method: RunMethod
) -> None:
    plain = run_method("fedavg", digits, settings={"local_data": "own"}, **TINY)  # in the loop
    done = run_method(method, digits, settings=QUICK, **TINY)
    assert farthest(done.model, plain.model) > 1e-6
    crossed = [ask for ask in done.asks if not any(client.startswith("@") for client in ask.requests)]
    assert [ask.name for ask in crossed] == ["train", "train"]
    for ask, other in zip(crossed, plain.asks, strict=True):
        for client, reply in ask.replies.items():
            as_ever = other.replies[client]
            assert set(reply) == set(as_ever)
            assert {n: w.shape for n, w in reply["model"].items()} == {n: w.shape for n, w in as_ever["model"].items()}
            assert (reply["examples"], reply["extra"]) == (as_ever["examples"], {})
    assert done.fed.participation.ledger.as_dict() == plain.fed.participation.ledger.as_dict()


@pytest.mark.parametrize("method", METHODS)
def test_the_summary_says_what_is_true_of_its_privacy(
    method: str, digits: FederatedData, run_method: RunMethod
) -> None:
    assert run_method(method, digits, settings=QUICK, **TINY).fed.participation.notes == [WORDS]
    never = run_method(method, digits, settings=QUICK | {"start_round": 9}, **TINY)
    assert never.fed.participation.notes == []


def test_the_server_makes_a_balanced_set_of_each_model_and_tunes_the_average(
    digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("fed_zdas", digits, settings=QUICK | {"tune_rate": 0.25, "tune_epochs": 3}, lr=0.2, **TINY)
    for trained, made, tuned in zip(done.rounds(), asked(done, "invert_model"), asked(done, "tune_model"), strict=True):
        assert {client.removeprefix("@") for client in made.requests} == set(trained.requests)
        for client, request in made.requests.items():
            assert same_bits(request["fields"]["model"], trained.replies[client.removeprefix("@")]["model"])
        fields = tuned.fields
        assert fields["labels"].bincount().tolist() == [2 * len(made.requests)] * 10
        images = torch.cat([made.replies[client]["images"] for client in made.requests])
        assert torch.equal(fields["images"], images)
        assert (fields["training"]["epochs"], fields["training"]["batch_size"]) == (3, 32)
        assert fields["training"]["lr"] == pytest.approx(0.05)
    first, second = done.rounds()
    assert same_bits(second.fields["model"], asked(done, "tune_model")[0].replies["@tune"]["model"])
    assert same_bits(done.model, asked(done, "tune_model")[1].replies["@tune"]["model"])
    assert set(first.requests) == set(second.requests)


def test_stored_statistics_can_stay_those_of_the_clients(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("fed_zdas", digits, settings=QUICK | {"keep_statistics": True}, **TINY)
    for ask in asked(done, "tune_model"):
        before, after = ask.fields["model"], ask.replies["@tune"]["model"]
        stored = [name for name in before if "running" in name]
        assert stored
        assert all(torch.equal(before[name], after[name]) for name in stored)
        assert farthest(before, after) > 0


@pytest.mark.parametrize("own", [True, False])
def test_a_client_that_trained_on_synthetic_images_sends_the_statistics_of_its_own(
    own: bool, digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("fed_zdac", digits, settings=QUICK | {"keep_statistics": own}, **TINY)
    for client, reply in done.rounds()[0].replies.items():
        net = build_model(TINY["model"], digits.schema.shape, digits.schema.classes, 0)
        net.load_state_dict(reply["model"])
        measure_batch_norm(net, digits.client(client).train.tensors()[0])
        measured = net.state_dict()
        stored = [name for name in reply["model"] if "running" in name]
        assert stored
        assert all(torch.equal(measured[name], reply["model"][name]) for name in stored) == own


# -- how much of which class ----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(sum))
def test_clients_synthesise_none_of_what_they_have_in_plenty(counts: list[int]) -> None:
    y = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    rule = ZeroShotData(amounts="missing", per_class=3, images="noise")
    client = somebody(y, len(counts))
    x = torch.from_numpy(client.data.train.x)
    net = build_model(SMALL["zda_cnn"], (1, 8, 8), len(counts), seed=0)
    images, labels = rule.examples(client, net, x, torch.from_numpy(y), None)
    assert len(images) == len(labels)
    assert torch.equal(labels[: len(y)], torch.from_numpy(y))
    made = labels[len(y) :].bincount(minlength=len(counts)).numpy()
    even = int(np.ceil(sum(counts) / len(counts)))
    assert (made == np.minimum(np.maximum(0, even - np.array(counts)), 3 * len(counts))).all()
    assert not made[np.array(counts) >= even].any()


def test_balanced_is_as_many_of_each(digits: FederatedData, run_method: RunMethod) -> None:
    y = np.zeros(7, dtype=np.int64)
    client = somebody(y, 4)
    net = build_model(SMALL["zda_cnn"], (1, 8, 8), 4, seed=0)
    rule = ZeroShotData(**QUICK)
    images, labels = rule.examples(client, net, torch.from_numpy(client.data.train.x), torch.from_numpy(y), None)
    assert labels[7:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert images.shape == (15, 1, 8, 8)
    assert net.training, "the network is ready to be trained"


def test_the_server_keeps_at_least_one_of_each_class(run_method: RunMethod) -> None:
    settings = QUICK | {"amounts": "missing", "per_class": 6, "steps": 20}
    done = run_method("fed_zdas", pictures(*SKEWED), settings=settings, lr=0.05, **TINY | {"local_epochs": 4})
    for ask in asked(done, "tune_model"):
        counts = ask.fields["labels"].bincount(minlength=4)
        assert (counts >= 1).all()
        assert counts.max() == 12, "the class that is known least has all"
        assert counts.min() < 12
    asks = asked(done, "classify_images")
    assert [list(ask.requests) for ask in asks] == [["@average"]] * 2


@given(st.integers(1, 60), st.floats(0, 1))
def test_a_share_of_the_rows_is_spread_over_them(rows: int, share: float) -> None:
    kept = spread(torch.arange(rows), share)
    assert len(kept) == max(1, round(share * rows))
    gaps = kept.diff()
    assert kept[0] == 0
    assert len(kept) == 1 or 1 <= gaps.min() <= gaps.max() <= gaps.min() + 1


# -- controls -------------------------------------------------------------------------------------------------------


def test_controls_have_the_same_labels_and_number(run_method: RunMethod) -> None:
    at_server, at_clients = {}, {}
    for kind in ("synthetic", "noise", "real"):
        settings = QUICK | {"images": kind}
        done = run_method("fed_zda", pictures(*SKEWED), settings=settings, **TINY)
        at_server[kind] = [ask.fields["labels"] for ask in asked(done, "tune_model")]
        at_clients[kind] = [[reply["steps"] for reply in ask.replies.values()] for ask in done.rounds()]
        assert bool(asked(done, "invert_model")) == (kind == "synthetic")
        assert ("control, not a method" in " ".join(done.fed.participation.notes)) == (kind == "real")
    for kind in ("noise", "real"):
        assert all(torch.equal(a, b) for a, b in zip(at_server["synthetic"], at_server[kind], strict=True))
        assert at_clients["synthetic"] == at_clients[kind]


def test_without_images_clients_measure_their_statistics_again_and_train_as_always(
    digits: FederatedData, run_method: RunMethod
) -> None:
    plain = run_method("fedavg", digits, **TINY | {"rounds": 1})
    done = run_method("fed_zdac", digits, settings=QUICK | {"images": "none"}, **TINY | {"rounds": 1})
    stored = {name for name in plain.model if "running" in name or "num_batches" in name}
    trained = set(plain.model) - stored
    assert same_bits({n: plain.model[n] for n in trained}, {n: done.model[n] for n in trained})
    for client, reply in done.rounds()[0].replies.items():
        net = build_model(TINY["model"], digits.schema.shape, digits.schema.classes, 0)
        net.load_state_dict(reply["model"])
        measure_batch_norm(net, digits.client(client).train.tensors()[0])
        assert same_bits({n: reply["model"][n] for n in stored}, {n: net.state_dict()[n] for n in stored})
    assert done.fed.participation.notes == []
    assert "what was added" not in done.fed.participation.records
    at_server = run_method("fed_zdas", digits, settings=QUICK | {"images": "none"}, **TINY | {"rounds": 1})
    assert same_bits(at_server.model, plain.model)


def test_the_published_form_starts_from_noise_and_leaves_pixels_free(
    digits: FederatedData, run_method: RunMethod
) -> None:
    made = {}
    for form in ("ours", "published"):
        done = run_method("fed_zdas", digits, settings=QUICK | {"form": form}, **TINY)
        ask = asked(done, "invert_model")[0]
        made[form] = torch.cat([reply["images"] for reply in ask.replies.values()])
        assert ask.fields["start"] == {"ours": "grey", "published": "normal"}[form]
        assert ask.fields["inversion"]["reduction"] == "mean"
        tuned = asked(done, "tune_model")[0]
        before, after = tuned.fields["model"], tuned.replies["@tune"]["model"]
        same = all(torch.equal(before[name], after[name]) for name in before if "running" in name)
        assert same == (form == "ours")
    assert 0 <= made["ours"].min() <= made["ours"].max() <= 1
    assert made["published"].min() < -1 < 2 < made["published"].max()


def test_real_images_are_of_the_wanted_class_and_noise_is_the_start() -> None:
    rng, labels = np.random.default_rng(0), torch.tensor([1, 3, 3, 2])
    real = Samples(images=torch.arange(4.0).reshape(4, 1, 1, 1), labels=torch.tensor([3, 1, 0, 3]))
    noise = torch.full((4, 1, 1, 1), 9.0)
    assert stand_ins("synthetic", labels, noise, None, rng) is None
    assert torch.equal(stand_ins("noise", labels, noise, None, rng), noise)
    images = stand_ins("real", labels, noise, real, rng).flatten().tolist()
    assert images[0] == 1
    assert set(images[1:3]) <= {0.0, 3.0}
    assert images[3] == 9, "nobody has this class"


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_batch_norm_is_refused_and_leaves_no_folder(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'choose model.name = "zda_cnn", or model.norm = "batch"'):
        fedsynth.run(method, model={"name": "cnn"}, runs=str(tmp_path / "runs"), engine={"workers": 1})
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("slot", ["post_aggregation", "local_data"])
def test_on_another_method_too(slot: str, digits: FederatedData, run_method: RunMethod) -> None:
    settings = {slot: {"name": "zero_shot", **QUICK}}
    with pytest.raises(ConfigError, match='model.norm = "batch"'):
        run_method("fedprox", digits, model=SMALL["cnn"], settings=settings)
    batch = SMALL["cnn"].model_copy(update={"norm": "batch"})
    assert run_method("fedprox", digits, settings=settings, **TINY | {"model": batch}).model


def test_tuning_needs_whole_models(digits: FederatedData, run_method: RunMethod) -> None:
    with pytest.raises(
        ConfigError, match=r'post_aggregation = "zero_shot" needs whole models, but BatchNorm\'s running'
    ):
        run_method("fed_zdas", digits, norm_buffers="local", **TINY)
    with pytest.raises(
        ConfigError, match='post_aggregation = "interior_points" needs whole models, but normalisation layers'
    ):
        run_method("fedbn", digits, settings={"post_aggregation": "interior_points"}, **TINY)
    assert run_method("fed_zdac", digits, settings=QUICK, norm_buffers="local", **TINY).model
