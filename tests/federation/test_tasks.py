"""Tasks: requests and replies are checked on arrival, and nothing leaves a client without being declared."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Done, Policy, Reply, leaves, task
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.learning.weights import Weights
from fedsynth.privacy import GaussianEvent, Guarantee

GAUSSIAN = Guarantee(mechanism="Gaussian noise, std 2", events=(GaussianEvent(mu=0.5),), covered="the number")


class Number(Reply):
    number: float = leaves("a number")


@task
def tt_double(client: Client, value: float, times: int = 1) -> Number:
    return client.release(Number(number=value * 2**times))


@task
def tt_smuggle(client: Client) -> Number:
    client.release(Number(number=1.0))
    return Number(number=float(len(client.data.train)))  # not what was released


@task
def tt_nothing(client: Client) -> Done:
    return None  # type: ignore[return-value]


@task
def tt_plain(client: Client) -> Number:
    return {"number": 1.0}  # type: ignore[return-value]


class Anything(Reply):
    value: Any = leaves("anything")


@task
def tt_unsendable(client: Client) -> Anything:
    client.state["seen"] = True
    return client.release(Anything(value=object()))


@task
def tt_weights(client: Client, model: Weights) -> Done:
    return client.release(Done())


@task
def tt_protected(client: Client) -> Number:
    return client.release(Number(number=1.0), number=GAUSSIAN)


@task
def tt_mistaken(client: Client) -> Number:
    return client.release(Number(number=1.0), nmber=GAUSSIAN)


def fail_of(federate, asked, **fields):
    fed = federate()
    replies = fed.broadcast(asked, to=["0"], **fields)
    return replies.failures["0"]


@pytest.fixture
def lenient(federate):
    return lambda: federate(policy=Policy(quorum=0.0))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "value"),
        ({"value": 1.0, "tiems": 2}, "tiems"),
        ({"value": "many"}, "value"),
        ({"value": 1.0, "times": 1.5}, "times"),
        ({"value": None}, "value"),
    ],
    ids=["missing", "unknown", "text for a number", "float for an integer", "nothing"],
)
def test_a_request_that_does_not_fit_is_refused_by_name(lenient, fields, name):
    failure = fail_of(lenient, tt_double, **fields)
    assert failure.kind == "task error"
    assert f'"{name}"' in failure.message
    assert '"test_tasks.tt_double"' in failure.message


def test_weights_must_be_tensors(lenient):
    assert '"model' in fail_of(lenient, tt_weights, model={"w": [1.0, 2.0]}).message
    assert '"model' in fail_of(lenient, tt_weights, model={"w": np.zeros(3)}).message


def test_a_request_that_fits_is_carried_out(federate):
    replies = federate().broadcast(tt_double, value=1.5, times=2)
    assert {client: reply.number for client, reply in replies.items()} == dict.fromkeys("0123", 6.0)


def test_a_reply_field_without_a_description_is_refused_when_the_class_is_made():
    with pytest.raises(TaskError, match="Careless.secret"):

        class Careless(Reply):
            secret: float


def test_a_field_that_a_subclass_adds_needs_a_description_too():
    with pytest.raises(TaskError, match="Heir.more"):

        class Heir(Number):
            more: float = 0.0


def test_a_reply_has_no_room_for_extra_fields():
    with pytest.raises(TaskError, match="smuggled"):
        tt_double.read_reply({"number": 1.0, "smuggled": 2.0})


@pytest.mark.parametrize("asked", [tt_smuggle, tt_nothing, tt_plain], ids=lambda t: t.name)
def test_what_was_not_released_does_not_leave(lenient, asked):
    failure = fail_of(lenient, asked)
    assert failure.kind == "task error"
    assert "client.release" in failure.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reply_that_cannot_be_sent_is_a_task_error(federate, workers):
    fed = federate(workers=workers, policy=Policy(quorum=0.0))
    failure = fed.broadcast(tt_unsendable, to=["1"]).failures["1"]
    assert failure.kind == "task error"
    assert '"value"' in failure.message
    assert fed.participation.notes == []


def test_a_guarantee_for_a_field_that_is_not_there_is_refused(lenient):
    assert "nmber" in fail_of(lenient, tt_mistaken).message


def test_an_unknown_task_is_named_with_the_nearest():
    with pytest.raises(TaskError, match=r'"test_tasks.tt_dubble".*"test_tasks.tt_double"'):
        find_task("test_tasks.tt_dubble")


def test_a_task_must_say_what_it_returns():
    def tt_vague(client: Client) -> dict:
        return {}

    with pytest.raises(TaskError, match="tt_vague"):
        task(tt_vague)


def test_two_tasks_of_one_name_in_different_modules_are_refused():
    twin = types.FunctionType(tt_double.function.__code__, globals(), "tt_double")
    twin.__annotations__ = dict(tt_double.function.__annotations__)
    twin.__module__ = "elsewhere.test_tasks"
    with pytest.raises(TaskError, match="tt_double.*elsewhere"):
        task(twin)


def test_what_leaves_is_recorded_with_its_guarantee(federate):
    fed = federate()
    fed.broadcast(tt_double, value=1.0)
    fed.broadcast(tt_double, to=["0"], value=1.0)
    fed.broadcast(tt_protected, to=["0", "1"])
    rows = [row for row in fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert [(row.release, row.what, row.clients, row.times, row.mechanism) for row in rows] == [
        ("test_tasks.tt_double.number", "a number", ["0"], 2, "none"),
        ("test_tasks.tt_double.number", "a number", ["1", "2", "3"], 1, "none"),
        ("test_tasks.tt_protected.number", "a number", ["0", "1"], 1, "Gaussian noise, std 2"),
    ]
    assert [row.epsilon for row in rows] == [None, None, pytest.approx(1.9931, abs=6e-5)]


def test_a_client_that_is_not_part_of_the_federation_cannot_be_asked(federate):
    with pytest.raises(FedsynthError, match="stranger"):
        federate().broadcast(tt_double, to=["stranger"], value=1.0)
