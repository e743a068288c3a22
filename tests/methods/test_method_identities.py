"""Methods whose setting turns them into FedAvg are bit-identical to it; so are other things that must be equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, farthest, run, same_bits, some_clients

from fedsynth.data.dataset import Dataset
from fedsynth.data.federated import FederatedData
from fedsynth.learning.models import initial_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import weights_of
from fedsynth.seeding import generator

RunMethod = Callable[..., Finished]

SAME_AS_FEDAVG: dict[str, tuple[str, dict[str, Any]]] = {
    "FedProx mu=0": ("fedprox", {"mu": 0}),
    "q-FFL q=0": ("qffl", {"q": 0}),
    "FedOpt sgd lr=1": ("fedopt", {"optimizer": "sgd", "server_lr": 1, "momentum": 0}),
    "trimmed mean trim=0": ("trimmed_mean", {"trim": 0}),
    "MOON mu=0": ("moon", {"mu": 0}),
    "logit adjustment tau=0": ("logit_adjustment", {"tau": 0}),
    "FedMix ratio=0": ("fedmix", {"ratio": 0}),
    "fine-tuning, global model": ("finetune", {"epochs": 1}),
    "Krum that keeps all": ("krum", {"byzantine": 0, "keep": 9}),
    "AggEnhance without tuning": ("agg_enhance", {"tune_epochs": 0}),
    "AggEnhance after the last round": ("agg_enhance", {"start_round": 4}),
    "static augmentation without copies": ("static_augmentation", {"copies": 0}),
    "data sharing of nothing": ("data_sharing", {"share": 0}),
    "moments that nothing is drawn from": ("moments", {"share": 0}),
    "CCVR without training the head": ("ccvr", {"head_epochs": 0}),
    "class bias that stays": ("class_bias", {"strength": 0.0}),
    "class bias after the last round": ("class_bias", {"start_round": 4}),
    "FedGen alpha=0": ("fedgen", {"alpha": 0}),
    "FedFTG without iterations": ("fedftg", {"iterations": 0}),
    "FedFTG after the last round": ("fedftg", {"start_round": 4}),
}
NEEDS_BATCH_NORM: dict[str, tuple[str, dict[str, Any]]] = {
    "Fed-ZDAC after the last round": ("fed_zdac", {"start_round": 4}),
    "Fed-ZDAS after the last round": ("fed_zdas", {"start_round": 4}),
    "Fed-ZDAS without tuning": ("fed_zdas", {"tune_epochs": 0, "start_round": 1}),
    "Fed-ZDA after the last round": ("fed_zda", {"start_round": 4}),
    "Fed-ZDA in turns after the last round": ("fed_zda", {"start_round": 4, "turns": "alternate"}),
}


@pytest.fixture(scope="module")
def fedavg(digits: FederatedData, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """FedAvg for comparison, run once per setting."""
    done: dict[str, Finished] = {}

    def get(model: str, **train: Any) -> Finished:
        key = repr((model, train))
        if key not in done:
            folder: Path = tmp_path_factory.mktemp("fedavg")
            done[key] = run("fedavg", digits, folder, SMALL[model], **train)
        return done[key]

    return get


@pytest.mark.parametrize(
    ("name", "model", "fraction"),
    [
        *((name, model, 0.6) for name in SAME_AS_FEDAVG for model in SMALL),
        *((name, "zda_cnn", 0.6) for name in NEEDS_BATCH_NORM),
        *((name, "zda_cnn", 1.0) for name in [*SAME_AS_FEDAVG, *NEEDS_BATCH_NORM]),
    ],
)
def test_setting_that_turns_a_method_off_is_bit_identical_to_fedavg(
    name: str,
    model: str,
    fraction: float,
    digits: FederatedData,
    run_method: RunMethod,
    fedavg: Callable[..., Finished],
) -> None:
    method, settings = (SAME_AS_FEDAVG | NEEDS_BATCH_NORM)[name]
    train = {"fraction": fraction, "rounds": 3, "momentum": 0.9}
    other = run_method(method, digits, model=SMALL[model], settings=settings, **train)
    assert same_bits(other.model, fedavg(model, **train).model)
    assert [set(ask.requests) for ask in other.rounds()] == [
        set(ask.requests) for ask in fedavg(model, **train).rounds()
    ]


NOT_FEDAVG: dict[str, tuple[str, dict[str, Any]]] = {
    "FedProx": ("fedprox", {"mu": 0.1}),
    "q-FFL": ("qffl", {"q": 0.5}),
    "FedOpt": ("fedopt", {"optimizer": "sgd", "server_lr": 0.9, "momentum": 0}),
    "trimmed mean": ("trimmed_mean", {"trim": 0.2}),
    "MOON": ("moon", {"mu": 0.5}),
    "logit adjustment": ("logit_adjustment", {"tau": 0.5}),
    "FedMix": ("fedmix", {"ratio": 0.1}),
    "Krum": ("krum", {"byzantine": 0, "keep": 4}),
    "FedNova": ("fednova", {}),
    "SCAFFOLD": ("scaffold", {}),
    "FedDyn": ("feddyn", {}),
    "median": ("median", {}),
    "AggEnhance": ("agg_enhance", {"steps": 2, "tune_epochs": 1}),
    "Fed-ZDAC": ("fed_zdac", {"steps": 2, "per_class": 1, "start_round": 2}),
    "Fed-ZDAS": ("fed_zdas", {"steps": 2, "per_class": 1, "start_round": 2}),
    "Fed-ZDA": ("fed_zda", {"steps": 2, "per_class": 1, "start_round": 2}),
    "static augmentation": ("static_augmentation", {}),
    "data sharing": ("data_sharing", {}),
    "moments": ("moments", {}),
    "CCVR": ("ccvr", {}),
    "class bias": ("class_bias", {}),
    "FedGen": ("fedgen", {}),
    "FedFTG": ("fedftg", {"iterations": 2, "channels": 2}),
    "Astraea": ("astraea", {}),
}


@pytest.mark.parametrize("name", NOT_FEDAVG)
def test_a_method_that_is_on_is_not_fedavg(
    name: str, digits: FederatedData, run_method: RunMethod, fedavg: Callable[..., Finished]
) -> None:
    method, settings = NOT_FEDAVG[name]
    other = run_method(method, digits, model=SMALL["zda_cnn"], settings=settings)
    assert farthest(other.model, fedavg("zda_cnn").model) > 1e-5


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fedbn_without_norm_layers_is_fedavg(
    model: str, fraction: float, digits: FederatedData, run_method: RunMethod, fedavg: Callable[..., Finished]
) -> None:
    fedbn = run_method("fedbn", digits, model=SMALL[model], fraction=fraction)
    assert same_bits(fedbn.model, fedavg(model, fraction=fraction).model)
    assert (fedbn.outcome.personal, fedbn.outcome.no_global) == ("", "")


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("method", ["median", "trimmed_mean", "qffl", "fednova"])
def test_averages_of_one_client_are_that_client(
    method: str, model: str, digits: FederatedData, run_method: RunMethod, fedavg: Callable[..., Finished]
) -> None:
    alone = run_method(method, digits, model=SMALL[model], settings={"q": 0} if method == "qffl" else {}, fraction=0.2)
    assert all(len(ask.requests) == 1 for ask in alone.rounds())
    expected = fedavg(model, fraction=0.2).model
    if method == "fednova":  # w − 1·(w − w_i) is w_i but for one rounding
        assert farthest(alone.model, expected) < 1e-6
    else:
        assert same_bits(alone.model, expected)


@pytest.mark.parametrize("method", ["krum", "median", "trimmed_mean"])
def test_robust_averages_of_identical_updates_are_fedavg(method: str, run_method: RunMethod) -> None:
    """Clients that all hold copies of one example send identical updates, whatever the order of their batches."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.random((1, 1, 8, 8), dtype=np.float32), 6, axis=0)
    data = Clients({c: (x, np.full(6, 2)) for c in "abc"}, classes=4)
    settings = {"byzantine": 0, "keep": 1} if method == "krum" else {}
    one = run_method(method, data, model=SMALL["zda_cnn"], settings=settings, batch_size=3)
    other = run_method("fedavg", data, model=SMALL["zda_cnn"], batch_size=3)
    assert same_bits(one.model, other.model)


