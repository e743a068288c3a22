"""What happens to BatchNorm's running statistics, under FedAvg's three rules and FedBN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import SMALL, Clients, Finished, Spy, same_bits

from fedsynth.components.local_training import OWN_PART
from fedsynth.components.recalibration import recalibrate
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.evaluation.views import client_tallies
from fedsynth.learning.models import ModelSpec, initial_model
from fedsynth.learning.weights import weights_of

NET = SMALL["zda_cnn"]
STATISTICS = [f"body.{layer}.running_{kind}" for layer in (1, 4) for kind in ("mean", "var")]
BUFFERS = {*STATISTICS, "body.1.num_batches_tracked", "body.4.num_batches_tracked"}
NORM = BUFFERS | {f"body.{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")}
RunMethod = Callable[..., Finished]


def test_running_statistics_are_averaged_by_examples(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedavg", digits, model=NET, norm_buffers="average")
    replies = finished.rounds()[-1].replies
    sizes = np.array([reply["examples"] for reply in replies.values()])
    assert len(set(sizes)) > 1
    start = weights_of(initial_model(0, NET, digits.schema))
    for name in STATISTICS:
        sent = np.stack([reply["model"][name].double().numpy() for reply in replies.values()])
        got = finished.model[name].numpy()
        assert np.allclose(got, np.average(sent, axis=0, weights=sizes), rtol=1e-6, atol=1e-7)
        assert not np.allclose(got, sent.mean(0), atol=1e-4)  # not without the clients' weights
        assert not np.allclose(got, sent[0], atol=1e-4)  # not the first client's
        assert not np.allclose(got, start[name], atol=1e-4)  # not left as they were
    counters = [reply["model"]["body.1.num_batches_tracked"] for reply in replies.values()]
    assert finished.model["body.1.num_batches_tracked"] == max(counters)


def test_averaging_parameters_only_would_be_another_model(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedavg", digits, model=NET)
    start = weights_of(initial_model(0, NET, digits.schema))
    without = finished.model | {name: start[name] for name in BUFFERS}
    losses = []
    for weights in (finished.model, without):
        finished.fed.round = 99
        tallies = client_tallies(finished.fed, type(finished.outcome)(weights), NET, ["validation"])
        losses.append(sum(tally.loss for tally in tallies["global/validation"].values()))
    assert abs(losses[0] - losses[1]) > 1e-2


def test_local_statistics_stay_with_their_clients(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedavg", digits, model=NET, norm_buffers="local", rounds=2)
    for ask in finished.rounds():
        assert set(ask.fields["model"]) == set(finished.model) - BUFFERS
        assert all(set(reply["model"]) == set(finished.model) - BUFFERS for reply in ask.replies.values())
    kept = {client: finished.state(client)[OWN_PART] for client in digits.clients}
    assert all(set(mine) == BUFFERS for mine in kept.values())
    assert not torch.equal(kept["0"]["body.1.running_mean"], kept["1"]["body.1.running_mean"])
    assert finished.outcome.personal == "kept"
    assert finished.outcome.no_global == "BatchNorm's running statistics stay at the clients"


def test_local_statistics_go_on_from_the_clients_own(digits: FederatedData, run_method: RunMethod) -> None:
    one = run_method("fedavg", digits, model=NET, norm_buffers="local", rounds=1)
    two = run_method("fedavg", digits, model=NET, norm_buffers="local", rounds=2)
    name = "body.1.num_batches_tracked"
    for client in digits.clients:
        assert two.state(client)[OWN_PART][name] == 2 * one.state(client)[OWN_PART][name]


def statistics_by_hand(weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Means and unbiased variances in front of both BatchNorm layers, each normalising by the batch itself."""
    w = {name: entry.double() for name, entry in weights.items()}
    result = {}
    x = x.double()
    for conv, norm in ((0, 1), (3, 4)):
        x = F.conv2d(x, w[f"body.{conv}.weight"], w[f"body.{conv}.bias"], padding=2)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=True)
        result |= {f"body.{norm}.running_mean": mean, f"body.{norm}.running_var": var}
        biased = x.var((0, 2, 3), unbiased=False)
        x = (x - mean[:, None, None]) / (biased[:, None, None] + 1e-5).sqrt()
        x = x * w[f"body.{norm}.weight"][:, None, None] + w[f"body.{norm}.bias"][:, None, None]
        x = F.max_pool2d(F.relu(x), 2)
    return result


