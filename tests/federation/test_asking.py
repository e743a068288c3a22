"""Asking clients: broadcast, scatter, relay, samples, quorums, and the record of who took part."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Done, Failure, Policy, QuorumError, Reply, State, leaves, task
from fedsynth.federation.participation import KEPT_FAILURES, Participation
from fedsynth.federation.payload import encode
from fedsynth.federation.port import Answers, Blob
from fedsynth.federation.store import StateStore
from fedsynth.learning.effort import count_examples


class Echo(Reply):
    text: str = leaves("what was said")


class Bag(Reply):
    path: list[str] = leaves("who had it")
    total: torch.Tensor = leaves("a running sum")


@task
def as_echo(client: Client, text: str) -> Echo:
    count_examples(len(client.data.train))
    return client.release(Echo(text=f"{client.id}: {text}"))


@task
def as_add(client: Client, path: list[str], total: torch.Tensor, broken: list[str]) -> Bag:
    if client.id in broken:
        raise RuntimeError("the bag stays as it was")
    return client.release(Bag(path=[*path, client.id], total=total + int(client.id) + 1))


@task
def as_fail(client: Client, who: list[str]) -> Done:
    if client.id in who:
        raise ZeroDivisionError(f"{client.id} cannot")
    return client.release(Done())


@task
def as_draw(client: Client) -> Echo:
    return client.release(Echo(text=f"{client.rng('test').random()} {torch.rand(1).item()}"))


class HandedOn(Reply):
    drawn: list[float] = leaves("random numbers")
    place: int = leaves("how many came before")


@task
def as_hand_on(client: Client, drawn: list[float]) -> HandedOn:
    numbers = [*drawn, float(client.rng("draw").random())]
    return client.release(HandedOn(drawn=numbers, place=len(drawn)))


LENIENT = Policy(quorum=0.0)


def test_broadcast_asks_all_or_those_named_and_answers_in_their_order(federate):
    fed = federate()
    assert {c: r.text for c, r in fed.broadcast(as_echo, text="hi").items()} == {c: f"{c}: hi" for c in "0123"}
    assert list(fed.broadcast(as_echo, to=["3", "1"], text="hi")) == ["3", "1"]


def test_the_order_of_replies_is_that_of_asking_on_every_engine(federate):
    for where in ({"workers": 0}, {"workers": 2}, {"wire": True}):
        assert list(federate(**where).broadcast(as_echo, to=["2", "0", "3"], text="")) == ["2", "0", "3"]


def test_scatter_sends_each_its_own(federate):
    replies = federate().scatter(as_echo, {"2": {"text": "a"}, "0": {"text": "b"}})
    assert [reply.text for reply in replies.values()] == ["2: a", "0: b"]


def test_asking_nobody_gives_no_replies(federate):
    for workers in (0, 2):
        assert len(federate(workers=workers).broadcast(as_echo, to=[], text="hi")) == 0


def test_relay_hands_the_payload_on_along_each_route(federate):
    fed = federate()
    start = {"path": [], "total": torch.zeros(1), "broken": []}
    first, second = fed.relay(as_add, start, [["0", "1", "2"], ["3", "0"]])
    assert first.visited == first.fields["path"] == ["0", "1", "2"]
    assert first.fields["total"].item() == 6
    assert second.visited == ["3", "0"]
    assert second.fields["total"].item() == 5
    assert start["path"] == []


def test_a_failed_hop_is_skipped_and_the_payload_survives(federate):
    fed = federate(policy=LENIENT)
    [bag] = fed.relay(as_add, {"path": [], "total": torch.zeros(1), "broken": ["1", "3"]}, [["0", "1", "2", "3"]])
    assert bag.visited == bag.fields["path"] == ["0", "2"]
    assert bag.fields["total"].item() == 4
    assert {client: failure.kind for client, failure in bag.failures.items()} == {"1": "task error", "3": "task error"}


def test_a_relay_that_fails_everywhere_returns_what_it_was_given(federate):
    fed = federate(policy=LENIENT)
    [bag] = fed.relay(as_add, {"path": [], "total": torch.ones(1), "broken": list("0123")}, [["0", "1"]])
    assert bag.visited == []
    assert bag.fields["total"].item() == 1


def test_a_route_may_be_asked_who_comes_next(federate):
    fed = federate(policy=LENIENT)

    def again_until_three(payload) -> str | None:
        return None if len(payload.visited) == 3 else "2" if payload.tried.count("1") == 2 else "1"

    start = {"path": [], "total": torch.zeros(1), "broken": []}
    first, second = fed.relay(as_add, [start, start | {"path": ["x"]}], [again_until_three, ["3"]])
    assert first.tried == first.visited == first.fields["path"] == ["1", "1", "2"]
    assert second.fields["path"] == ["x", "3"]


def test_a_client_that_a_relay_comes_back_to_draws_other_numbers(federate):
    for where in ({"workers": 0}, {"workers": 2}, {"wire": True}):
        [bag] = federate(**where).relay(as_hand_on, {"drawn": []}, [["0", "1", "0", "0"]])
        assert len(set(bag.fields["drawn"])) == 4
        alone = federate(**where).broadcast(as_hand_on, to=["0"], drawn=[])["0"].drawn
        assert bag.fields["drawn"][0] == alone[0]  # the first visit is as ever


def test_what_is_not_handed_on_is_kept_for_each_client(federate):
    [bag] = federate().relay(as_hand_on, {"drawn": []}, [["0", "1"]])
    assert {client: report["place"] for client, report in bag.reports.items()} == {"0": 0, "1": 1}


def test_routes_that_meet_at_a_client_are_refused(federate):
    with pytest.raises(FedsynthError, match="meet"):
        federate().relay(as_add, {"path": [], "total": torch.ones(1), "broken": []}, [["0", "1"], ["2", "1"]])


def test_a_sample_depends_on_seed_and_round_alone(federate):
    def drawn(seed: int, disturb: bool) -> list[list[str]]:
        fed, samples = federate(seed=seed), []
        for _ in fed.rounds("sampling", 12, State()):
            if disturb:
                np.random.default_rng().random()
                fed.rng("something else").random()
                fed.sample(0.25)
            samples.append(fed.sample(0.5))
        return samples

    assert drawn(1, False) == drawn(1, True)
    assert drawn(1, False) != drawn(2, False)
    assert len(set(map(tuple, drawn(1, False)))) > 1, "another sample every round"


def test_a_sample_is_in_the_federations_order_and_never_empty(federate):
    fed = federate()
    for fraction, size in ((0.0001, 1), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)):
        chosen = fed.sample(fraction)
        assert len(chosen) == size
        assert chosen == sorted(chosen)
    assert set(fed.sample(0.5, among=["1", "2"])) <= {"1", "2"}


def test_clients_draw_the_same_numbers_whoever_else_is_asked(federate):
    all_of_them = {c: r.text for c, r in federate().broadcast(as_draw).items()}
    assert len(set(all_of_them.values())) == 4
    for where in ({"workers": 2}, {"wire": True}):
        assert {c: r.text for c, r in federate(**where).broadcast(as_draw).items()} == all_of_them
    assert federate().broadcast(as_draw, to=["2"])["2"].text == all_of_them["2"]


def test_a_missed_quorum_names_client_round_and_task_and_carries_the_traceback(federate):
    fed = federate("run")
    rounds = fed.rounds("failing", 3, State())
    next(rounds)
    fed.broadcast(as_fail, who=[])
    next(rounds)
    with pytest.raises(QuorumError) as caught:
        fed.broadcast(as_fail, who=["2"])
    text = str(caught.value)
    for words in (
        "Round 2",
        '"test_asking.as_fail"',
        "3 of 4",
        'client "2"',
        "ZeroDivisionError: 2 cannot",
        "in as_fail",
    ):
        assert words in text, words


def test_a_quorum_lets_the_rest_go_on(federate):
    fed = federate(policy=Policy(quorum=0.5))
    assert list(fed.broadcast(as_fail, who=["0", "3"])) == ["1", "2"]
    with pytest.raises(QuorumError, match="1 of 4 clients answered, 50% must"):
        fed.broadcast(as_fail, who=["0", "1", "3"])


def test_participation_is_counted(federate, digits):
    fed = federate(policy=LENIENT)
    fed.broadcast(as_echo, text="hi")
    fed.broadcast(as_echo, to=["1"], text="hi")
    fed.broadcast(as_fail, who=["1", "2"])
    record = fed.participation
    assert record.asked == {"0": 2, "1": 3, "2": 2, "3": 2}
    assert record.answered == {"0": 2, "1": 2, "2": 1, "3": 2}
    assert record.client_epochs == pytest.approx(5)
    assert record.client_seconds > 0
    assert record.failed == 2
    assert [(row["client"], row["task"], row["kind"], row["round"]) for row in record.failures] == [
        ("1", "test_asking.as_fail", "task error", 0),
        ("2", "test_asking.as_fail", "task error", 0),
    ]
    traffic = record.bytes()
    assert traffic["up"] == sum(row["up"] for row in traffic["by_task"].values()) > 0
    assert traffic["down"] == sum(row["down"] for row in traffic["by_task"].values()) > 0


def test_the_record_survives_json(federate):
    fed = federate(policy=LENIENT)
    fed.broadcast(as_fail, who=["1"])
    kept = json.loads(json.dumps(fed.participation.as_dict()))
    assert Participation.from_dict(kept) == fed.participation


def test_failures_beyond_what_is_listed_are_still_counted():
    record = Participation()
    for _ in range(KEPT_FAILURES + 10):
        record.failure(Failure("0", "lost", "gone"), "t", 1)
    assert record.failed == KEPT_FAILURES + 10
    assert len(record.failures) == KEPT_FAILURES


def test_bytes_are_the_same_in_every_run(federate):
    def traffic(**where) -> dict:
        fed = federate(**where)
        for _ in range(5):
            fed.broadcast(as_echo, text="hi")
        return fed.participation.bytes()

    assert traffic() == traffic() == traffic(workers=2) == traffic(wire=True)


class Babbling:
    """An engine whose clients answer with whatever it is told."""

    clock = 0.0

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    def ask(self, task, requests, deadline):
        return Answers({} if self.answer is None else {client: Blob(self.answer) for client in requests})

    def close(self):
        pass


FITTING = {"ok": True, "fields": {"text": "x"}, "state": None, "guarantees": {}, "epochs": 0.0, "seconds": 0.0}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense",
        encode({}),
        encode({"ok": True}),
        encode({"ok": False}),
        encode(FITTING | {"fields": {}}),
        encode(FITTING | {"fields": {"text": "x", "more": 1}}),
        encode(FITTING | {"fields": {"text": 3}}),
        encode(FITTING | {"fields": [1]}),
        encode({key: value for key, value in FITTING.items() if key != "seconds"}),
        encode(FITTING | {"epochs": "many"}),
    ],
)
def test_an_unusable_reply_is_a_failure_of_that_client(federate, answer):
    fed = federate(engine=Babbling(answer), policy=LENIENT)
    replies = fed.broadcast(as_echo, to=["0"], text="hi")
    assert len(replies) == 0
    assert replies.failures["0"].kind == "task error"


def test_a_client_without_reply_or_reason_is_lost(federate):
    fed = federate(engine=Babbling(None), policy=LENIENT)
    assert fed.broadcast(as_echo, to=["0"], text="hi").failures["0"].kind == "lost"


def test_pooled_data_exists_in_simulations_only(federate, digits, tmp_path):
    from fedsynth.engines.wire import WireEngine
    from fedsynth.federation import Federation
    from fedsynth.federation.host import TaskHost

    engine = WireEngine(lambda: TaskHost(digits, StateStore(tmp_path)))
    with pytest.raises(FedsynthError, match="simulations only"):
        Federation(engine, digits.clients, digits.schema).pooled()
    fed = federate()
    assert fed.broadcast(as_echo, to=[fed.pooled()], text="all")["*"].text == "*: all"


class Weighed(Reply):
    model: dict[str, torch.Tensor] = leaves("weights")


@task
def as_broken(client: Client, who: str) -> Weighed:
    value = float("nan") if client.id == who else 1.0
    return client.release(Weighed(model={"w": torch.full((2,), value)}))


@pytest.mark.parametrize("wire", [False, True])
def test_a_reply_that_is_not_finite_is_a_failure_of_that_client_by_name(federate, wire):
    replies = federate(wire=wire, policy=Policy(quorum=0.5)).broadcast(as_broken, who="1")
    assert sorted(replies) == ["0", "2", "3"]
    assert str(replies.failures["1"]).startswith('client "1": task error: NotFiniteError: "model" of the reply')
    with pytest.raises(QuorumError, match='client "1"'):
        federate(wire=wire).broadcast(as_broken, who="1")