def central_training(data: Dataset, client: str, model: str, rounds: int, **training: Any) -> dict[str, torch.Tensor]:
    """Plain training of one network on one data set, without anything federated."""
    net = initial_model(0, SMALL[model], Clients({client: (data.x, data.y)}, 10).schema)
    x, y = data.tensors()
    for round in range(1, rounds + 1):
        fit(net, x, y, LocalTraining(**training), generator(0, "batches", client, round))
    return weights_of(net)


@pytest.mark.parametrize("model", SMALL)
def test_one_client_with_all_the_data_is_central_training(
    model: str, digits: FederatedData, run_method: RunMethod
) -> None:
    pooled = digits.pooled("train")
    alone = Clients({"all": (pooled.x, pooled.y)}, classes=10)
    train = {"local_epochs": 2, "batch_size": 16, "lr": 0.1}
    fedavg = run_method("fedavg", alone, model=SMALL[model], rounds=2, **train)
    # SGD without momentum carries nothing from one fit to the next: two rounds of two epochs are four epochs.
    expected = central_training(pooled, "all", model, 2, epochs=2, batch_size=16, lr=0.1)
    assert same_bits(fedavg.model, expected)
    upper = run_method("centralised", digits, model=SMALL[model], rounds=2, **train)
    assert same_bits(upper.model, central_training(pooled, "*", model, 2, epochs=2, batch_size=16, lr=0.1))
    local = run_method("local", alone, model=SMALL[model], rounds=2, **train)
    assert same_bits(local.state("all")["alone"], expected)


