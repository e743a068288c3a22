"""FedPFT: one exchange of Gaussians of fixed features, and a head on draws from them."""

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
from federations import SMALL, Clients, Finished, same_bits
from safetensors.torch import save_file

from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import run_experiment
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.training import evaluate
from fedsynth.privacy import PrivacyConfig, gaussian_sigma

RunMethod = Callable[..., Finished]
SECURE = PrivacyConfig(secure_aggregation=True)
QUICK = {"dimension": 20, "draws": 30}


@pytest.fixture(scope="module")
def skewed() -> FederatedData:
    """Digits at four clients that have two or three classes each."""
    return load_federated(
        DataConfig(name="digits", limit=600), {"name": "dirichlet", "num_clients": 4, "alpha": 0.1}, seed=1
    )


def drawn(finished: Finished) -> tuple[torch.Tensor, torch.Tensor]:
    [ask] = [ask for ask in finished.asks if ask.name == "tune_head"]
    [request] = ask.requests.values()
    return request["fields"]["features"], request["fields"]["labels"]


def accuracy(data: FederatedData, finished: Finished, dimension: int) -> float:
    x, y = data.pooled("test").tensors()
    net = instantiate(ModelSpec(name="fixed", dimension=dimension), data.schema.shape, 10, finished.model)
    return evaluate(net, x, y, 10).accuracy


@pytest.mark.parametrize("settings", [{}, {"components": 3}, {"privacy": SECURE, "covariance": "shared"}], ids=str)
def test_one_exchange_makes_a_classifier_whatever_the_skew(
    settings: dict[str, Any], skewed: FederatedData, run_method: RunMethod
) -> None:
    finished = run_method("fedpft", skewed, settings={"dimension": 60, **settings})
    assert set(finished.model) == {"head.weight", "head.bias"}
    assert accuracy(skewed, finished, 60) > 0.8
    name = "release_masked_sum" if "privacy" in settings else "release_sum"
    assert [ask.name for ask in finished.asks].count(name) == 1


@pytest.mark.parametrize("settings", [{}, {"components": 2}, {"epsilon": 8.0}], ids=str)
def test_the_same_bits_on_the_wire(settings: dict[str, Any], digits: FederatedData, run_method: RunMethod) -> None:
    here, wire = (
        run_method("fedpft", digits, settings={**QUICK, **settings}, engine=engine) for engine in ("local", "wire")
    )
    assert same_bits(here.model, wire.model)
    amounts = torch.bincount(drawn(here)[1], minlength=10).tolist()
    assert set(amounts) <= {0, 30}
    assert "epsilon" in settings or amounts == [30] * 10


def test_it_draws_from_the_gaussians_of_every_client(run_method: RunMethod) -> None:
    """The same class at two clients, far apart: nothing lies in between, as it would in one Gaussian of both."""
    rng = np.random.default_rng(0)
    clients = {
        c: (rng.normal(middle, 0.3, (count, 2)).astype(np.float32), np.repeat([0, 1], count // 2))
        for c, middle, count in (("a", -5.0, 60), ("b", 5.0, 180))
    }
    data = Clients(clients, classes=2)
    mixed, _ = drawn(run_method("fedpft", data, settings={"draws": 40}))
    assert bool((mixed.abs() > 3).all())
    assert int((mixed[:, 0] > 0).sum()) == 60
    data = Clients({**clients, "c": clients["a"]}, classes=2)  # a secure sum needs three
    one, _ = drawn(run_method("fedpft", data, settings={"draws": 200, "privacy": SECURE}))
    assert bool((one.abs() < 3).any())


def test_components_of_a_client_are_drawn_from_apart(run_method: RunMethod) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(middle, 0.3, (50, 2)) for middle in (-5, 5)]).astype(np.float32)
    data = Clients({c: (x, np.zeros(100, np.int64)) for c in "ab"}, classes=2)
    near = [
        int((drawn(run_method("fedpft", data, settings={"components": k}))[0].abs() < 3).any(1).sum()) for k in (1, 2)
    ]
    assert near[0] > 100
    assert near[1] == 0


def test_the_ledger_has_the_epsilon_that_dp_accounting_finds(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedpft", digits, settings={**QUICK, "epsilon": 3.0})
    rows = finished.fed.participation.ledger.rows(1e-5)
    [row] = [row for row in rows if row.release.endswith("release_sum.total")]
    accountant = PLDAccountant()
    for share in (0.1, 0.9):
        accountant.compose(GaussianDpEvent(gaussian_sigma(3.0, 1e-5) / math.sqrt(share)))
    assert (row.times, row.unit, row.adjacency) == (2, "record", "add or remove one")
    assert row.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_a_pretrained_body_is_used_as_it_is(tmp_path: Path, digits: FederatedData, run_method: RunMethod) -> None:
    trained = run_method("fedavg", digits, model=SMALL["cnn"], rounds=1)
    file = tmp_path / "body.safetensors"
    save_file({n: entry.contiguous() for n, entry in trained.model.items()}, file)
    finished = run_method("fedpft", digits, model=SMALL["cnn"], settings={"backbone": str(file), "draws": 20})
    assert all(
        torch.equal(entry, trained.model[name]) for name, entry in finished.model.items() if name.startswith("body.")
    )
    with pytest.raises(ConfigError, match="set method.length"):
        run_method("fedpft", digits, model=SMALL["cnn"], settings={"backbone": str(file), "epsilon": 1.0})


@pytest.mark.parametrize("other", [{"epsilon": 8.0}, {"privacy": SECURE}], ids=["epsilon", "secure"])
def test_components_and_sums_of_all_are_refused_together(other: dict[str, Any], run_method: RunMethod) -> None:
    with pytest.raises(ValueError, match="differently at each client: with epsilon or a secure sum remove it"):
        run_method("fedpft", None, settings={"components": 2, **other})


def test_features_that_are_trained_are_refused(digits: FederatedData, run_method: RunMethod) -> None:
    with pytest.raises(ConfigError, match="is a model whose weights are trained"):
        run_method("fedpft", digits, settings={"features": "cnn"})


def test_a_run_keeps_a_model_that_predicts(tmp_path: Path) -> None:
    tables = {
        "runs": str(tmp_path),
        "data": {"name": "digits", "limit": 300},
        "partition": {"name": "dirichlet", "num_clients": 3, "alpha": 0.3},
        "method": {"name": "fedpft", "dimension": 40},
        "engine": {"workers": 1},
    }
    result = run_experiment(make_experiment(tables), progress=False)
    assert result.summary.test.accuracy > 0.8
    assert (result.path / "model.safetensors").is_file()
