"""The local engine: the same bits however the work is done, and no worker, alive or dead, that anybody waits for."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from fedsynth.components.settings import TrainConfig
from fedsynth.engines.local import LocalEngine, choose_workers
from fedsynth.federation import Client, Done, Federation, Policy, Reply, leaves, task
from fedsynth.federation.host import TaskHost
from fedsynth.federation.journal import Journal
from fedsynth.federation.methods import find_method
from fedsynth.federation.payload import encode
from fedsynth.federation.store import StateStore
from fedsynth.learning.models import ModelSpec

LENIENT = Policy(quorum=0.0)


class Process(Reply):
    pid: int = leaves("the worker's process")
    times: int = leaves("how often the state was changed")


class Block(Reply):
    block: torch.Tensor = leaves("a block of numbers")


def _visited(client: Client) -> Process:
    client.state["times"] = client.state.get("times", 0) + 1
    return client.release(Process(pid=os.getpid(), times=client.state["times"]))


@task
def le_visit(client: Client) -> Process:
    return _visited(client)


@task
def le_die_once(client: Client, victim: str, marker: str) -> Process:
    """The victim's worker is killed the first time."""
    client.state["garbage"] = 1
    if client.id == victim and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    del client.state["garbage"]
    return _visited(client)


@task
def le_die_always(client: Client, victim: str) -> Process:
    if client.id == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _visited(client)


@task
def le_exit(client: Client) -> Process:
    os._exit(3)


@task
def le_sleep(client: Client, sleepers: list[str]) -> Process:
    if client.id in sleepers:
        time.sleep(600)
    return _visited(client)


@task
def le_block(client: Client, size: int) -> Block:
    return client.release(Block(block=torch.zeros(size)))


@task
def le_threads(client: Client) -> Process:
    return client.release(Process(pid=os.getpid(), times=torch.get_num_threads()))


def times(replies) -> dict[str, int]:
    return {client: reply.times for client, reply in replies.items()}


def until(condition, seconds: float = 30.0) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def worker_ids() -> set[int]:
    """The worker processes that this process has started and that live."""
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- the same bits ----------------------------------------------------------------------------------------------------

PLAIN = ModelSpec(name="mlp", hidden=(6,))
NORMED = ModelSpec(name="zda_cnn", channels=(3, 4))


def carried_out(federate, tmp_path, name: str, folder: str, model: ModelSpec, **where) -> tuple[bytes, bytes, dict]:
    """A method's model, the clients' private states and the traffic, after three rounds with samples of clients."""
    chosen = find_method(name)
    train = TrainConfig(rounds=3, local_epochs=1, batch_size=8, fraction=0.75)
    fed = federate(folder, **where)
    outcome = chosen.program(fed, chosen.config(train=train, model=model))
    store = StateStore(tmp_path / folder / "state")
    states = {client: store.read(client, version) for client, version in sorted(fed._versions.items())}
    return encode(outcome.model or {}), encode(states), fed.participation.bytes()


@pytest.mark.parametrize(
    ("name", "model", "private"),
    [("fedavg", PLAIN, False), ("moon", PLAIN, True), ("scaffold", PLAIN, True), ("fedbn", NORMED, True)],
)
def test_one_process_workers_and_wire_give_the_same_bits(federate, tmp_path, name, model, private):
    here = carried_out(federate, tmp_path, name, "here", model)
    assert carried_out(federate, tmp_path, name, "one", model, workers=1) == here
    assert carried_out(federate, tmp_path, name, "two", model, workers=2) == here
    assert carried_out(federate, tmp_path, name, "wire", model, wire=True) == here
    assert (here[1] != encode({})) is private


def test_work_is_shared_out_over_processes_with_one_thread_each(federate):
    fed = federate(workers=2)
    replies = fed.broadcast(le_threads)
    assert os.getpid() not in {reply.pid for reply in replies.values()}
    assert {reply.pid for reply in replies.values()} <= worker_ids()
    assert set(times(replies).values()) == {1}


# -- workers that die -------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_noted_and_its_task_tried_elsewhere(federate, tmp_path):
    fed = federate(workers=2)
    fed.broadcast(le_visit)
    before = worker_ids()
    replies = fed.broadcast(le_die_once, victim="2", marker=str(tmp_path / "marker"))
    assert times(replies) == dict.fromkeys("0123", 2), "and the first try left nothing in the state"
    [note] = fed.participation.notes
    for words in ('client "2"', '.le_die_once"', "signal 9", "tried again"):
        assert words in note, words
    assert fed.participation.failed == 0
    assert len(worker_ids() - before) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_that_always_kills_its_worker_is_a_crash_and_nothing_hangs(federate, workers):
    fed = federate(workers=workers, policy=LENIENT)
    replies = fed.broadcast(le_die_always, victim="1")
    assert replies.failures["1"].kind == "crashed"
    assert 'client "1"' in replies.failures["1"].message
    assert times(replies) == {"0": 1, "2": 1, "3": 1}
    assert times(fed.broadcast(le_visit)) == {"0": 2, "1": 1, "2": 2, "3": 2}


