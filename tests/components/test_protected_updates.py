"""Protected updates: what leaves is clipped and noisy, costs what the accounting says, and still learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Finished, farthest, same_bits, some_clients
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsynth
from fedsynth.components.local_training import Update
from fedsynth.components.loop import update_privacy
from fedsynth.components.protected_updates import CONSTANTS, ClippedUpdates
from fedsynth.components.settings import MethodConfig, TrainConfig
from fedsynth.data.federated import FederatedData
from fedsynth.federation import Federation, Outcome
from fedsynth.federation.methods import find_method
from fedsynth.privacy import GaussianEvent, PrivacyConfig, SampledGaussianEvent, epsilon, gaussian_epsilon
from fedsynth.privacy.dpsgd import dp_rate, dp_steps

RunMethod = Callable[..., Finished]
DELTA = 1e-5
FREE = {"clip": 1e3, "noise": 1e-9}  # cuts nothing; noise of 1e-6


def protected(**values: Any) -> dict[str, Any]:
    return {"privacy": PrivacyConfig(**values)}


def moved(ask: Ask) -> dict[str, float]:
    """How far each client's reply is from what it received."""
    start = ask.fields["model"]
    return {
        client: math.sqrt(
            sum(float((reply["model"][n].double() - w.double()).square().sum()) for n, w in start.items())
        )
        for client, reply in ask.replies.items()
    }


def total_epsilon(finished: Finished) -> dict[str, float]:
    rows = finished.fed.participation.ledger.rows(DELTA)
    return {client: row.epsilon for row in rows if row.kind == "total" for client in row.clients}


# -- identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_at", ["client", "server"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "moon", "fedopt", "logit_adjustment", "fedmix"])
def test_without_a_cut_and_next_to_no_noise_it_is_the_plain_mean(
    method: str, noise_at: str, digits: FederatedData, run_method: RunMethod
) -> None:
    plain = run_method(
        method, digits, model=SMALL["mlp"], settings={"aggregator": {"name": "mean", "weights": "equal"}}
    )
    guarded = protected(updates="clipped", noise_at=noise_at, **FREE)
    assert (
        farthest(plain.model, run_method(method, digits, model=SMALL["mlp"], settings=guarded).model)
        < 1e-3
        * (
            method == "fedopt"  # divides by the size of the change
        )
        + 2e-5
    )


def test_the_mean_is_the_same_wherever_the_noise_is_added(digits: FederatedData, run_method: RunMethod) -> None:
    """And the noise on the mean is √m times larger where each of m clients adds its own."""
    clip = 0.5
    results = {
        (at, noise): run_method(
            "fedavg",
            digits,
            model=SMALL["mlp"],
            settings=protected(updates="clipped", clip=clip, noise=noise, noise_at=at),
            rounds=1,
        ).model
        for at in ("client", "server")
        for noise in (1e-9, 0.5)
    }
    assert farthest(results["client", 1e-9], results["server", 1e-9]) < 1e-6
    m = len(digits.clients)
    for at, expected in (("client", 0.5 * clip / math.sqrt(m)), ("server", 0.5 * clip / m)):
        noise = torch.cat([(w - results[at, 1e-9][n]).reshape(-1) for n, w in results[at, 0.5].items()])
        assert float(noise.mean()) == pytest.approx(0, abs=5 * expected / math.sqrt(len(noise)))
        assert float(noise.std()) == pytest.approx(expected, rel=0.1)


def test_dp_sgd_on_whole_batches_without_noise_is_fedavg_on_whole_batches(run_method: RunMethod) -> None:
    data = some_clients(20, 20, 20)
    train = {"batch_size": 64, "local_epochs": 3}
    plain = run_method("fedavg", data, model=SMALL["mlp"], **train)
    private = run_method("fedavg", data, model=SMALL["mlp"], settings=protected(updates="dp_sgd", **FREE), **train)
    assert farthest(plain.model, private.model) < 1e-5


@pytest.mark.parametrize("updates", ["dp_sgd", "clipped"])
def test_the_optimiser_of_the_experiment_is_used(updates: str, run_method: RunMethod) -> None:
    data = some_clients(20, 20)
    train = {"batch_size": 64, "optimizer": "adam", "lr": 0.01, "weight_decay": 0.01}
    plain = run_method("fedavg", data, model=SMALL["mlp"], **train)
    assert (
        farthest(
            plain.model,
            run_method("fedavg", data, model=SMALL["mlp"], settings=protected(updates=updates, **FREE), **train).model,
        )
        < 1e-3
    )


