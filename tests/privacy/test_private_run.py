"""A whole run of a private method: its summary, its files, its last words, and its budget."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import fedsynth
from fedsynth.errors import ConfigError
from fedsynth.privacy import BudgetError, SampledGaussianEvent, epsilon, ledger_words
from fedsynth.report.tables import summary_lines

METHOD = '''
from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.settings import MethodConfig
from fedsynth.privacy import Guarantee
from fedsynth.privacy.dpsgd import dp_fit


class PrivateConfig(MethodConfig):
    """Settings of the private method."""

    noise: float = 2.0


class Learned(Reply):
    model: Weights = leaves("weights after private training")


@task
def learn_privately(client: Client, model: Weights, spec: ModelSpec, noise: float) -> Learned:
    net = instantiate(spec, client.schema.shape, client.schema.classes, model)
    x, y = client.data.train.tensors()
    done = dp_fit(net, x, y, epochs=1, batch_size=8, lr=0.1, clip=1.0, noise=noise, rng=client.rng("noise"))
    proof = Guarantee(
        mechanism=f"DP-SGD, noise multiplier {noise:g}",
        events=(done.event,),
        covered="the weights",
        not_covered="the number of examples",
    )
    return client.release(Learned(model=weights_of(net)), model=proof)


@method("private", config=PrivateConfig, model="mlp")
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
        {"name": "private", **settings},
        plugins=[str(plugin)],
        runs=str(folder / "runs"),
        data={"name": "digits", "limit": 300},
        partition={"name": "iid", "num_clients": 3},
        train={"rounds": rounds},
        engine={"workers": 1},
        privacy=privacy or {},
        evaluation=evaluation or {},
    )


def test_a_private_run_says_what_it_proves(tmp_path: Path) -> None:
    result = run(tmp_path)
    rows = result.summary["privacy"]
    learned = [row for row in rows if row["release"] == "learn_privately.model"]
    assert sorted(client for row in learned for client in row["clients"]) == ["0", "1", "2"]
    for row in learned:
        sizes = {len_train(result, client) for client in row["clients"]}
        [n] = sizes
        event = SampledGaussianEvent(rate=8 / n, noise=2.0, steps=-(-n // 8))
        assert row["epsilon"] == pytest.approx(epsilon({event: 3}, 1e-5))
        assert row["times"] == 3
    [scores] = [row for row in rows if row["task"] == "score"]
    assert scores["evaluation"]
    assert scores["proven"] == "none"
    total = max((row for row in rows if row["kind"] == "total"), key=lambda row: row["epsilon"])
    assert total["not_covered"] == "score.scores"
    words = [text for name, text in summary_lines(result.summary) if name == "privacy"]
    assert words == ledger_words(rows)
    assert words[0].startswith("Protected: weights after private training — ε = ")
    assert words[-1] == (
        "All that left a client together: no finite ε, because what evaluation sent has no guarantee. "
        "With evaluation.clients = 0 and evaluation.final_clients = 0 it asks no client and sends nothing."
    )


def test_where_evaluation_asks_nobody_all_that_left_has_one_epsilon(tmp_path: Path) -> None:
    result = run(tmp_path, evaluation={"clients": 0, "final_clients": 0})
    assert {row["task"] for row in result.summary["privacy"] if row["kind"] == "release"} == {"learn_privately"}
    assert "score" not in result.summary["bytes"]["by_task"]
    words = ledger_words(result.summary["privacy"])
    assert words[-1].startswith("All that left a client together: ε = ")
    assert result.summary["clients"]["n"] == 0
    assert result.summary["test"]["accuracy"] > 0  # the server judges by a set of its own


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
        for release, kind in (("learn_privately.model", "release"), ("score.scores", "release"), ("all", "total"))
    ]
    assert {row["delta"] for row in rows if row["epsilon"]} == {"1e-05"}
    assert not (result.path / "releases.json").exists()


def test_delta_is_a_setting(tmp_path: Path) -> None:
    loose, strict = (run(tmp_path, {"delta": delta}, rounds=1).summary["privacy"][0] for delta in (1e-3, 1e-8))
    assert loose["epsilon"] < strict["epsilon"]
    assert "δ = 1e-08" in strict["proven"]


def test_a_run_stops_before_its_budget_is_spent(tmp_path: Path) -> None:
    free = run(tmp_path, rounds=5)
    costs = [row["epsilon"] for row in free.summary["privacy"] if row["kind"] == "total"]
    result = run(tmp_path, {"budget": 0.9 * max(costs)}, rounds=5)
    assert 1 <= result.summary["rounds"] < 5
    [note] = result.summary["notes"]
    assert note.startswith(f"Stopped after round {result.summary['rounds']}: one more like it would bring client ")
    assert max(row["epsilon"] or 0 for row in result.summary["privacy"]) <= 0.9 * max(costs)
    assert ("note", note) in summary_lines(result.summary)


def test_a_budget_too_small_for_one_round_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"Client 0 refused to send model: .* past privacy.budget = 0.1\."):
        run(tmp_path, {"budget": 0.1})


def test_a_resumed_run_has_the_same_ledger(tmp_path: Path) -> None:
    whole = run(tmp_path, {"budget": 50})
    again = fedsynth.resume(whole.path, trust_plugins=True)
    assert again.summary["privacy"] == whole.summary["privacy"]


@pytest.mark.parametrize("wrong", [{"delta": 0}, {"delta": 1}, {"budget": 0}, {"budget": -1}, {"dleta": 1e-5}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="privacy"):
        run(tmp_path, wrong)