IN_GROUPS = {"mediators": 2}
RECALIBRATED: list[tuple[str, dict[str, object]]] = [
    ("fedavg", {}),
    ("fedvae", {}),
    ("feddpms", {"quota": 6}),
    ("feddpms", {"form": "published", "quota": 6, "sigma": 0.3}),
    ("feddpms", {"preliminary": 1.0}),
    ("astraea", IN_GROUPS),
    ("gandalf", IN_GROUPS | {"synthetic": "none", "static": False}),
    ("cluster_fedavg", {"threshold": "none"}),
]


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize(
    ("method", "settings"), RECALIBRATED, ids=[f"{m}-{k}" for k, (m, _) in enumerate(RECALIBRATED)]
)
def test_recalibrated_statistics_are_measured_on_the_clients_data(
    method: str, settings: dict[str, object], fraction: float, digits: FederatedData, run_method: RunMethod
) -> None:
    """Whatever a client trained on: synthetic examples are no part of them."""
    finished = run_method(
        method, digits, model=NET, settings=settings, norm_buffers="recalibrate", fraction=fraction, rounds=3
    )
    trained = [ask for ask in finished.asks if ask.name.startswith("train")]
    last = {client for ask in trained if ask.round == trained[-1].round for client in ask.requests}
    clients = [client for client in digits.clients if client in last]
    assert len(clients) == round(fraction * len(digits.clients))
    again = recalibrate(finished.fed, NET, finished.model, clients)
    assert set(again) == BUFFERS
    assert same_bits({name: finished.model[name] for name in BUFFERS}, again)
    measured, sizes = [], []
    for client in clients:
        x, y = digits.client(client).train.tensors()
        measured.append(statistics_by_hand(finished.model, x))
        sizes.append(len(y))
    for name in STATISTICS:
        expected = np.average([one[name].numpy() for one in measured], axis=0, weights=sizes)
        if name.endswith("running_var"):  # of all data together: E[x²] − E[x]²
            means = [one[name.replace("_var", "_mean")].numpy().astype(float) for one in measured]
            centre = np.average(means, axis=0, weights=sizes)
            expected = expected + np.average(np.square(means), axis=0, weights=sizes) - centre**2
        assert np.allclose(finished.model[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedavg", {}), ("fedavg", {"aggregator": {"name": "mean", "weights": "equal"}}), ("fedprox", {"mu": 0.1})],
)
def test_pooled_statistics_are_those_of_a_mixture_of_the_clients(
    method: str, settings: dict[str, object], digits: FederatedData, run_method: RunMethod
) -> None:
    """Its mean and E[x²] − E[x]², from the replies of the last round; nothing more is sent, nothing else changes."""
    finished = run_method(method, digits, model=NET, settings=settings, norm_buffers="pooled", fraction=0.6, rounds=2)
    plain = run_method(method, digits, model=NET, settings=settings, fraction=0.6, rounds=1)
    first = run_method(method, digits, model=NET, settings=settings, norm_buffers="pooled", fraction=0.6, rounds=1)
    assert [ask.name for ask in finished.asks] == ["train", "train"]
    trained = set(plain.model) - BUFFERS
    assert same_bits({n: plain.model[n] for n in trained}, {n: first.model[n] for n in trained})
    replies = finished.rounds()[-1].replies.values()
    sizes = [1 if "aggregator" in settings else reply["examples"] for reply in replies]
    for name in (name for name in STATISTICS if name.endswith("_var")):
        variances = [reply["model"][name].double().numpy() for reply in replies]
        means = [reply["model"][name.replace("_var", "_mean")].double().numpy() for reply in replies]
        centre = np.average(means, axis=0, weights=sizes)
        expected = np.average(np.square(means) + variances, axis=0, weights=sizes) - centre**2
        assert np.allclose(finished.model[name], expected, rtol=1e-5, atol=1e-6)
        assert (finished.model[name].numpy() > np.average(variances, axis=0, weights=sizes) - 1e-6).all()
        assert np.allclose(finished.model[name.replace("_var", "_mean")], centre, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum"])
def test_pooled_statistics_are_refused_beside_a_robust_aggregator(
    name: str, digits: FederatedData, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match=f'aggregator "{name}" is there so that no single one decides'):
        run_method(name, digits, model=NET, norm_buffers="pooled")


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("feddpms", "FedDPMS and FedVAE share whole models"),
        ("fedvae", "FedDPMS and FedVAE share whole models"),
        *((name, "the clients of a group share whole models") for name in ("cluster_fedavg", "ifca", "cfl")),
        *((name, "the model passes from client to client") for name in ("astraea", "gandalf", "sda_fl", "feddpgan")),
    ],
)
def test_local_statistics_are_refused_where_whole_models_are_shared(
    method: str, why: str, digits: FederatedData, run_method: RunMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*request: object) -> None:
        raise AssertionError("a client was asked")

    monkeypatch.setattr(Spy, "ask", asked)
    with pytest.raises(ConfigError) as refused:
        run_method(method, digits, model=NET, norm_buffers="local")
    assert str(refused.value) == (
        f'train.norm_buffers = "local" has no meaning where {why}: set "average", "pooled" or "recalibrate".'
    )