@pytest.mark.parametrize(
    "values", [{"updates": "dp_sgd"}, {"updates": "clipped"}, {"updates": "clipped", "noise_at": "server"}]
)
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_the_same_bits_on_the_wire(
    method: str, values: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    model = SMALL["zda_cnn"].model_copy(update={"norm": "group", "groups": 2})
    here, wire = (
        run_method(method, digits, model=model, settings=protected(**values), engine=engine)
        for engine in ("local", "wire")
    )
    assert same_bits(here.model, wire.model)
    assert here.fed.participation.as_dict()["ledger"] == wire.fed.participation.as_dict()["ledger"]


def test_unprotected_requests_say_nothing_of_privacy(run_method: RunMethod) -> None:
    [ask] = run_method("fedavg", some_clients(5, 5), model=SMALL["mlp"], rounds=1).asks
    assert set(ask.fields) == {"model", "spec", "training"}
    assert all(answer["guarantees"] == {} for answer in ask.answers.values())


# -- sensitivity and what leaves --------------------------------------------------------------------------------------


@given(
    st.floats(1e-6, 1e6),
    st.floats(1e-6, 1e6),
    st.floats(1e-4, 1e4),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=100)
def test_an_update_is_never_longer_than_the_clip(
    clip: float, far: float, size: float, kind: torch.dtype, seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    start = {n: (size * torch.randn(7, 3, generator=drawn)).to(kind) for n in "ab"}
    end = {n: (w.double() + far * torch.randn(7, 3, generator=drawn)).to(kind) for n, w in start.items()}
    updates = ClippedUpdates(clip=clip, noise=1, noise_at="server", delta=DELTA)
    sent = updates.clipped(start, end, {"a"}, np.random.default_rng(0))
    assert float((sent["a"].double() - start["a"].double()).norm()) <= clip * (1 + 1e-12)
    assert torch.equal(sent["b"], start["b"]), "an entry that is not trained stays as it was received"


def test_a_diverged_update_sends_nothing_but_noise() -> None:
    updates = ClippedUpdates(clip=1, noise=1e-9, noise_at="client", delta=DELTA)
    start = {"a": torch.ones(4)}
    for broken in (math.nan, math.inf):
        sent = updates.clipped(start, {"a": torch.full((4,), broken)}, {"a"}, np.random.default_rng(0))
        assert torch.allclose(sent["a"], start["a"])


def test_clipped_replies_are_as_long_as_the_clip(digits: FederatedData, run_method: RunMethod) -> None:
    privacy = protected(updates="clipped", clip=0.2, noise_at="server", noise=0.01)
    finished = run_method("fedavg", digits, model=SMALL["mlp"], settings=privacy, local_epochs=3)
    for ask in finished.rounds():
        lengths = moved(ask)
        assert max(lengths.values()) <= 0.2
        assert max(lengths.values()) > 0.199


@pytest.mark.parametrize(
    "values", [{"updates": "dp_sgd"}, {"updates": "clipped"}, {"updates": "clipped", "noise_at": "server"}]
)
def test_all_but_the_weights_is_the_same_for_every_client(values: dict[str, Any], run_method: RunMethod) -> None:
    finished = run_method(
        "fedavg", some_clients(5, 30, 50), model=SMALL["mlp"], settings=protected(**values), local_epochs=2
    )
    for ask in finished.rounds():
        for answer in ask.answers.values():
            assert answer["fields"] == Update(model=answer["fields"]["model"]).fields()
            assert set(answer["guarantees"]) == {"model", *CONSTANTS}
            assert answer["epochs"] == 2, (
                "work is reported as planned: random batches would tell the number of examples"
            )
    rows = [row for row in finished.fed.participation.ledger.rows(DELTA) if row.kind == "release"]
    assert all(row.epsilon == 0 and "constant" in row.mechanism for row in rows if row.field != "model")
    assert all(row.epsilon > 0 for row in rows if row.field == "model")


def test_fedmix_shows_its_exchange_as_unprotected(digits: FederatedData, run_method: RunMethod) -> None:
    ledger = run_method(
        "fedmix", digits, model=SMALL["mlp"], settings=protected(updates="clipped")
    ).fed.participation.ledger
    [total] = [row for row in ledger.rows(DELTA) if row.kind == "total"]
    assert "fedmix.average_images.images" in total.not_covered
    assert "no finite ε" in ledger.words(DELTA)[-2]


# -- accounting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise_at", "scope", "mu"),
    [("client", ("client", "replace one"), 2 / 4), ("server", ("client", "add or remove one"), 1 / 4)],
)
def test_clipped_updates_cost_what_their_composition_does(
    noise_at: str, scope: tuple[str, str], mu: float, run_method: RunMethod
) -> None:
    data, costs = some_clients(10, 20), []
    for rounds in (1, 2, 5):
        privacy = protected(updates="clipped", noise=4.0, noise_at=noise_at)
        finished = run_method("fedavg", data, model=SMALL["mlp"], settings=privacy, rounds=rounds)
        [total] = [row for row in finished.fed.participation.ledger.rows(DELTA) if row.kind == "total"]
        assert (total.unit, total.adjacency) == scope
        assert total.epsilon == epsilon([GaussianEvent(mu=mu)] * rounds, DELTA)
        assert total.epsilon == pytest.approx(gaussian_epsilon(mu * math.sqrt(rounds), DELTA))
        costs.append(total.epsilon)
    assert costs == sorted(set(costs))


def test_noise_at_the_server_says_against_whom_it_protects(run_method: RunMethod) -> None:
    privacy = protected(updates="clipped", noise_at="server")
    rows = run_method("fedavg", some_clients(9, 9), model=SMALL["mlp"], settings=privacy).fed.participation.ledger.rows(
        DELTA
    )
    [weights] = [row for row in rows if row.release == "local_training.train.model"]
    assert weights.covered == "what everybody but the server can learn"
    assert weights.not_covered.startswith("the server, which sees every clipped update")


def test_dp_sgd_costs_what_its_composition_does(run_method: RunMethod) -> None:
    data, costs = some_clients(12, 40, 90), []
    for rounds in (1, 3):
        privacy = protected(updates="dp_sgd", noise=2.0)
        finished = run_method("fedavg", data, model=SMALL["mlp"], settings=privacy, rounds=rounds, local_epochs=2)
        found = total_epsilon(finished)
        for client, n in {"a": 12, "b": 40, "c": 90}.items():
            event = SampledGaussianEvent(rate=min(1, 16 / n), noise=2.0, steps=2 * math.ceil(n / 16))
            assert found[client] == pytest.approx(epsilon([event] * rounds, DELTA), rel=1e-12)
        costs.append(found["b"])
    assert costs[0] < costs[1]
    rows = [row for row in finished.fed.participation.ledger.rows(DELTA) if row.kind == "total"]
    assert {(row.unit, row.adjacency) for row in rows} == {("record", "add or remove one")}


def test_who_is_not_asked_pays_nothing(run_method: RunMethod) -> None:
    privacy = protected(updates="clipped", noise=4.0)
    finished = run_method(
        "fedavg", some_clients(9, 9, 9, 9), model=SMALL["mlp"], settings=privacy, rounds=3, fraction=0.5
    )
    asked = {c: sum(c in ask.requests for ask in finished.rounds()) for c in "abcd"}
    assert total_epsilon(finished) == {
        c: epsilon([GaussianEvent(mu=0.5)] * times, DELTA) for c, times in asked.items() if times
    }


@pytest.mark.parametrize("target", [0.5, 8.0])
@pytest.mark.parametrize("noise_at", ["client", "server"])
def test_clipped_updates_are_calibrated_to_their_target(noise_at: str, target: float, run_method: RunMethod) -> None:
    privacy = protected(updates="clipped", target=target, noise_at=noise_at)
    finished = run_method("fedavg", some_clients(9, 9), model=SMALL["mlp"], settings=privacy, rounds=3)
    for reached in total_epsilon(finished).values():
        assert reached <= target
        assert reached == pytest.approx(target, rel=1e-9)


@given(st.floats(0.01, 100), st.floats(1e-9, 0.1), st.integers(0, 10_000), st.sampled_from(["client", "server"]))
@settings(deadline=None, max_examples=50)
def test_no_target_is_passed(target: float, delta: float, rounds: int, noise_at: str) -> None:
    privacy = PrivacyConfig(updates="clipped", target=target, delta=delta, noise_at=noise_at)
    config = find_method("fedavg").config(train=TrainConfig(rounds=rounds), privacy=privacy)
    assert isinstance(config, MethodConfig)
    updates = update_privacy(config)
    assert isinstance(updates, ClippedUpdates)
    mu = (2 if noise_at == "client" else 1) / updates.noise
    reached = gaussian_epsilon(mu * math.sqrt(max(1, rounds)), delta)
    assert 0.95 * target < reached <= target


def test_dp_sgd_is_calibrated_to_its_target_at_every_client(run_method: RunMethod) -> None:
    privacy, data = protected(updates="dp_sgd", target=4.0), some_clients(12, 40, 40)
    finished = run_method("fedavg", data, model=SMALL["mlp"], settings=privacy, rounds=3, batch_size=16)
    found = total_epsilon(finished)
    for client in "abc":
        assert 0.95 * 4 < found[client] <= 4
        n = len(data.train[client])
        kept = finished.state(client)["calibrated noise"]
        assert kept["for"] == [4.0, DELTA, dp_rate(n, 16), 3 * dp_steps(n, 16, 1)]
    assert finished.state("a")["calibrated noise"] != finished.state("b")["calibrated noise"]


def test_server_noise_is_drawn_entry_by_entry_in_a_fixed_order() -> None:
    updates = ClippedUpdates(clip=2, noise=3, noise_at="server", delta=DELTA)
    mean = {"b": torch.zeros(20_000), "a": torch.zeros(20_000), "c": torch.ones(3)}
    one, other = (
        updates.with_server_noise(weights, {"a", "b"}, 4, np.random.default_rng(1))
        for weights in (mean, dict(reversed(mean.items())))
    )
    assert same_bits(one, other)
    assert float(one["a"].std()) == pytest.approx(3 * 2 / 4, rel=0.05)
    assert torch.equal(one["c"], mean["c"])


# -- whole runs -------------------------------------------------------------------------------------------------------


def experiment(tmp_path: Any, privacy: dict[str, Any], **train: Any) -> fedsynth.RunResult:
    return fedsynth.run(
        "fedavg",
        runs=str(tmp_path / "runs"),
        data={"name": "digits"},
        partition={"name": "iid", "num_clients": 4},
        model={"name": "mlp", "hidden": [32]},
        train={"rounds": 6, "local_epochs": 2, "lr": 0.5, "batch_size": 64, **train},
        engine={"workers": 1},
        evaluation={"every": 0},
        privacy=privacy,
    )


def test_dp_sgd_learns(tmp_path: Any) -> None:
    result = experiment(tmp_path, {"updates": "dp_sgd", "noise": 1.0})
    assert result.summary.test.accuracy > 0.6
    worst = max(row.epsilon for row in result.summary.privacy if row.kind == "total")
    assert 5 < worst < 20


def test_a_budget_stops_dp_sgd_in_time(tmp_path: Any) -> None:
    result = experiment(tmp_path, {"updates": "dp_sgd", "noise": 1.0, "budget": 7.0})
    assert 1 <= result.summary.rounds < 6
    [note] = result.summary.notes
    assert note.startswith(f"Stopped after round {result.summary.rounds}: one more like it would bring client ")
    assert max(row.epsilon or 0 for row in result.summary.privacy) <= 7.0


@pytest.mark.parametrize("values", [{"updates": "dp_sgd"}, {"updates": "clipped"}])
def test_a_target_fits_a_budget_of_the_same_size(values: dict[str, Any], tmp_path: Any) -> None:
    result = experiment(tmp_path, {**values, "target": 3.0, "budget": 3.0}, rounds=3)
    assert result.summary.rounds == 3
    assert result.summary.notes == []


class PowerCutError(Exception):
    """The run stops here."""


@pytest.mark.parametrize(
    ("values", "batch_size"),
    [
        ({"updates": "dp_sgd"}, 16),
        ({"updates": "dp_sgd", "target": 5.0}, 512),
        ({"updates": "clipped", "noise": 0.5}, 16),
        ({"updates": "clipped", "noise": 0.5, "noise_at": "server"}, 16),
    ],
)
def test_a_resumed_run_gives_the_same_bits(
    values: dict[str, Any], batch_size: int, federate: Callable[..., Federation]
) -> None:
    method = find_method("fedopt")
    train = TrainConfig(rounds=3, local_epochs=1, batch_size=batch_size)
    config = method.config(train=train, model=SMALL["mlp"], privacy=PrivacyConfig(**values))
    whole: Outcome = method.program(federate("whole"), config)
    first = federate("run")
    ask, asked = first.engine.ask, []

    def cut(*request: Any) -> Any:
        asked.append(request)
        if len(asked) == 3:
            raise PowerCutError
        return ask(*request)

    first.engine.ask = cut  # type: ignore[method-assign]
    with pytest.raises(PowerCutError):
        method.program(first, config)
    again = federate("run")
    assert again.round == 2
    resumed = method.program(again, config)
    assert whole.model is not None
    assert same_bits(whole.model, resumed.model)
    ledger = federate("whole").participation.ledger
    assert again.participation.ledger.rows(DELTA) == ledger.rows(DELTA)
