"""Secure aggregation in the shared loop: the same model, of which the server sees sums only, and who may be lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, farthest, same_bits, some_clients

import fedsynth
from fedsynth.components import secure_updates
from fedsynth.components.settings import TrainConfig
from fedsynth.engines.faults import FaultConfig
from fedsynth.engines.wire import WireEngine
from fedsynth.federation import Federation, Policy, QuorumError
from fedsynth.federation.host import TaskHost
from fedsynth.federation.methods import find_method
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.port import Answers, Engine, Failure
from fedsynth.federation.store import StateStore
from fedsynth.privacy import PrivacyConfig
from fedsynth.privacy.secure_sum import ONE

RunMethod = Callable[..., Finished]
SECURE = {"privacy": PrivacyConfig(secure_aggregation=True)}
KEYS, SHARES, MASKED, OPEN = STAGES = [
    "secure_aggregation.offer_keys",
    "secure_aggregation.share_secrets",
    "secure_updates.train_masked",
    "secure_aggregation.open_sum",
]
STEP = 2.0 / ONE  # what two rounds of cutting may change, and the rounding of the weights
POINTS: dict[str, Any] = {"steps": 3, "tune_epochs": 1, "secure": True}


@pytest.fixture(scope="module")
def five() -> Clients:
    return some_clients(12, 20, 9, 30, 15)


class Losing:
    """An engine that loses some clients at a task: before it, or only its answer."""

    clock = 0.0

    def __init__(self, inner: Engine, task: str, lost: set[str], before: bool) -> None:
        self.inner, self.task, self.lost, self.before = inner, task, lost, before
        self.asked: list[str] = []

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        self.asked.append(task)
        lost = self.lost & set(requests) if task == self.task else set()
        reached = {c: body for c, body in requests.items() if c not in lost or not self.before}
        answers = self.inner.ask(task, reached, deadline)
        for client in lost:
            answers.replies.pop(client, None)
            answers.failures[client] = Failure(client, "lost", "gone")
        return answers

    def close(self) -> None:
        self.inner.close()


def losing(
    data: Clients, folder: Path, task: str, lost: set[str], quorum: float, before: bool = True, threshold: float = 0.6
) -> tuple[dict[str, torch.Tensor], Federation]:
    """FedAvg of one round, of which some clients are lost at a stage."""
    store = StateStore(folder)
    engine = Losing(WireEngine(lambda: TaskHost(data, store)), task, lost, before)
    fed = Federation(engine, data.clients, data.schema, policy=Policy(quorum=quorum))
    found = find_method("fedavg")
    privacy = PrivacyConfig(secure_aggregation=True, secure_threshold=threshold)
    train = TrainConfig(rounds=1, local_epochs=1, batch_size=16)
    outcome = found.program(fed, found.config(train=train, model=SMALL["mlp"], privacy=privacy))
    assert outcome.model is not None
    return outcome.model, fed


# -- the same model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"aggregator": {"name": "mean", "weights": "equal"}}),
        ("fedprox", {"mu": 0.1}),
        ("fedopt", {"optimizer": "sgd", "server_lr": 0.5}),
        ("fedrep", {}),
    ],
)
def test_the_model_is_that_of_the_plain_sum(
    method: str, settings: dict[str, Any], run_method: RunMethod, five: Clients
) -> None:
    plain = run_method(method, five, model=SMALL["mlp"], settings=settings)
    secure = run_method(method, five, model=SMALL["mlp"], settings=settings | SECURE)
    assert farthest(plain.model, secure.model) < 20 * STEP  # training from a start that differs by a step
    assert not same_bits(plain.model, secure.model)  # it did go another way


def test_one_round_differs_by_less_than_a_step(run_method: RunMethod, five: Clients) -> None:
    plain = run_method("fedavg", five, model=SMALL["mlp"], rounds=1)
    secure = run_method("fedavg", five, model=SMALL["mlp"], rounds=1, settings=SECURE)
    assert farthest(plain.model, secure.model) <= STEP


def test_runs_are_bit_identical_whatever_the_keys_and_the_engine(run_method: RunMethod, five: Clients) -> None:
    one, other, wire = (
        run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE, engine=engine)
        for engine in ("local", "local", "wire")
    )
    assert same_bits(one.model, other.model)
    assert same_bits(one.model, wire.model)
    keys = [run.asks[0].replies["a"]["keys"] for run in (one, other, wire)]
    assert len({tuple(pair) for pair in keys}) == 3
    bytes_up = [run.fed.participation.as_dict()["bytes_up"] for run in (one, other)]
    assert bytes_up[0] == bytes_up[1]


def test_batch_norm_is_averaged_and_its_counters_are_rounded(run_method: RunMethod, digits: Any) -> None:
    plain = run_method("fedavg", digits, model=SMALL["zda_cnn"], rounds=1)
    secure = run_method("fedavg", digits, model=SMALL["zda_cnn"], rounds=1, settings=SECURE)
    counters = {name for name, entry in plain.model.items() if not entry.is_floating_point()}
    floats = {name: entry for name, entry in plain.model.items() if name not in counters}
    assert counters
    assert farthest(floats, secure.model) <= STEP
    sent = next(ask for ask in plain.asks if ask.name == "train")
    for name in counters:
        values = [int(reply["model"][name]) for reply in sent.replies.values()]
        assert secure.model[name].dtype == plain.model[name].dtype
        assert min(values) <= int(secure.model[name]) <= max(values)


def test_what_stays_at_the_clients_is_no_part_of_the_sum(run_method: RunMethod, digits: Any) -> None:
    plain = run_method("fedbn", digits, model=SMALL["zda_cnn"], rounds=1)
    secure = run_method("fedbn", digits, model=SMALL["zda_cnn"], rounds=1, settings=SECURE)
    assert farthest(plain.model, secure.model) <= STEP


# -- what the server sees -------------------------------------------------------------------------------------------


def test_the_server_sees_no_update(run_method: RunMethod, five: Clients) -> None:
    plain = run_method("fedavg", five, model=SMALL["mlp"], rounds=1)
    secure = run_method("fedavg", five, model=SMALL["mlp"], rounds=1, settings=SECURE)
    assert [ask.task for ask in secure.asks] == STAGES
    (masked,) = [ask for ask in secure.asks if ask.task == MASKED]
    for client, reply in masked.replies.items():
        assert set(reply) == {"masked"}
        sent = reply["masked"].numpy()
        trained = plain.rounds()[0].replies[client]
        change = secure_updates.flatten_change(plain.rounds()[0].fields["model"], trained["model"])
        bare = np.concatenate([[trained["examples"]], np.trunc(change * ONE) * trained["examples"]]).astype(np.int64)
        assert (sent.view(np.int64) != bare).all()
        high = sent >> np.uint64(56)
        assert len(np.unique(high)) > 60  # of plain numbers this byte is 0 or 255
    secret = {tuple(ask.replies) for ask in secure.asks if ask.task != MASKED}
    assert secret == {tuple("abcde")}
    for ask in secure.asks:
        for answer in ask.answers.values():
            assert not any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in leaf(answer))


def leaf(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [found for item in value.values() for found in leaf(item)]
    return [found for item in value for found in leaf(item)] if isinstance(value, list) else [value]


def test_the_ledger_says_what_it_is_and_what_not(run_method: RunMethod, five: Clients) -> None:
    fed = run_method("fedavg", five, model=SMALL["mlp"], rounds=1, settings=SECURE).fed
    rows = {row.release: row for row in fed.participation.ledger.rows(1e-5)}
    row = rows[f"{MASKED}.masked"]
    assert row.mechanism == "secure aggregation among 5 clients"
    assert row.proven == "none"
    assert "the sum, which the server learns" in row.not_covered
    words = " ".join(fed.participation.ledger.words(1e-5))
    assert "Seen as a sum only" in words
    assert "No differential privacy" in words


@pytest.mark.parametrize(
    "privacy",
    [
        {"updates": "clipped", "noise_at": "server", "noise": 2.0},
        {"updates": "clipped", "noise": 2.0},
        {"updates": "dp_sgd", "noise": 2.0},
        {"updates": "gaussian", "noise": 0.01},
    ],
    ids=lambda privacy: "-".join(map(str, privacy.values())),
)
def test_it_goes_with_protected_updates(privacy: dict[str, Any], run_method: RunMethod, five: Clients) -> None:
    runs = [
        run_method("fedavg", five, model=SMALL["mlp"], settings={"privacy": PrivacyConfig(**privacy, **more)}, rounds=1)
        for more in ({}, {"secure_aggregation": True})
    ]
    plain, secure = runs
    assert farthest(plain.model, secure.model) <= 2 * STEP
    first, second = (
        [row for row in run.fed.participation.ledger.rows(1e-5) if row.field in ("model", "masked")] for run in runs
    )
    assert first[0].epsilon == second[0].epsilon
    assert second[0].mechanism == f"{first[0].mechanism}; secure aggregation among 5 clients"
    if privacy.get("noise_at") == "server":
        assert "which sees the sum before its noise" in second[0].not_covered
    if privacy["updates"] != "gaussian":
        scopes = {(r.unit, r.adjacency) for r in secure.fed.participation.ledger.rows(1e-5)}
        assert len(scopes) == 1  # keys and shares cost nothing, in the same scope
        assert "no finite" not in " ".join(secure.fed.participation.ledger.words(1e-5))


# -- who is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before", "answer"])
@pytest.mark.parametrize(("stage", "counts"), [(s, s == OPEN) for s in STAGES])
def test_who_is_lost_is_left_out_and_the_others_go_on(
    stage: str, counts: bool, before: bool, five: Clients, tmp_path: Path, run_method: RunMethod
) -> None:
    model, fed = losing(five, tmp_path / "lost", stage, {"b", "e"}, quorum=0.5, before=before)
    stayed = five.clients if counts else ["a", "c", "d"]
    expected = run_method("fedavg", five, model=SMALL["mlp"], rounds=1, clients=stayed)
    assert farthest(model, expected.model) <= STEP
    assert {f["client"] for f in fed.participation.as_dict()["failures"]} == {"b", "e"}


@pytest.mark.parametrize("stage", STAGES)
def test_too_few_are_a_clear_error(stage: str, five: Clients, tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match=rf'task "{stage}": 2 of 5 clients are left.*opened with 3 at least') as error:
        losing(five, tmp_path, stage, {"a", "b", "c"}, quorum=0.1)
    assert "gone" in str(error.value)


def test_without_a_quorum_a_round_with_too_few_is_left_out(
    five: Clients, tmp_path: Path, run_method: RunMethod
) -> None:
    model, fed = losing(five, tmp_path, MASKED, {"a", "b", "c"}, quorum=0)
    assert same_bits(model, run_method("fedavg", five, model=SMALL["mlp"], rounds=0).model)
    assert any("2 of 5 clients are left in the secure sum" in note for note in fed.participation.notes)


def test_the_quorum_counts_those_in_the_sum(five: Clients, tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match=r"4 of 5 clients are left.*100% must be"):
        losing(five, tmp_path / "one", MASKED, {"a"}, quorum=1.0)
    model, _ = losing(five, tmp_path / "two", OPEN, {"a"}, quorum=1.0)  # it is in the sum
    assert model


def test_a_higher_threshold_is_kept(five: Clients, tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="opened with 5 at least"):
        losing(five, tmp_path, MASKED, {"a"}, quorum=0.1, threshold=0.9)


def test_on_the_virtual_clock_rounds_go_on_with_those_who_can_be_reached(federate: Any) -> None:
    fed = federate("run", faults=FaultConfig(dropout=0.15), policy=Policy(quorum=0))
    found = find_method("fedavg")
    train = TrainConfig(rounds=6, local_epochs=1, batch_size=64)
    outcome = found.program(fed, found.config(train=train, model=SMALL["mlp"], **SECURE))
    assert outcome.model is not None
    assert fed.participation.as_dict()["failures"]


# -- what a client refuses ------------------------------------------------------------------------------------------


def spoiled(five: Clients, folder: Path, task: str, change: Callable[[dict[str, Any], str], None]) -> str:
    """Run, with a server that changes its requests for one task; what the clients say to that."""
    store = StateStore(folder)
    wire = WireEngine(lambda: TaskHost(five, store))

    class Spoiling(Losing):
        def ask(self, task_: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
            if task_ == task:
                bodies = {client: decode(body) for client, body in requests.items()}
                for client, body in bodies.items():
                    change(body["fields"], client)
                requests = {client: encode(body) for client, body in bodies.items()}
            return self.inner.ask(task_, requests, deadline)

    fed = Federation(Spoiling(wire, "", set(), True), five.clients, five.schema)
    found = find_method("fedavg")
    with pytest.raises(QuorumError) as error:
        found.program(fed, found.config(train=TrainConfig(rounds=1, local_epochs=1), model=SMALL["mlp"], **SECURE))
    assert "SecureSumError" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("task", "change", "sentence"),
    [
        (OPEN, lambda f, c: f.update(left=["b"]), r"Both secrets of \['b'\]"),
        (OPEN, lambda f, c: f.update(stayed=["a", "b", "c", "d"]), "are not those whose masks were used"),
        (OPEN, lambda f, c: f.update(stayed=["a", "b"], left=["c", "d", "e"]), "too few have stayed"),
        (OPEN, lambda f, c: f.update(shares={}), "Shares of some of the clients are missing"),
        (OPEN, lambda f, c: f.update(session="0" * 32), "takes part in no such secure sum"),
        (SHARES, lambda f, c: f.update(threshold=2), "2 of 5 is no safe threshold"),
        (MASKED, lambda f, c: f["secure"].update(peers=[c]), "does not fit the list of keys"),
        (MASKED, lambda f, c: f["secure"].update(peers=[*"abcdex"]), "does not fit the list of keys"),
    ],
)
def test_a_client_refuses_what_would_give_somebody_away(
    task: str, change: Callable[[dict[str, Any], str], None], sentence: str, five: Clients, tmp_path: Path
) -> None:
    assert re.search(sentence, spoiled(five, tmp_path, task, change))


def test_a_client_opens_a_sum_once(run_method: RunMethod, five: Clients) -> None:
    done = run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE, rounds=1)
    assert "secure sum" not in done.state("a")  # there is no secret left to ask for
    (asked,) = [ask for ask in done.asks if ask.task == OPEN]
    request = asked.requests["a"] | {"states": {"a": done.fed._versions["a"]}}
    host = TaskHost(five, done.store)
    answer = decode(host.handle("a", encode(request)))
    assert (answer["ok"], answer["error"]) == (False, "SecureSumError")
    assert "has opened it already" in answer["message"]


def test_masks_are_not_used_twice(run_method: RunMethod, five: Clients) -> None:
    done = run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE, rounds=1)
    (asked,) = [ask for ask in done.asks if ask.task == MASKED]
    version = asked.answers["a"]["state"]
    answer = decode(TaskHost(five, done.store).handle("a", encode(asked.requests["a"] | {"states": {"a": version}})))
    assert "masks are not used twice" in answer["message"]


def test_an_update_that_broke_down_is_not_sent(run_method: RunMethod, five: Clients) -> None:
    with pytest.raises(QuorumError, match=r"(not finite|more than 1024).*lower train.lr"):
        run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE, lr=1e30)


# -- resume ---------------------------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """The run stops here."""


class Cut(Losing):
    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        self.asked.append(task)
        answers = self.inner.ask(task, requests, deadline)
        if self.asked.count(self.task) == 2:
            raise PowerCutError
        return answers


@pytest.mark.parametrize("stage", STAGES[2:])
def test_a_killed_run_goes_on_with_new_keys_and_the_same_bits(stage: str, federate: Any) -> None:
    def finish(fed: Federation) -> dict[str, torch.Tensor]:
        found = find_method("fedavg")
        train = TrainConfig(rounds=3, local_epochs=1, batch_size=64)
        outcome = found.program(fed, found.config(train=train, model=SMALL["mlp"], **SECURE))
        assert outcome.model is not None
        return outcome.model

    whole = federate("whole")
    expected = finish(whole)
    with pytest.raises(PowerCutError):
        finish(federate("run", engine=Cut(federate("run").engine, stage, set(), True)))
    again = federate("run")
    assert again.round == 1
    assert same_bits(finish(again), expected)
    records = [fed.participation.as_dict() for fed in (whole, again)]
    for record in records:
        del record["client_seconds"], record["server_seconds"], record["timeline"]
    assert records[0] == records[1]


# -- AggEnhance -----------------------------------------------------------------------------------------------------


def test_scores_of_interior_points_are_seen_as_a_sum_only(run_method: RunMethod, digits: Any) -> None:
    plain = run_method("agg_enhance", digits, model=SMALL["cnn"], settings=POINTS, rounds=2)
    secure = run_method("agg_enhance", digits, model=SMALL["cnn"], settings=POINTS | SECURE, rounds=2)
    assert farthest(plain.model, secure.model) < 1e-4
    tasks = [ask.task for ask in secure.asks if ask.name != "tune_model"]
    sums = [*STAGES, "agg_enhance.clients.make_candidates", *STAGES[:2], "agg_enhance.clients.score_masked", STAGES[3]]
    assert tasks == sums * 2
    notes = " ".join(secure.fed.participation.notes)
    assert "a release beside the updates, which secure aggregation does not cover" in notes
    assert "probabilities" not in notes
    one = next(ask for ask in secure.asks if ask.name == "score_masked")
    assert all(set(reply) == {"masked"} for reply in one.replies.values())


@pytest.mark.parametrize("updates", ["clipped", "dp_sgd"])
def test_a_masked_update_is_charged_once(updates: str, tmp_path: Path) -> None:
    privacy = {"updates": updates, "target": 4.0, "budget": 4.01, "secure_aggregation": True}
    small = {"data": {"limit": 200}, "model": {"name": "mlp"}, "partition": {"name": "iid", "num_clients": 3}}
    train = {"rounds": 2, "local_epochs": 1}
    done = fedsynth.run("fedavg", privacy=privacy, train=train, runs=str(tmp_path), engine={"workers": 1}, **small)
    spent = {row.epsilon for row in done.summary.privacy if row.kind == "total"}
    assert spent
    assert all(3.5 < float(epsilon) <= 4.0 for epsilon in spent)
