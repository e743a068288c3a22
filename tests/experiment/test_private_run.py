"""A whole run of a private method: its summary, its files, its last words, and its budget."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsynth
from fedsynth.errors import ConfigError
from fedsynth.experiment.recorder import Recorder
from fedsynth.federation import Client, store
from fedsynth.privacy import BudgetError, PrivacyConfig, SampledGaussianEvent, epsilon, ledger_words
from fedsynth.report.tables import summary_lines
from fedsynth.seeding import generator

METHOD = '''
import torch

from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.components.settings import MethodConfig
from fedsynth.privacy import Guarantee
from fedsynth.privacy.dpsgd import DpSgdTraining, dp_fit


class PrivateConfig(MethodConfig):
    """Settings of the private method."""

    noise: float = 2.0


class Learned(Reply):
    model: Weights = leaves("weights after private training")


@task
def learn_privately(client: Client, model: Weights, spec: ModelSpec, noise: float) -> Learned:
    net = instantiate(spec, client.schema.shape, client.schema.classes, model)
    x, y = client.data.train.tensors()
    training = DpSgdTraining(clip=1.0, noise=noise, examples=len(x), batch_size=8, epochs=1)
    done = dp_fit(net, x, y, training, torch.optim.SGD(net.parameters(), lr=0.1), client.noise_rng("noise"))
    proof = Guarantee(
        mechanism=f"DP-SGD, noise multiplier {noise:g}",
        events=(done.event,),
        covered="the weights",
        not_covered="the number of examples",
    )
    return client.release(Learned(model=weights_of(net)), model=proof)


@method("private_mean", config=PrivateConfig, model="mlp")
def private(fed: Federation, cfg: PrivateConfig) -> Outcome:
    """Private local training, plain averaging."""
    state = State(model=weights_of(build_model(cfg.model, fed.schema.shape, fed.schema.classes, seed=0)))
    for _ in fed.rounds("train", cfg.train.rounds, state):
        replies = fed.broadcast(learn_privately, model=state.model, spec=cfg.model, noise=cfg.noise)
        models = [reply.model for reply in replies.values()]
        state.model = {name: sum(model[name] for model in models) / len(models) for name in models[0]}
    return Outcome(state.model)
'''


def run(
    folder: Path,
    privacy: dict[str, Any] | None = None,
    rounds: int = 3,
    evaluation: dict[str, Any] | None = None,
    **settings: Any,
) -> fedsynth.RunResult:
    plugin = folder / "private_method.py"
    plugin.write_text(METHOD, encoding="utf-8")
    return fedsynth.run(
        {"name": "private_mean", **settings},
        plugins=[str(plugin)],
        runs=str(folder / "runs"),
        data={"name": "digits", "limit": 300},
        partition={"name": "iid", "num_clients": 3},
        train={"rounds": rounds},
        engine={"workers": 1},
        privacy={"secret_noise": True} | (privacy or {}),
        evaluation=evaluation or {},
    )


def test_a_private_run_says_what_it_proves(tmp_path: Path) -> None:
    result = run(tmp_path)
    rows = result.summary.privacy
    learned = [row for row in rows if row.release == "private_method.learn_privately.model"]
    assert sorted(client for row in learned for client in row.clients) == ["0", "1", "2"]
    for row in learned:
        sizes = {len_train(result, client) for client in row.clients}
        [n] = sizes
        event = SampledGaussianEvent(rate=8 / n, noise=2.0, steps=-(-n // 8))
        assert row.epsilon == pytest.approx(epsilon({event: 3}, 1e-5))
        assert row.times == 3
    evaluated = [row for row in rows if row.task == "views.score"]
    # Measures beside accuracy follow the same rule: asked for once, at the end, and without a guarantee.
    assert {row.field: row.times for row in evaluated} == {"scores": 4, "measures": 1}
    assert all(row.evaluation and row.proven == "none" for row in evaluated)
    total = max((row for row in rows if row.kind == "total"), key=lambda row: row.epsilon)
    assert total.not_covered == "views.score.scores; views.score.measures"
    words = [text for name, text in summary_lines(result.summary) if name == "privacy"]
    assert words == ledger_words(rows)
    assert words[0].startswith("Protected: weights after private training — ε = ")
    assert words[-1] == (
        "All that left a client together: no finite ε, because what evaluation sent has no guarantee. "
        "With evaluation.clients = 0 and evaluation.final_clients = 0 it asks no client and sends nothing."
    )


def test_where_evaluation_asks_nobody_all_that_left_has_one_epsilon(tmp_path: Path) -> None:
    result = run(tmp_path, evaluation={"clients": 0, "final_clients": 0})
    assert {row.task for row in result.summary.privacy if row.kind == "release"} == {"private_method.learn_privately"}
    assert "views.score" not in result.summary.bytes.by_task
    words = ledger_words(result.summary.privacy)
    assert words[-1].startswith("All that left a client together: ε = ")
    assert result.summary.clients.n == 0
    assert result.summary.test.accuracy > 0  # the server judges by a set of its own


def len_train(result: fedsynth.RunResult, client: str) -> int:
    with (result.path / "clients.csv").open(newline="", encoding="utf-8") as file:
        return next(int(row["train_examples"]) for row in csv.DictReader(file) if row["client"] == client)


def test_the_ledger_file_has_a_row_per_client_and_release(tmp_path: Path) -> None:
    result = run(tmp_path, rounds=1)
    with (result.path / "ledger.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], row["release"], row["kind"]) for row in rows] == [
        (client, release, kind)
        for client in "012"
        for release, kind in (
            ("private_method.learn_privately.model", "release"),
            ("views.score.scores", "release"),
            ("views.score.measures", "release"),
            ("all", "total"),
        )
    ]
    assert {row["delta"] for row in rows if row["epsilon"]} == {"1e-05"}
    assert not (result.path / "releases.json").exists()


def test_delta_is_a_setting(tmp_path: Path) -> None:
    loose, strict = (run(tmp_path, {"delta": delta}, rounds=1).summary.privacy[0] for delta in (1e-3, 1e-8))
    assert loose.epsilon < strict.epsilon
    assert "δ = 1e-08" in strict.proven


def test_a_run_stops_before_its_budget_is_spent(tmp_path: Path) -> None:
    free = run(tmp_path, rounds=5)
    costs = [row.epsilon for row in free.summary.privacy if row.kind == "total"]
    result = run(tmp_path, {"budget": 0.9 * max(costs)}, rounds=5)
    assert 1 <= result.summary.rounds < 5
    [note] = result.summary.notes
    assert note.startswith(f"Stopped after round {result.summary.rounds}: one more like it would bring client ")
    assert max(row.epsilon or 0 for row in result.summary.privacy) <= 0.9 * max(costs)
    assert ("note", note) in summary_lines(result.summary)


def test_a_budget_too_small_for_one_round_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"Client 0 refused to send model: .* past privacy.budget = 0.1\."):
        run(tmp_path, {"budget": 0.1})


def test_a_resumed_run_has_the_same_ledger(tmp_path: Path) -> None:
    whole = run(tmp_path, {"budget": 50})
    again = fedsynth.resume(whole.path, trust_plugins=True)
    assert again.summary.privacy == whole.summary.privacy


@pytest.mark.parametrize("wrong", [{"delta": 0}, {"delta": 1}, {"budget": 0}, {"budget": -1}, {"dleta": 1e-5}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="privacy"):
        run(tmp_path, wrong)


# -- secret and seeded noise ----------------------------------------------------------------------------------------

KEY = bytes(range(32))
ALL = {"clients": 0, "final_clients": 0}


def taken_off(result: fedsynth.RunResult) -> float:
    """The attack of somebody who has the folder: DP-SGD's noise of client 0 in round 1 by the seed that is in it.

    How much of a step's noise is left when that noise is subtracted: all of it, or nothing.
    """
    config = json.loads((result.path / "config.json").read_text())
    guess = generator(config["seed"], "dp-sgd", "0", 1).standard_normal(50)
    drawn = np.array(json.loads((result.path / "noise-drawn.json").read_text()))
    return float(np.abs(drawn - guess).max())


@pytest.mark.parametrize("secret", [True, False])
def test_the_noise_of_a_run_can_be_taken_off_with_its_folder_only_where_it_says_so(
    secret: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    inner = Client.noise_rng

    def noted(self: Client, purpose: str) -> np.random.Generator:
        rng = inner(self, purpose)
        if self.id == "0" and self.round == 1:
            drawn.append(copy.deepcopy(rng).standard_normal(50))
        return rng

    monkeypatch.setattr(Client, "noise_rng", noted)
    result = dp_sgd_run(tmp_path, secret_noise=secret)
    (result.path / "noise-drawn.json").write_text(json.dumps(drawn[0].tolist()))
    assert (taken_off(result) == 0) != secret
    words, rows = ledger_words(result.summary.privacy), result.summary.privacy
    told = "do not know the seed" in words[-1]
    assert told != secret
    assert {row.against for row in rows if row.epsilon} == {"everybody" if secret else "all but holders of the seed"}
    assert result.summary.secret_noise == secret
    assert ("do not know the seed" in (result.path / "report.html").read_text()) != secret


def dp_sgd_run(folder: Path, rounds: int = 3, **privacy: Any) -> fedsynth.RunResult:
    return fedsynth.run(
        "fedavg",
        runs=str(folder),
        name="run",
        model={"name": "mlp", "hidden": [8]},
        data={"name": "digits", "limit": 300},
        partition={"name": "iid", "num_clients": 3},
        train={"rounds": rounds, "local_epochs": 1, "batch_size": 32},
        engine={"workers": 1},
        privacy={"updates": "dp_sgd", "noise": 1.0, **privacy},
        evaluation=ALL,
        progress=False,
    )


class StoppedError(Exception):
    """As if somebody had pulled the plug."""


def test_a_run_with_secret_noise_is_resumed_to_the_bit_and_its_key_goes_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key lies with the private state until then, for its owner alone; what a finished run leaves has it not."""
    monkeypatch.setattr(store.secrets, "token_bytes", lambda count: KEY[:count])
    whole = dp_sgd_run(tmp_path / "whole")
    inner = Recorder.round_done

    def stopping(self: Recorder, fed: Any, name: str, state: Any) -> bool:
        if fed.round == 2:
            raise StoppedError
        return inner(self, fed, name, state)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "round_done", stopping)
        with pytest.raises(StoppedError):
            dp_sgd_run(tmp_path / "stopped")
    folder = tmp_path / "stopped" / "run"
    key = folder / "state" / "noise.key"
    assert key.read_bytes() == KEY
    assert key.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(store.secrets, "token_bytes", lambda count: b"x" * count)  # another one would show
    resumed = fedsynth.resume(folder, progress=False)
    assert whole.weights is not None
    assert resumed.weights is not None
    assert all(torch.equal(entry, resumed.weights[name]) for name, entry in whole.weights.items())
    for path in (folder, whole.path):
        assert not any(KEY in file.read_bytes() or KEY.hex().encode() in file.read_bytes() for file in files(path))
        assert not (path / "state" / "noise.key").exists()


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_noise_from_the_public_seed_is_not_called_secret(tmp_path: Path) -> None:
    """A method of somebody's own that draws its noise by client.rng: its ε holds only against who does not know it."""
    seeded = METHOD.replace("client.noise_rng", "client.rng")
    (tmp_path / "other.py").write_text(
        seeded.replace("learn_privately", "learn_seeded").replace('"private_mean"', '"seeded"')
    )
    result = fedsynth.run(
        "seeded",
        plugins=[str(tmp_path / "other.py")],
        runs=str(tmp_path / "runs"),
        data={"name": "digits", "limit": 300},
        partition={"name": "iid", "num_clients": 3},
        train={"rounds": 1},
        engine={"workers": 1},
        privacy={"secret_noise": True},
        progress=False,
    )
    assert result.summary.secret_noise
    [against] = {row.against for row in result.summary.privacy if row.epsilon}
    assert against == "all but holders of the seed"


