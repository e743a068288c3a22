"""Where a request meets the data: bytes in, bytes out, the same on every engine."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.federation.client import Client, PrivateState
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.port import POOLED, SERVER
from fedsynth.federation.store import StateStore
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.learning.effort import measured_effort
from fedsynth.privacy import Budget
from fedsynth.seeding import derive


class DataHolder(Protocol):
    """Whatever can hand out the data of a client: a simulated federation, or one site's own files."""

    @property
    def schema(self) -> Schema:
        """What the examples look like."""
        ...

    def client(self, client: str, /) -> ClientData:
        """The data of one client."""
        ...

    def pooled(self, part: str, /) -> Dataset:
        """One part of everybody's data, where somebody holds it all."""
        ...


@dataclass
class TaskHost:
    """Runs tasks for the clients whose data it can reach.

    `secret_noise`: privacy noise comes from the operating system, not from the seed (see `Client.noise_rng`).
    """

    data: DataHolder
    store: StateStore
    device: str = "cpu"
    secret_noise: bool = False

    def handle(self, client_id: str, blob: bytes) -> bytes:
        """Carry out one request. Errors become a reply that says so; nothing is kept of a failed task."""
        started = time.perf_counter()
        try:
            answer = self._run(client_id, decode(blob))
            # A number of fixed width: the bytes of an answer are counted, and must be the same in every run.
            return encode({**answer, "seconds": np.array(time.perf_counter() - started)})
        except Exception as error:
            return encode(
                {
                    "ok": False,
                    "error": type(error).__name__,
                    "message": str(error),
                    "traceback": traceback.format_exc(),
                }
            )

    def _run(self, client_id: str, request: dict[str, Any]) -> dict[str, Any]:
        task = find_task(request["task"])
        seed, round_, step = request["seed"], request["round"], request["step"]
        state = PrivateState(self.store, client_id, request["states"].get(client_id))
        data = self._data_of(client_id)
        budget = Budget(**request["budget"]) if request.get("budget") else None
        client = Client(client_id, data, self.data.schema, state, seed, round_, self.device, budget, self.secret_noise)
        client.turn = request.get("turn", 0)
        with reproducible(derive(seed, "torch", task.name, *client.occasion)), measured_effort() as effort:
            reply = task.run(client, request["fields"])
        if reply is None or reply is not client.released:
            raise TaskError(f'The task "{task.name}" returned something that did not go through client.release.')
        version = None
        if state.changed:
            version = f"{step:06d}-{request['id']}"
            state.save(version, step)
        return {
            "ok": True,
            "fields": reply.fields(),
            "state": version,
            "guarantees": {name: guarantee.as_dict() for name, guarantee in client.guarantees.items()},
            "epochs": effort.examples / max(1, len(data.train)),
        }

    def _data_of(self, client_id: str) -> ClientData:
        if client_id.startswith(SERVER):
            nothing = Dataset(np.zeros((0, *self.data.schema.shape), np.float32), np.zeros(0, np.int64))
            return ClientData(nothing, nothing, nothing)
        if client_id != POOLED:
            return self.data.client(client_id)
        return ClientData(*(self.data.pooled(part) for part in ("train", "validation", "test")))


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """One thread and a seeded torch generator, put back afterwards: results do not depend on the number of workers."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed % 2**63)
        if threads != 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
