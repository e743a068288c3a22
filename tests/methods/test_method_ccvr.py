"""CCVR: the head of a trained model on draws from released moments; where it stands, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from federations import SMALL, Clients, Finished, run, same_bits, some_clients

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.components.settings import TrainConfig
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation
from fedsynth.federation.records import ADDED_AT_SERVER
from fedsynth.learning.models import build_model, instantiate
from fedsynth.learning.training import evaluate
from fedsynth.methods.ccvr import HeadCalibration, unit_of
from fedsynth.privacy import PrivacyConfig, gaussian_sigma

RunMethod = Callable[..., Finished]
MODEL = SMALL["mlp"]
SECURE = PrivacyConfig(secure_aggregation=True)
PRIVATE = PrivacyConfig(updates="dp_sgd", noise=1.0)
DELTA = 1e-5
THREE_OF_FOUR = {c: (np.random.default_rng(0).random((9, 5), np.float32), np.arange(9) // 3) for c in "ab"}


@pytest.fixture(scope="module")
def skewed() -> FederatedData:
    """Digits at four clients that have two or three classes each."""
    return load_federated(
        DataConfig(name="digits", limit=600), {"name": "dirichlet", "num_clients": 4, "alpha": 0.1}, seed=1
    )


def body(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: entry for name, entry in model.items() if name.startswith("body.")}


def accuracy(data: FederatedData, finished: Finished) -> float:
    x, y = data.pooled("test").tensors()
    return evaluate(instantiate(MODEL, data.schema.shape, 10, finished.model), x, y, 10).accuracy


def test_it_repairs_the_head_of_a_skewed_model_and_touches_nothing_else(
    skewed: FederatedData, run_method: RunMethod
) -> None:
    train = {"rounds": 3, "local_epochs": 4}
    plain, calibrated = (run_method(method, skewed, model=MODEL, **train) for method in ("fedavg", "ccvr"))
    assert same_bits(body(plain.model), body(calibrated.model))
    assert accuracy(skewed, calibrated) > accuracy(skewed, plain) + 0.1
    assert [ask.name for ask in calibrated.asks] == ["train"] * 3 + ["release_sum", "tune_head"]


def test_one_release_of_features_of_the_aggregate_is_all_that_it_asks(run_method: RunMethod) -> None:
    """Its sums are those of pooled data in the features of FedAvg's model, by the scale of its head."""
    data = some_clients(40, 50, 60)
    finished = run_method("ccvr", data, model=MODEL, settings={"covariance": "shared"})
    fedavg = run_method("fedavg", data, model=MODEL)
    [ask] = [ask for ask in finished.asks if ask.name == "release_sum"]
    assert same_bits(ask.fields["statistic"]["of"]["model"], fedavg.model)
    x, y = data.pooled("train").tensors()
    net = instantiate(MODEL, data.schema.shape, 3, fedavg.model).double().eval()
    with torch.no_grad():
        q = net.body(x.double()) / ask.fields["statistic"]["unit"]
    total = sum(reply["total"] for reply in ask.replies.values())
    assert total[:3] / 0.3 == pytest.approx(torch.bincount(y, minlength=3).double(), rel=1e-10)
    for label in range(3):
        own = total[3:][label * 12 : label * 12 + 12] / math.sqrt(1 - 0.3**2)
        assert torch.allclose(own, q[y == label].sum(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"epsilon": 8.0}, {"each_round": True}])
def test_the_same_bits_on_the_wire_and_again(
    settings: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    one, again, wire = (
        run_method("ccvr", digits, model=MODEL, settings=settings, engine=engine)
        for engine in ("local", "local", "wire")
    )
    assert same_bits(one.model, again.model)
    assert same_bits(one.model, wire.model)


def test_the_server_tunes_on_as_many_draws_of_each_class(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("ccvr", digits, model=MODEL, settings={"draws": 7, "each_round": True})
    tunings = [ask for ask in finished.asks if ask.name == "tune_head"]
    assert [ask.round for ask in tunings] == [1, 2]
    for ask in tunings:
        [request] = ask.requests.values()
        assert torch.bincount(request["fields"]["labels"]).tolist() == [7] * 10
        assert request["fields"]["features"].shape == (70, 12)
    record = finished.fed.participation.records[ADDED_AT_SERVER]
    assert (record["what"], record["added"]) == ("virtual features", [[7] * 10])


def test_a_class_that_nobody_shows_is_named(run_method: RunMethod) -> None:
    finished = run_method("ccvr", Clients(THREE_OF_FOUR, classes=4), model=MODEL, rounds=1)
    assert any("nothing of class 3: no released count" in note for note in finished.fed.participation.notes)


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "feddyn", "fedopt", "finetune", "astraea", "feddpms"])
def test_it_ends_other_methods(method: str, digits: FederatedData, run_method: RunMethod) -> None:
    quick = {"quota": 4, "filter": "none"} if method == "feddpms" else {}
    model = SMALL["cnn"] if method == "feddpms" else MODEL
    slot = {"post_aggregation": {"name": "ccvr", "draws": 20}}
    plain, ended = (run_method(method, digits, model=model, settings=quick | s, rounds=1) for s in ({}, slot))
    assert [ask.name for ask in ended.asks].count("tune_head") == 1
    assert same_bits(body(plain.model), body(ended.model))
    assert not torch.equal(plain.model["head.weight"], ended.model["head.weight"])


# -- privacy --------------------------------------------------------------------------------------------------------