def test_recalibration_leaves_the_trained_weights_alone(digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method("fedavg", digits, model=NET, rounds=1)
    again = run_method("fedavg", digits, model=NET, rounds=1, norm_buffers="recalibrate")
    trained = set(plain.model) - BUFFERS
    assert same_bits({n: plain.model[n] for n in trained}, {n: again.model[n] for n in trained})


@pytest.mark.parametrize("spec", [ModelSpec(name="mlp", hidden=(6,), norm="batch"), NET])
def test_a_client_with_a_single_example_can_be_recalibrated(spec: ModelSpec, run_method: RunMethod) -> None:
    rng = np.random.default_rng(0)
    sizes = {"many": 9, "one": 1}
    data = Clients({c: (rng.random((n, 1, 8, 8), np.float32), rng.integers(3, size=n)) for c, n in sizes.items()}, 3)
    finished = run_method("fedavg", data, model=spec, norm_buffers="recalibrate")
    assert all(torch.isfinite(entry).all() for entry in finished.model.values())


def test_fedbn_shares_all_but_the_norm_layers(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedbn", digits, model=NET, fraction=0.6, rounds=3)
    for ask in finished.rounds():
        assert set(ask.fields["model"]) == set(finished.model) - NORM
        assert all(set(reply["model"]) == set(finished.model) - NORM for reply in ask.replies.values())
        assert all(reply["extra"] == {} for reply in ask.replies.values())
    asked = {client for ask in finished.rounds() for client in ask.requests}
    kept = {client: finished.state(client)[OWN_PART] for client in asked}
    assert all(set(mine) == NORM for mine in kept.values())
    assert finished.outcome.no_global


@pytest.mark.parametrize("rule", ["average", "pooled", "local", "recalibrate"])
def test_fedbn_releases_no_statistics_under_any_rule(rule: str, digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedbn", digits, model=NET, norm_buffers=rule, rounds=1)
    assert {ask.name for ask in finished.asks} == {"train"}


def test_fedbn_keeps_group_norm_layers_too(digits: FederatedData, run_method: RunMethod) -> None:
    spec = ModelSpec(name="cnn", channels=(4, 8), hidden=(8,), norm="group")
    finished = run_method("fedbn", digits, model=spec, rounds=1)
    assert set(finished.state("0")[OWN_PART]) == {
        f"body.{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")
    }


def test_fine_tuning_starts_from_what_the_client_kept(digits: FederatedData, run_method: RunMethod) -> None:
    """With 0 epochs the fine-tuned model is the client's own: the shared weights with its statistics."""
    train = {"norm_buffers": "local", "local_epochs": 2}
    own = run_method("fedavg", digits, model=NET, **train)
    tuned = run_method("finetune", digits, model=NET, settings={"epochs": 0}, **train)
    views = [client_tallies(f.fed, f.outcome, NET, ["test"]) for f in (own, tuned)]
    assert [set(view) for view in views] == [{"personal/test"}] * 2
    for client in digits.clients:
        assert views[0]["personal/test"][client].loss == views[1]["personal/test"][client].loss
