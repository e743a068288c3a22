"""Where a request meets the data: bytes in, bytes out, the same on every engine."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation.client import Client, PrivateState
from fedsynth.federation.payload import Fields, decode, encode, not_finite
from fedsynth.federation.port import POOLED, SERVER
from fedsynth.federation.store import StateStore
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.learning.effort import measured_effort
from fedsynth.privacy import Budget, Guarantee
from fedsynth.seeding import Secret, derive, seed_torch


class DataHolder(Protocol):
    """Whatever can hand out the data of a client: a simulated federation, or one site's own files."""

    @property
    def schema(self) -> Schema:
        """What the examples look like."""

    def client(self, client: str, /) -> ClientData:
        """The data of one client."""

    def pooled(self, part: str, /) -> Dataset:
        """One part of everybody's data, where somebody holds it all."""


class NotFiniteError(FedsynthError):
    """A reply with numbers that are not finite: it is not sent."""


@dataclass
class Carried:
    """What came of a request, before anything of it has left or is kept.

    The answer, how to keep the state, under which guarantees something was released (also where the task failed after
    that), and whether the task has looked at records or at what follows from them.
    """

    answer: Fields
    keep: Callable[[], None] = lambda: None
    guarantees: Mapping[str, Guarantee] = field(default_factory=dict)
    looked: bool = True


@dataclass
class TaskHost:
    """Runs tasks for the clients whose data it can reach.

    `secret` gives the key that privacy noise comes from; without one it comes from the seed (see `Client.noise_rng`).
    """

    data: DataHolder
    store: StateStore
    device: str = "cpu"
    secret: Secret | None = None
    always_keep: bool = False  # a new version of the state after every task: whether one changed it does not show

    def handle(self, client_id: str, blob: bytes) -> bytes:
        """Carry out one request. Errors become a reply that says so; nothing is kept of a failed task."""
        started = time.perf_counter()
        try:
            done = self.carry_out(client_id, decode(blob))
            done.keep()
        except Exception as error:
            done = Carried(failure(error))
        return finished(done.answer, time.perf_counter() - started)

    def carry_out(self, client_id: str, request: Fields) -> Carried:
        """Run the task of a request; an error becomes an answer that says so."""
        client: Client | None = None
        try:
            task = find_task(request["task"])
            client = self._client(client_id, request)
            client.answers(task.name, request["fields"])
            with (
                reproducible(derive(client.seed, "torch", task.function.__name__, *client.place_in_run)),
                measured_effort() as effort,
            ):
                reply = task.run(client, request["fields"])
            if reply is None or reply is not client.released or client.sealed is None:
                raise TaskError(f'The task "{task.name}" returned something that did not go through client.release.')
            if not client_id.startswith(SERVER):
                _require_finite(client.sealed.opened())
        except Exception as error:
            return Carried(failure(error), guarantees=client.guarantees if client else {})
        version = f"{request['step']:06d}-{request['id']}" if client.state.changed or self.always_keep else None
        answer = {
            "ok": True,
            "fields": client.sealed,
            "state": version,
            "guarantees": {name: guarantee.as_dict() for name, guarantee in client.guarantees.items()},
            "epochs": effort.examples / max(1, client.public_size),
        }
        state = client.state
        keep = (lambda: state.save(version, request["step"])) if version else (lambda: None)
        return Carried(answer, keep, client.guarantees, client.looked or bool(client.state.private_reads))

    def _client(self, client_id: str, request: Fields) -> Client:
        return Client(
            client_id,
            self._data_of(client_id),
            self.data.schema,
            PrivateState(self.store, client_id, request["states"].get(client_id)),
            request["seed"],
            request["round"],
            self.device,
            Budget(**request["budget"]) if request.get("budget") else None,
            self.secret,
            request.get("turn", 0),
        )

    def _data_of(self, client_id: str) -> ClientData:
        if client_id.startswith(SERVER):
            nothing = Dataset(np.zeros((0, *self.data.schema.shape), np.float32), np.zeros(0, np.int64))
            return ClientData(nothing, nothing, nothing)
        if client_id != POOLED:
            return self.data.client(client_id)
        return ClientData(self.data.pooled("train"), self.data.pooled("validation"), self.data.pooled("test"))


def failure(error: Exception) -> Fields:
    """The answer of a task that failed."""
    trace = "".join(traceback.format_exception(error))
    return {"ok": False, "error": type(error).__name__, "message": str(error), "traceback": trace}


def finished(answer: Fields, seconds: float) -> bytes:
    """An answer as bytes, with the seconds that it took.

    That is a number of fixed width: the bytes of an answer are counted, and must be the same in every run.
    """
    return encode(answer | ({"seconds": np.array(seconds)} if answer["ok"] else {}))


def _require_finite(fields: Mapping[str, Any]) -> None:
    broken = next(not_finite(fields), None)
    if broken:
        raise NotFiniteError(f'"{broken.split(".")[0]}" of the reply holds numbers that are not finite')


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """One thread and a seeded torch generator, put back afterwards: results do not depend on the number of workers."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_torch(seed % 2**63)
        if threads != 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