def composed(mus: list[float]) -> float:
    accountant = PLDAccountant()
    for mu in mus:
        accountant.compose(GaussianDpEvent(1 / mu))
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("each_round", [False, True])
def test_the_ledger_has_the_epsilon_that_dp_accounting_finds(
    each_round: bool, digits: FederatedData, run_method: RunMethod
) -> None:
    settings = {"epsilon": 2.0, "each_round": each_round}
    finished = run_method("ccvr", digits, model=MODEL, settings=settings)
    rows = finished.fed.participation.ledger.rows(DELTA)
    [row] = [row for row in rows if row.release.endswith("release_sum.total")]
    assert (row.unit, row.adjacency, row.times) == ("record", "add or remove one", 4 if each_round else 2)
    assert row.against == "all but holders of the seed"  # this federation has no secret
    mu = 1 / gaussian_sigma(2.0, DELTA)
    mus = [mu * math.sqrt(share) for share in (0.1, 0.9)] * (2 if each_round else 1)
    assert row.epsilon == pytest.approx(composed(mus), rel=1e-3)
    assert each_round or row.epsilon == pytest.approx(2.0, abs=1e-6)


def test_with_private_training_all_that_leaves_is_covered(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("ccvr", digits, model=MODEL, settings={"privacy": PRIVATE, "epsilon": 4.0}, rounds=1)
    rows = [row for row in finished.fed.participation.ledger.rows(DELTA) if row.kind == "release"]
    assert len(rows) > 1
    assert all(row.epsilon is not None for row in rows)


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_in_a_secure_sum_no_single_clients_moments_are_seen(
    epsilon: float | None, digits: FederatedData, run_method: RunMethod
) -> None:
    settings = {"privacy": SECURE, "epsilon": epsilon, "covariance": "shared"}
    finished = run_method("ccvr", digits, model=MODEL, settings=settings, rounds=1)
    names = [ask.name for ask in finished.asks]
    assert names.count("release_masked_sum") == (1 if epsilon is None else 2)
    assert not {"train", "release_sum"} & set(names)
    [row] = [row for row in finished.fed.participation.ledger.rows(DELTA) if "release_masked_sum" in row.release]
    assert row.epsilon == (None if epsilon is None else pytest.approx(8.0, abs=1e-6))


def test_the_unit_of_a_head_is_how_far_features_move_scores_by_one() -> None:
    net = build_model(MODEL, (1, 8, 8), 10, seed=0)
    weight, step = net.head.weight.detach().double(), torch.randn((500, 12), dtype=torch.float64)
    step = step / step.norm(dim=1, keepdim=True) * unit_of(weight)
    moved = step @ (weight - weight.mean(0)).T
    assert 0.3 < float(moved.norm(dim=1).max()) <= 1 + 1e-9
    assert math.isfinite(unit_of(torch.zeros((3, 4))))


# -- refused, resumed, missed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "train", "sentence"),
    [
        ("fedrep", {"post_aggregation": "ccvr"}, {}, "needs whole models, but the last layer stays at the clients"),
        ("ditto", {"post_aggregation": "ccvr"}, {}, '"ditto" ends with models that clients have trained'),
        ("ccvr", {}, {"patience": 2}, "before which train.patience may stop"),
        ("ccvr", {"privacy": PRIVATE}, {}, "leave without noise: set its epsilon"),
        (
            "ccvr",
            {"privacy": PrivacyConfig(updates="clipped", noise=1.0), "epsilon": 8.0},
            {},
            "about single records, and here whole clients are hidden",
        ),
        ("cluster_fedavg", {"post_aggregation": "ccvr"}, {}, "tunes none of them"),
    ],
)
def test_where_it_cannot_hold_it_is_refused_before_anybody_is_asked(
    method: str, settings: dict[str, Any], train: dict[str, Any], sentence: str, digits: Any, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_method(method, digits, model=MODEL, settings=settings, **train)


def test_a_model_without_a_linear_head_is_refused() -> None:
    net = build_model(MODEL, (1, 8, 8), 10, seed=0)
    net.head = torch.nn.Sequential(net.head)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="this model has none"):
        HeadCalibration().check(net, PrivacyConfig())


def test_a_resumed_run_ends_with_the_same_bits(federate: Callable[..., Federation]) -> None:
    """Stopped before the last round, with a release in each."""
    train = TrainConfig(rounds=3, local_epochs=1)
    cfg = LoopConfig(train=train, model=MODEL, post_aggregation=HeadCalibration(each_round=True, epsilon=8.0))
    whole = federated_loop(federate("whole"), cfg).model

    class StoppedError(Exception):
        pass

    broken = federate("cut")
    ask = broken.engine.ask

    def stop(task: str, *rest: Any) -> Any:
        if task.endswith("release_sum") and broken.round == 3:
            raise StoppedError
        return ask(task, *rest)

    broken.engine.ask = stop  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        federated_loop(broken, cfg)
    model = federated_loop(federate("cut"), cfg).model
    assert whole is not None
    assert model is not None
    assert same_bits(model, whole)


def test_where_no_class_is_left_the_head_stays(run_method: RunMethod) -> None:
    rng = np.random.default_rng(0)
    data = Clients({c: (rng.random((4, 5), np.float32), np.array([0, 0, 1, 2])) for c in "ab"}, classes=3)
    plain, ended = (run_method(method, data, model=MODEL, rounds=1) for method in ("fedavg", "ccvr"))
    assert same_bits(plain.model, ended.model)
    assert any("the head stayed as it was" in note for note in ended.fed.participation.notes)


def test_another_seed_draws_other_features(digits: FederatedData, tmp_path: Path) -> None:
    drawn = [
        next(iter(ask.requests.values()))["fields"]["features"]
        for seed in (0, 1)
        for ask in run("ccvr", digits, tmp_path, MODEL, rounds=1, seed=seed).asks
        if ask.name == "tune_head"
    ]
    assert not torch.equal(*drawn)