@pytest.mark.parametrize(
    ("privacy", "secret"),
    [
        ({}, False),
        ({"updates": "dp_sgd"}, True),
        ({"updates": "clipped"}, True),
        ({"updates": "laplace"}, False),
        ({"budget": 1.0}, True),
        ({"updates": "dp_sgd", "secret_noise": False}, False),
        ({"secret_noise": True}, True),
    ],
)
def test_noise_is_secret_where_an_epsilon_is_asked_for(privacy: dict[str, Any], secret: bool) -> None:
    assert PrivacyConfig(**privacy).draws_in_secret == secret


def test_training_in_groups_keeps_to_the_target_of_all_its_passes(tmp_path: Path) -> None:
    """Every client trains twice in a round: calibrated to once, it would reach nearly twice the ε."""
    result = fedsynth.run(
        {"name": "gandalf", "synthetic": "none", "static": False, "mediators": 1, "mediator_epochs": 2},
        runs=str(tmp_path),
        model={"name": "mlp", "hidden": [8]},
        data={"name": "digits", "limit": 300},
        partition={"name": "iid", "num_clients": 3},
        train={"rounds": 2, "local_epochs": 1, "batch_size": 32},
        engine={"workers": 1},
        privacy={"updates": "dp_sgd", "target": 2.0},
        evaluation=ALL,
        progress=False,
    )
    reached = [row.epsilon for row in result.summary.privacy if row.release == "local_training.train.model"]
    assert 1.8 < max(reached) <= 2.0
