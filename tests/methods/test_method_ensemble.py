"""The one-shot ensemble: every model votes, by hand; one exchange; what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, same_bits, some_clients

from fedsynth.components.one_shot import as_ensemble
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import resume_run, run_experiment
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.weights import WeightsError, weights_of
from fedsynth.privacy import PrivacyConfig

RunMethod = Callable[..., Finished]
MODEL = SMALL["mlp"]
SHAPE = (1, 8, 8)


def voting(vote: str, model: ModelSpec = MODEL) -> ModelSpec:
    return model.model_copy(update={"vote": vote})


def scores(spec: ModelSpec, weights: dict[str, torch.Tensor], x: torch.Tensor, classes: int = 10) -> torch.Tensor:
    with torch.no_grad():
        return instantiate(spec, tuple(x.shape[1:]), classes, weights).eval()(x)


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("vote", ["scores", "probabilities"])
@pytest.mark.parametrize("model", SMALL)
def test_what_it_says_is_the_mean_of_what_the_clients_models_say(
    model: str, vote: str, weights: str, digits: FederatedData, run_method: RunMethod
) -> None:
    finished = run_method("ensemble", digits, model=SMALL[model], settings={"vote": vote, "weights": weights})
    x, _ = digits.pooled("test").tensors()
    [ask] = finished.rounds()
    counts = np.array([reply["examples"] if weights == "examples" else 1 for reply in ask.replies.values()])
    each = [scores(SMALL[model], reply["model"], x).double() for reply in ask.replies.values()]
    said = [one.softmax(1) if vote == "probabilities" else one for one in each]
    by_hand = sum(share * one for share, one in zip(counts / counts.sum(), said, strict=True))
    got = scores(voting(vote, SMALL[model]), finished.model, x).double()
    got = got.exp() if vote == "probabilities" else got
    assert torch.allclose(got, by_hand, atol=1e-5)


def test_clients_train_once_and_as_long_as_in_all_rounds(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("ensemble", digits, model=MODEL, rounds=3, local_epochs=2)
    assert [(ask.name, ask.training["epochs"]) for ask in finished.asks] == [("train", 6)]
    shorter = run_method("ensemble", digits, model=MODEL, settings={"epochs": 4}, rounds=3)
    assert [ask.training["epochs"] for ask in shorter.asks] == [4]


@pytest.mark.parametrize("vote", ["scores", "probabilities"])
def test_one_client_votes_as_its_own_model(vote: str, digits: FederatedData, run_method: RunMethod) -> None:
    pooled = digits.pooled("train")
    alone = Clients({"all": (pooled.x, pooled.y)}, classes=10)
    voted = run_method("ensemble", alone, model=MODEL, settings={"vote": vote}, rounds=1, local_epochs=3)
    fedavg = run_method("fedavg", alone, model=MODEL, rounds=1, local_epochs=3)
    assert same_bits(voted.model, as_ensemble([(fedavg.model, 1.0)]))
    x, _ = digits.pooled("test").tensors()
    one, other = scores(voting(vote), voted.model, x), scores(MODEL, fedavg.model, x)
    assert torch.allclose(one.softmax(1), other.softmax(1), atol=1e-6)


def test_the_same_bits_on_the_wire_and_in_any_order(digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method("ensemble", digits, model=SMALL["zda_cnn"])
    wire = run_method("ensemble", digits, model=SMALL["zda_cnn"], engine="wire")
    assert same_bits(plain.model, wire.model)
    x, _ = digits.pooled("test").tensors()
    spec = voting("probabilities", SMALL["zda_cnn"])
    mixed = run_method("ensemble", digits, model=SMALL["zda_cnn"], shuffle=lambda order: order[::-1])
    assert torch.allclose(scores(spec, plain.model, x), scores(spec, mixed.model, x), atol=1e-5)


def test_no_round_is_the_start_model(run_method: RunMethod) -> None:
    data = some_clients(6, 9)
    finished = run_method("ensemble", data, model=MODEL, rounds=0)
    start = weights_of(finished.fed.initial_model(MODEL))
    assert not finished.asks
    assert same_bits(finished.model, as_ensemble([(start, 1.0)]))


def test_its_updates_can_be_private(digits: FederatedData, run_method: RunMethod) -> None:
    settings = {"privacy": PrivacyConfig(updates="dp_sgd", noise=1.0), "epochs": 2}
    finished = run_method("ensemble", digits, model=MODEL, settings=settings)
    rows = [row for row in finished.fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert rows
    assert all(row.epsilon is not None for row in rows)


@pytest.mark.parametrize(
    ("method", "other", "sentence"),
    [
        ({"aggregator": "median"}, {}, "aggregator is for methods that average weights"),
        ({"post_aggregation": "ccvr"}, {}, "post_aggregation is for methods that average weights"),
        ({}, {"model": {"vote": "scores"}}, "model.vote follows from the method"),
        ({}, {"train": {"norm_buffers": "recalibrate"}}, "BatchNorm's statistics of its own client"),
        ({}, {"privacy": {"updates": "clipped"}}, "here the server works with the model of each"),
        ({}, {"privacy": {"secure_aggregation": True}}, "the server works with the model of each client"),
    ],
)
def test_settings_that_have_no_meaning_are_refused(
    method: dict[str, Any], other: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_experiment({"method": {"name": "ensemble", **method}, **other})


def test_weights_that_are_no_ensemble_are_refused() -> None:
    weights = weights_of(build_model(MODEL, SHAPE, 10, seed=0))
    with pytest.raises(WeightsError):
        instantiate(voting("scores"), SHAPE, 10, weights)
    whole = as_ensemble([(weights, 1.0), (weights, 1.0)])
    with pytest.raises(WeightsError):
        instantiate(MODEL, SHAPE, 10, whole)
    del whole["body.members.0.head.bias"]
    with pytest.raises(WeightsError, match=r"body.members.0.head.bias"):
        instantiate(voting("scores"), SHAPE, 10, whole)


def test_a_run_keeps_all_models_and_can_be_used(tmp_path: Path, digits: FederatedData) -> None:
    experiment = make_experiment(
        {
            "data": {"name": "digits", "limit": 250},
            "partition": {"name": "dirichlet", "num_clients": 3, "alpha": 0.5},
            "model": MODEL.model_dump(),
            "train": {"rounds": 2, "local_epochs": 2},
            "method": {"name": "ensemble"},
            "runs": str(tmp_path),
        }
    )
    result = run_experiment(experiment, progress=False)
    assert result.summary.rounds == 1
    assert result.summary.test.accuracy is not None
    x, _ = digits.pooled("test").tensors()
    assert result.weights is not None
    assert len(result.weights["body.shares"]) == 3
    assert result.model is not None
    assert torch.allclose(result.model(x).exp().sum(1), torch.ones(len(x)), atol=1e-4)
    again = resume_run(result.path, progress=False)
    assert again.weights is not None
    assert same_bits(result.weights, again.weights)