def test_workers_that_all_die_all_the_time_come_to_an_end(federate):
    fed = federate(workers=2, policy=LENIENT)
    replies = fed.broadcast(le_exit)
    assert {failure.kind for failure in replies.failures.values()} == {"crashed"}
    assert "exit code 3" in replies.failures["0"].message
    assert len(replies.failures) == 4


def test_workers_killed_while_idle_are_replaced(federate):
    fed = federate(workers=2)
    fed.broadcast(le_visit)
    for pid in worker_ids():
        os.kill(pid, signal.SIGKILL)
    assert times(fed.broadcast(le_visit)) == dict.fromkeys("0123", 2)


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_task_past_the_deadline_is_a_timeout_and_the_engine_goes_on(federate):
    fed = federate(workers=2, policy=LENIENT)
    fed.broadcast(le_visit)
    fed.policy = Policy(quorum=0.0, deadline=3.0)
    started = time.monotonic()
    replies = fed.broadcast(le_sleep, sleepers=["0"])
    assert time.monotonic() - started < 30
    fed.policy = LENIENT
    assert {client: failure.kind for client, failure in replies.failures.items()} == {"0": "timeout"}
    assert "3 s" in replies.failures["0"].message
    assert times(fed.broadcast(le_visit)) == {"0": 2, "1": 3, "2": 3, "3": 3}


def test_clients_not_begun_before_the_deadline_time_out_too(federate):
    fed = federate(workers=2)
    fed.broadcast(le_visit)
    fed.policy = Policy(quorum=0.0, deadline=1.0)
    replies = fed.broadcast(le_sleep, sleepers=list("0123"))
    assert {failure.kind for failure in replies.failures.values()} == {"timeout"}
    assert sorted("started" in failure.message for failure in replies.failures.values()) == [False, False, True, True]


# -- nothing is left behind -------------------------------------------------------------------------------------------


def test_closing_ends_the_workers_and_removes_the_scratch_folder(federate, tmp_path):
    fed = federate(workers=2, policy=Policy(quorum=0.0, deadline=20.0))
    fed.broadcast(le_die_once, victim="0", marker=str(tmp_path / "marker"))
    fed.broadcast(le_die_always, victim="1")
    workers, scratch = worker_ids(), fed.engine._scratch
    assert scratch.is_dir()
    assert list(scratch.iterdir()) == [], "requests and replies nobody holds are gone already"
    fed.engine.close()
    fed.engine.close()
    assert not scratch.exists()
    assert until(lambda: all(map(gone, workers)))


def test_replies_wait_in_files_that_go_when_nobody_holds_them(federate):
    fed = federate(workers=2)
    replies = fed.broadcast(le_block, size=10_000)
    files = [blob._content for blob in replies._blobs.values()]
    assert all(isinstance(file, Path) and file.stat().st_size > 40_000 for file in files)
    assert fed.engine._scratch in files[0].parents
    assert replies["3"].block.shape == (10_000,)
    assert all(file.exists() for file in files), "a reply can be read again"
    del replies
    gc.collect()
    assert not any(file.exists() for file in files)


def _be_a_server(digits, folder: Path) -> None:
    """A server process in the middle of a long task."""
    engine = LocalEngine(TaskHost(digits, StateStore(folder / "state")), 2)
    fed = Federation(engine, digits.clients, digits.schema, journal=Journal(None))
    fed.broadcast(le_visit)
    (folder / "workers.part").write_text(" ".join(map(str, worker_ids())))
    (folder / "workers.part").rename(folder / "workers")
    fed.broadcast(le_sleep, sleepers=list("0123"))


def test_workers_disappear_with_a_parent_that_is_killed(digits, tmp_path):
    server = multiprocessing.get_context("fork").Process(target=_be_a_server, args=(digits, tmp_path))
    server.start()
    assert until((tmp_path / "workers").exists)
    workers = [int(pid) for pid in (tmp_path / "workers").read_text().split()]
    assert len(workers) == 2
    assert not any(map(gone, workers))
    os.kill(server.pid, signal.SIGKILL)
    server.join()
    assert until(lambda: all(map(gone, workers)))


# -- how many workers -------------------------------------------------------------------------------------------------


def test_one_worker_or_a_gpu_means_one_process():
    assert choose_workers(1, "cpu") == (0, "")
    assert choose_workers(3, "cpu") == (3, "")
    count, why = choose_workers(3, "cuda")
    assert count == 0
    assert "cuda" in why


@task
def le_done(client: Client) -> Done:
    return client.release(Done())


def test_more_clients_than_workers_are_all_served(federate):
    fed = federate(workers=3)
    for _ in range(10):
        assert list(fed.broadcast(le_done)) == list("0123")
