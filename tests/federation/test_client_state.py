"""Private state: versions that only an accepted reply makes current, and files that stay where they belong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Policy, Reply, State, leaves, task
from fedsynth.federation.host import TaskHost
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.store import StateStore


class Count(Reply):
    count: int = leaves("how often the client was asked")


@task
def cs_count(client: Client, fail: bool = False) -> Count:
    client.state["count"] = client.state.get("count", 0) + 1
    client.state["tensor"] = torch.full((3,), float(client.state["count"]))
    if fail:
        raise ValueError("after the change")
    return client.release(Count(count=client.state["count"]))


@task
def cs_look(client: Client) -> Count:
    return client.release(Count(count=client.state.get("count", 0)))


@task
def cs_forget(client: Client) -> Count:
    del client.state["count"]
    return client.release(Count(count=len(client.state)))


def counts(replies) -> dict[str, int]:
    return {client: reply.count for client, reply in replies.items()}


def versions(folder: Path, client: str) -> set[str]:
    return {path.stem for path in (folder / "state" / client).glob("*.safetensors")}


def test_state_lasts_from_task_to_task(federate):
    fed = federate()
    for expected in (1, 2, 3):
        assert counts(fed.broadcast(cs_count)) == dict.fromkeys("0123", expected)
    assert counts(fed.broadcast(cs_look)) == dict.fromkeys("0123", 3)
    assert counts(fed.broadcast(cs_forget, to=["0"])) == {"0": 1}
    assert counts(fed.broadcast(cs_look)) == {"0": 0, "1": 3, "2": 3, "3": 3}


@pytest.mark.parametrize("where", [{"workers": 0}, {"workers": 2}, {"wire": True}], ids=["here", "workers", "wire"])
def test_a_task_that_fails_after_changing_its_state_changes_nothing(federate, where):
    fed = federate(policy=Policy(quorum=0.0), **where)
    fed.broadcast(cs_count)
    replies = fed.scatter(cs_count, {"0": {"fail": True}, "1": {"fail": False}})
    assert set(replies.failures) == {"0"}
    assert counts(fed.broadcast(cs_look)) == {"0": 1, "1": 2, "2": 1, "3": 1}


def test_reading_makes_no_new_version(federate, tmp_path):
    fed = federate("run")
    fed.broadcast(cs_count)
    before = versions(tmp_path / "run", "0")
    fed.broadcast(cs_look)
    assert versions(tmp_path / "run", "0") == before


def test_a_request_that_is_carried_out_twice_has_the_effect_of_one(digits, tmp_path):
    host = TaskHost(digits, StateStore(tmp_path))
    first = {
        "task": "test_client_state.cs_count",
        "id": "0",
        "step": 1,
        "seed": 0,
        "round": 1,
        "states": {},
        "fields": {},
    }
    answers = [decode(host.handle("0", encode(first))) for _ in range(3)]
    assert [answer["fields"]["count"] for answer in answers] == [1, 1, 1]
    assert {answer["state"] for answer in answers} == {"000001-0"}
    second = first | {"id": "1", "states": {"0": "000001-0"}}
    answers = [decode(host.handle("0", encode(second))) for _ in range(3)]
    assert [answer["fields"]["count"] for answer in answers] == [2, 2, 2]


def test_pruning_keeps_what_the_last_two_checkpoints_need_and_no_more(federate, tmp_path):
    fed = federate("run")
    asked_in = {"0": {1, 2, 3, 4, 5, 6}, "1": {1, 5}, "2": {2, 4, 6}, "3": {1}}
    kept: list[dict[str, str]] = [{}]
    for index in fed.rounds("count", 6, State()):
        fed.broadcast(cs_count, to=[c for c, rounds in asked_in.items() if index in rounds])
        for client in "0123":  # in the middle of a round: this one's, and those of the last two checkpoints
            now, needed = fed._versions.get(client), {old.get(client) for old in kept[-2:]}
            on_disk = versions(tmp_path / "run", client)
            assert on_disk >= (needed | {now}) - {None}, (index, client)
            if index in asked_in[client]:
                assert on_disk == (needed | {now}) - {None}, (index, client)
        kept.append(dict(fed._versions))


def test_several_changes_in_one_round_do_not_pile_up_over_the_rounds(federate, tmp_path):
    fed = federate("run")
    sizes = []
    for _ in fed.rounds("count", 6, State()):
        for _ in range(3):
            fed.broadcast(cs_count)
        sizes.append(len(versions(tmp_path / "run", "0")))
    assert sizes[-1] == sizes[-2] == sizes[-3] <= 7


WICKED = [
    "..",
    ".",
    "",
    "../../up",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a%2fb",
    "~",
    "x" * 400,
    "病院" * 60,
    "\x00",
    "\ud800",
]


def test_ids_never_leave_the_folder_and_never_share_a_file(tmp_path):
    store = StateStore(tmp_path / "state")
    for number, client in enumerate(WICKED):
        store.write(client, "000001-0", 1, None, {"number": number})
    assert [store.read(client, "000001-0")["number"] for client in WICKED] == list(range(len(WICKED)))
    assert os.listdir(tmp_path) == ["state"]
    assert all(path.is_dir() for path in (tmp_path / "state").iterdir())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=8), min_size=2, max_size=2, unique=True))
def test_different_ids_have_different_folders(ids):
    store = StateStore(Path("/nowhere/state"))
    one, other = (store._path(client, "000001-0") for client in ids)
    assert one != other
    assert one.parent.parent == other.parent.parent == store.folder
    assert one.parent.name not in {".", ".."}


@pytest.mark.parametrize("version", ["../1-0", "1", "", "x-0", "000001-../../a", "1-0/../.."])
def test_a_version_that_is_not_one_is_refused(tmp_path, version):
    with pytest.raises(FedsynthError, match="not the name of a state version"):
        StateStore(tmp_path).read("0", version)


def test_damaged_state_is_an_error_that_names_the_client(federate, tmp_path):
    fed = federate("run", policy=Policy(quorum=0.0))
    fed.broadcast(cs_count)
    [file] = (tmp_path / "run" / "state" / "2").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    replies = fed.broadcast(cs_count)
    assert set(replies.failures) == {"2"}
    assert 'client "2"' in replies.failures["2"].message