ZERO_SHOT = ("fed_zdac", "fed_zdas", "fed_zda")
ORDER_METHODS = [
    *("fedavg", "scaffold", "fednova", "feddyn", "qffl", "moon", "fedopt", "logit_adjustment", "ccvr", "fedgen"),
    *("median", "trimmed_mean", "krum", "static_augmentation"),
]


@pytest.mark.parametrize("method", [*ORDER_METHODS, "agg_enhance", "fed_zdac", "fed_zdas", "data_sharing", "astraea"])
def test_order_in_which_replies_arrive_changes_nothing(
    method: str, digits: FederatedData, run_method: RunMethod
) -> None:
    common = {"model": SMALL["zda_cnn"], "settings": {"steps": 2} if method in ("agg_enhance", *ZERO_SHOT) else {}}
    plain = run_method(method, digits, **common)
    mixed = run_method(method, digits, shuffle=lambda order: order[2:] + order[1::-1], **common)
    assert same_bits(plain.model, mixed.model)


@pytest.mark.parametrize("method", ORDER_METHODS)
def test_order_of_the_clients_changes_nothing_but_rounding(
    method: str, digits: FederatedData, run_method: RunMethod
) -> None:
    model = SMALL["mlp"]
    plain = run_method(method, digits, model=model)
    mixed = run_method(method, digits, model=model, clients=["3", "0", "4", "2", "1"])
    assert farthest(plain.model, mixed.model) < 1e-6


def test_another_seed_gives_another_model(run_method: RunMethod) -> None:
    data = some_clients(6, 9)
    assert farthest(run_method("fedavg", data, seed=0).model, run_method("fedavg", data, seed=1).model) > 1e-3


def test_no_rounds_and_no_epochs_leave_the_start_model(digits: FederatedData, run_method: RunMethod) -> None:
    start = weights_of(initial_model(0, SMALL["zda_cnn"], digits.schema))
    assert same_bits(run_method("fedavg", digits, model=SMALL["zda_cnn"], rounds=0).model, start)
    for method in ("fedavg", "scaffold", "fednova", "feddyn", "qffl", "moon", "fedmix"):
        still = run_method(method, digits, model=SMALL["zda_cnn"], local_epochs=0)
        assert farthest(still.model, start) < 1e-7, method


def test_client_data_is_not_changed_by_training(digits: FederatedData, run_method: RunMethod) -> None:
    before = digits.pool.x.copy()
    run_method("fedmix", digits, settings={"ratio": 0.3})
    assert np.array_equal(before, digits.pool.x)
