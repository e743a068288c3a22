"""Moments: what is released, what is drawn from it, and that it stands beside other methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, same_bits, some_clients
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.components.class_moments import Centre, ClassMoments
from fedsynth.components.released_sums import release_sum
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError, FedsynthError
from fedsynth.federation import Client, Federation
from fedsynth.federation.client import PrivateState
from fedsynth.federation.records import Pictures, read_record
from fedsynth.federation.store import StateStore
from fedsynth.methods.moments import Moments, keep_moments
from fedsynth.privacy import PrivacyConfig, gaussian_epsilon
from fedsynth.synthesis.moments import Basis, ClassModel, class_sums, read_sums

RunMethod = Callable[..., Finished]
CLASSES = 3
PRIVATE = PrivacyConfig(updates="dp_sgd", noise=1.0)


def client_with(x: np.ndarray, y: np.ndarray, classes: int = CLASSES) -> Client:
    data = Dataset(x.astype(np.float32), y.astype(np.int64))
    nothing = data.subset(np.zeros(0, np.int64))
    state = PrivateState(StateStore(Path()), "a", None)
    return Client("a", ClientData(data, nothing, nothing), Schema(x.shape[1:], classes), state, 0, 1, "cpu")


# -- statistics -----------------------------------------------------------------------------------------------------

VALUES = st.sampled_from([0.0, 0.5, 1.0, -3.0, 1e4, 3e38, math.inf, -math.inf, math.nan])


@settings(max_examples=60, deadline=None)
@given(
    record=st.lists(VALUES, min_size=16, max_size=16),
    label=st.integers(0, CLASSES - 1),
    middle=st.sampled_from([None, 0.0, 0.4, -1e9, 1e300]),
    radius=st.sampled_from([1e-300, 1e-3, 1.2, 1e300]),
    size=st.sampled_from([1, 2, 4, 64]),
    covariance=st.sampled_from(["class", "shared"]),
)
def test_no_record_moves_a_sum_by_more_than_its_sensitivity(record, label, middle, radius, size, covariance) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((9, 1, 4, 4)), np.arange(9) % CLASSES
    own = np.array(record).reshape(1, 1, 4, 4)
    dimensions = Basis((1, 4, 4), size).dimensions
    centre = None if middle is None else torch.full((dimensions,), middle, dtype=torch.float64)
    without, with_it = client_with(x, y), client_with(np.concatenate([x, own]), np.append(y, label))
    for statistic in (Centre(size=size), ClassMoments(size=size, covariance=covariance, centre=centre, radius=radius)):
        one, other = statistic.total(without), statistic.total(with_it)
        assert bool(torch.isfinite(other).all())
        assert float((other - one).norm()) <= statistic.sensitivity * (1 + 1e-9)
        if not np.isfinite(own).all():
            assert torch.equal(one, other)


def test_without_a_clip_no_noise_covers_the_sums() -> None:
    moments = ClassMoments(size=2, covariance="class")
    assert math.isinf(moments.sensitivity)
    with pytest.raises(FedsynthError, match="std = inf"):
        release_sum(client_with(np.zeros((4, 1, 4, 4)), np.zeros(4)), moments, 1.0)


def test_where_nothing_covers_it_a_class_with_few_examples_is_left_out() -> None:
    x, y = np.random.default_rng(0).random((9, 1, 4, 4)), np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    client, moments = client_with(x, y), ClassMoments(size=4, covariance="shared")
    left = read_sums(moments.exact(client), 16, CLASSES)
    assert left[0].tolist() == pytest.approx([3, 4, 0])
    kept = client_with(x[:7], y[:7])
    assert torch.equal(moments.exact(client), moments.total(kept))
    assert read_sums(moments.total(client), 16, CLASSES)[0].tolist() == pytest.approx([3, 4, 2])
    with pytest.raises(ValueError, match="greater than or equal to 3"):
        ClassMoments(size=4, covariance="shared", fewest=1)
    with pytest.raises(FedsynthError, match="with noise only"):
        release_sum(client, Centre(size=2), None)


@pytest.mark.parametrize("length", [3, 300])
def test_a_centre_that_does_not_fit_is_refused(length: int) -> None:
    moments = ClassMoments(size=2, covariance="shared", centre=torch.zeros(length), radius=1.0)
    with pytest.raises(FedsynthError, match="must have 4 numbers"):
        moments.total(client_with(np.zeros((4, 1, 4, 4)), np.zeros(4)))


def test_moments_that_would_fill_the_memory_are_refused() -> None:
    moments = ClassMoments(size=64, covariance="class")
    with pytest.raises(ConfigError, match="Class moments of 3 classes in 40000 dimensions"):
        moments.total(client_with(np.zeros((1, 40000)), np.zeros(1)))


# -- the method -----------------------------------------------------------------------------------------------------


def gaussians(finished: Finished) -> dict[str, Any]:
    [ask] = [ask for ask in finished.asks if ask.name == "keep_moments"]
    return ask.fields["model"]


def test_without_noise_the_sums_are_those_of_pooled_data(run_method: RunMethod) -> None:
    rng = np.random.default_rng(0)
    clients = {c: (rng.random((30, 1, 8, 8), dtype=np.float32), np.repeat([k, k, 2], 10)) for k, c in enumerate("abc")}
    data = Clients(clients, CLASSES)
    finished = run_method("moments", data, model=SMALL["mlp"], rounds=1)
    [ask] = [ask for ask in finished.asks if ask.name == "release_sum"]
    x, y = data.pooled("train").tensors()
    basis = Basis((1, 8, 8), 16)
    pooled = class_sums(basis.coefficients(x) / basis.reach, y, CLASSES, "class")
    total = sum(reply["total"] for reply in ask.replies.values())
    assert torch.allclose(total, pooled, atol=1e-9)
    means = torch.stack([x[y == label].mean(0) for label in range(CLASSES)])
    assert torch.allclose(basis.examples(gaussians(finished)["means"]), means, atol=1e-5)


@pytest.mark.parametrize("per_class", [None, 4])
def test_a_client_trains_on_fresh_draws(per_class: int | None, digits: FederatedData) -> None:
    """Of what it lacks to a share of its largest class, or of each class alike; not of what is not known."""
    known, drawn = np.arange(10) != 3, []
    model = ClassModel(means=torch.zeros((10, 4)), factors=torch.full((1, 4, 1), 0.1), known=torch.from_numpy(known))
    for round_ in (1, 2):
        client = own_of(digits, round_)
        keep_moments(client, model, 2, None)
        x, y = client.data.train.tensors()
        given = Moments(share=0.8, per_class=per_class)
        images, labels = given.examples(client, client.build(SMALL["mlp"]), x, y, None)
        assert torch.equal(images[: len(y)], x)
        counts = client.class_counts()
        more = np.maximum(counts, round(0.8 * counts.max())) if per_class is None else counts + per_class
        assert np.bincount(labels, minlength=10).tolist() == np.where(known, more, counts).tolist()
        drawn.append(images[len(y) :])
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("factors", [(2, 4, 1), (1, 5, 1), (10, 4)])
def test_a_model_of_other_data_is_refused(factors: tuple[int, ...], digits: FederatedData) -> None:
    model = ClassModel(means=torch.zeros((10, 4)), factors=torch.zeros(factors), known=torch.ones(10).bool())
    with pytest.raises(FedsynthError, match="do not fit the shape"):
        keep_moments(own_of(digits, 1), model, 2, None)


def test_a_client_that_missed_the_moments_trains_on_its_own(digits: FederatedData) -> None:
    client = own_of(digits, 1)
    x, y = client.data.train.tensors()
    assert Moments().examples(client, client.build(SMALL["mlp"]), x, y, None)[1] is y


def own_of(digits: FederatedData, round_: int) -> Client:
    state = PrivateState(StateStore(Path()), "0", None)
    return Client("0", digits.client(digits.clients[0]), digits.schema, state, 0, round_, "cpu")


@pytest.mark.parametrize("settings_", [{"share": 0}, {"synthetic": "none"}])
def test_without_anything_to_draw_it_is_fedavg(
    settings_: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    one = run_method("moments", digits, model=SMALL["cnn"], settings=settings_)
    assert same_bits(one.model, run_method("fedavg", digits, model=SMALL["cnn"]).model)
    assert {ask.name for ask in one.asks} == {"train"}


@pytest.mark.parametrize("settings_", [{}, {"epsilon": 8.0}, {"synthetic": "noise"}, {"synthetic": "real"}])
def test_the_same_bits_on_the_wire(settings_: dict[str, Any], digits: FederatedData, run_method: RunMethod) -> None:
    one, other = (
        run_method("moments", digits, model=SMALL["cnn"], settings=settings_, engine=engine)
        for engine in ("local", "wire")
    )
    assert same_bits(one.model, other.model)
    assert not same_bits(one.model, run_method("fedavg", digits, model=SMALL["cnn"]).model)


@pytest.mark.parametrize("method", ["feddyn", "fedprox", "scaffold", "logit_adjustment", "agg_enhance", "fedbn"])
def test_it_stands_beside_other_methods(method: str, digits: FederatedData, run_method: RunMethod) -> None:
    model = SMALL["zda_cnn"]
    quick = {"steps": 2, "tune_epochs": 1} if method == "agg_enhance" else {}
    one = run_method(method, digits, model=model, settings={**quick, "local_data": Moments()})
    assert [ask.name for ask in one.asks].count("release_sum") == 1
    assert not same_bits(one.model, run_method(method, digits, model=model, settings=quick).model)
    assert all(torch.isfinite(entry).all() for entry in one.model.values())


def test_the_ledger_has_the_epsilon_that_was_asked_for(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("moments", digits, model=SMALL["mlp"], settings={"epsilon": 2.0}, rounds=1)
    rows = finished.fed.participation.ledger.rows(1e-5)
    [row] = [row for row in rows if row.release.endswith("release_sum.total")]
    assert (row.times, row.unit, row.adjacency) == (2, "record", "add or remove one")
    assert row.epsilon == pytest.approx(2.0, abs=1e-6)
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for share in (0.1, 0.9):
        accountant.compose(GaussianDpEvent(1 / (math.sqrt(share) * mu_of(2.0))))
    assert row.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def mu_of(epsilon: float) -> float:
    low, high = 0.0, 10.0
    for _ in range(80):
        low, high = (
            ((low + high) / 2, high) if gaussian_epsilon((low + high) / 2, 1e-5) < epsilon else (low, (low + high) / 2)
        )
    return low


def test_a_resumed_run_draws_from_the_same_release(federate, digits: FederatedData) -> None:
    from fedsynth.components.loop import LoopConfig, federated_loop
    from fedsynth.components.settings import TrainConfig

    cfg = LoopConfig(train=TrainConfig(rounds=2, local_epochs=1), model=SMALL["mlp"])
    cut = cfg.model_copy(update={"train": TrainConfig(rounds=1, local_epochs=1)})

    def go(fed: Federation, cfg: LoopConfig) -> Any:
        return federated_loop(fed, cfg, local_data=Moments(epsilon=4.0)).model

    whole = go(federate("whole"), cfg)
    go(federate("cut"), cut)
    again = federate("cut")
    asked: list[str] = []
    again.engine.ask = watch(again.engine.ask, asked)
    model = go(again, cut)
    assert asked == []  # a finished phase is not asked for again
    assert same_bits(model, go(federate("one"), cut))
    assert not same_bits(model, whole)


def watch(ask: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    def watched(task: str, *rest: Any) -> Any:
        seen.append(task)
        return ask(task, *rest)

    return watched


@pytest.mark.parametrize("settings_", [{}, {"epsilon": 8.0}, {"per_class": 5}])
def test_private_training_needs_noise_and_public_amounts(
    settings_: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match="it needs epsilon, and per_class in place of share"):
        run_method("moments", digits, model=SMALL["mlp"], settings={"privacy": PRIVATE, **settings_})


def test_private_training_on_private_draws(digits: FederatedData, run_method: RunMethod) -> None:
    chosen = {"privacy": PRIVATE, "epsilon": 8.0, "per_class": 5}
    finished = run_method("moments", digits, model=SMALL["mlp"], settings=chosen)
    rows = finished.fed.participation.ledger.rows(1e-5)
    assert all(row.epsilon is not None for row in rows if row.kind == "release")


SECURE = PrivacyConfig(secure_aggregation=True)


def test_in_a_secure_sum_the_server_sees_no_single_clients_moments(
    digits: FederatedData, run_method: RunMethod
) -> None:
    plain, secure = (
        run_method("moments", digits, model=SMALL["mlp"], rounds=1, settings={"covariance": "shared", **privacy})
        for privacy in ({"epsilon": None}, {"privacy": SECURE})
    )
    assert {"release_masked_sum", "train_masked"} <= {ask.name for ask in secure.asks}
    assert "release_sum" not in {ask.name for ask in secure.asks}
    assert not any("fewer than 3 examples" in note for note in secure.fed.participation.notes)
    counts = sum(digits.client(client).train.counts(10) for client in digits.clients)
    listed = [row[1] for row in secure.fed.participation.records["class moments"]["rows"]]
    assert listed == pytest.approx(counts, abs=0.1)
    assert any("fewer than 3 examples" in note for note in plain.fed.participation.notes)


def test_in_a_secure_sum_the_noise_is_there_once(digits: FederatedData, run_method: RunMethod) -> None:
    """Of five clients three can open the sum: each adds a third of the variance."""
    said = []
    for privacy in (PrivacyConfig(), SECURE):
        finished = run_method(
            "moments", digits, model=SMALL["mlp"], rounds=1, settings={"epsilon": 8.0, "privacy": privacy}
        )
        record = finished.fed.participation.records["class moments"]
        said.append(float(record["about"].split()[-1].rstrip(".")))
    assert said[0] / said[1] == pytest.approx(math.sqrt(3), rel=1e-2)


def test_columns_of_tables_are_drawn_as_they_are(run_method: RunMethod) -> None:
    data = some_clients(60, 80, 70)
    finished = run_method("moments", data, settings={"covariance": "class"}, rounds=1)
    x, y = data.pooled("train").tensors()
    drawn = gaussians(finished)
    for label in range(3):
        own = x[y == label].double()
        assert torch.allclose(drawn["means"][label].double(), own.mean(0), atol=1e-5)
        factor = drawn["factors"][label].double()
        assert torch.allclose(factor @ factor.T, torch.cov(own.T, correction=0), atol=1e-4)


def test_a_picture_explains_the_gaussians(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("moments", digits, model=SMALL["mlp"], rounds=1)
    shown = read_record(done.fed.participation.records["The Gaussian of each class"])
    assert isinstance(shown, Pictures)
    assert shown.rows == ["mean", "spread", "draw 1", "draw 2", "draw 3"]
    everything = digits.pooled("train")
    means = np.stack([everything.x[everything.y == label].mean(0) for label in range(10)])
    spreads = np.stack([everything.x[everything.y == label].std(0) for label in range(10)])
    images = shown.images()
    assert np.abs(images[0] - means).mean() < 0.03  # few examples of a class at a client are left out there
    assert np.corrcoef(images[1].ravel(), spreads.ravel())[0, 1] > 0.98
    nearest = ((images[2][:, None] - means[None]) ** 2).sum((2, 3, 4)).argmin(1)
    assert (nearest == np.arange(10)).mean() >= 0.7
