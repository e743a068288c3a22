"""Asking again: only those who could not be reached, in the old order, with the quorum at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from fedsynth.federation import Client, Failure, Federation, Policy, QuorumError, Reply, leaves, task
from fedsynth.federation.port import Answers, Engine


class Said(Reply):
    text: str = leaves("what was said")


@task
def at_say(client: Client, text: str, broken: list[str]) -> Said:
    if client.id in broken:
        raise ZeroDivisionError("it cannot")
    client.state["times"] = client.state.get("times", 0) + 1
    return client.release(Said(text=f"{client.id}: {text} {client.state['times']}"))


class Away:
    """An engine that does not reach some clients for their first few requests, and notes whom it was to reach."""

    clock = 0.0

    def __init__(self, inner: Engine, away: Mapping[str, int]) -> None:
        self.inner, self.left = inner, Counter(away)
        self.asked: list[list[str]] = []

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        self.asked.append(list(requests))
        lost = [client for client in requests if self.left[client] > 0]
        self.left.subtract(lost)
        answers = self.inner.ask(task, {c: r for c, r in requests.items() if c not in lost}, deadline)
        answers.failures |= {client: Failure(client, "unavailable", "away") for client in lost}
        return answers

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def away(federate):
    def make(quorum: float = 0.0, **lost: int) -> Federation:
        engine = Away(federate("run").engine, {client.removeprefix("c"): times for client, times in lost.items()})
        return federate("run", engine=engine, policy=Policy(quorum=quorum))

    return make


def test_only_those_who_could_not_be_reached_are_asked_again_and_the_order_stays(away):
    fed = away(c0=1, c2=2)
    replies = fed.broadcast(at_say, attempts=5, to=["3", "2", "0", "1"], text="hi", broken=[])
    assert fed.engine.asked == [["3", "2", "0", "1"], ["2", "0"], ["2"]]
    assert {client: reply.text for client, reply in replies.items()} == {c: f"{c}: hi 1" for c in "3201"}
    assert list(replies) == ["3", "2", "0", "1"]
    assert replies.failures == {}
    assert fed.participation.asked == {"3": 1, "2": 3, "0": 2, "1": 1}
    assert fed.participation.failed == 3


def test_who_is_never_reached_is_a_failure_in_the_end(away):
    fed = away(c1=9)
    replies = fed.broadcast(at_say, attempts=3, text="hi", broken=[])
    assert fed.engine.asked[1:] == [["1"], ["1"]]
    assert list(replies) == ["0", "2", "3"]
    assert [(failure.client, failure.kind) for failure in replies.failures.values()] == [("1", "unavailable")]


def test_one_attempt_is_one(away):
    fed = away(c1=1)
    assert list(fed.broadcast(at_say, text="hi", broken=[])) == ["0", "2", "3"]
    assert len(fed.engine.asked) == 1


def test_a_task_that_fails_is_not_repeated(away):
    fed = away(c0=1, c3=1)
    replies = fed.broadcast(at_say, attempts=4, text="hi", broken=["1", "3"])
    assert fed.engine.asked == [["0", "1", "2", "3"], ["0", "3"]]
    assert list(replies) == ["0", "2"]
    assert {client: failure.kind for client, failure in replies.failures.items()} == {
        "1": "task error",
        "3": "task error",
    }


def test_the_quorum_is_of_those_who_answered_in_the_end(away):
    assert len(away(quorum=1.0, c0=1, c1=1, c2=2).broadcast(at_say, attempts=3, text="hi", broken=[])) == 4
    fed = away(quorum=0.75, c0=9, c1=9)
    with pytest.raises(QuorumError, match=r'"test_attempts.at_say": 2 of 4 clients answered, 75% must'):
        fed.broadcast(at_say, attempts=3, text="hi", broken=[])
    assert len(fed.engine.asked) == 3
    fed = away(quorum=1.0, c0=9)
    assert len(fed.broadcast(at_say, attempts=2, quorum=0.5, text="hi", broken=[])) == 3
    with pytest.raises(QuorumError, match="3 of 4"):
        fed.broadcast(at_say, attempts=2, text="hi", broken=[])


def test_scattered_requests_are_repeated_each_as_it_was(away):
    fed = away(c1=1, c2=1)
    requests = {client: {"text": f"for {client}", "broken": []} for client in "210"}
    replies = fed.scatter(at_say, requests, attempts=2)
    assert fed.engine.asked == [["2", "1", "0"], ["2", "1"]]
    assert [(client, reply.text) for client, reply in replies.items()] == [
        ("2", "2: for 2 1"),
        ("1", "1: for 1 1"),
        ("0", "0: for 0 1"),
    ]
