"""What tests of several rooms share: a small federation of digits, on any engine, in a folder of its own."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import Finished, run
from unrendered import unrendered

from fedsynth.data import DataConfig, load_federated
from fedsynth.data.federated import FederatedData
from fedsynth.engines.faults import FaultConfig, FaultyEngine
from fedsynth.engines.local import LocalEngine
from fedsynth.engines.wire import WireEngine
from fedsynth.federation import Federation
from fedsynth.federation.host import TaskHost
from fedsynth.federation.journal import Journal
from fedsynth.federation.port import SERVER, Engine
from fedsynth.federation.store import StateStore

FederationMaker = Callable[..., Federation]


MEMORY, ROOM = "/dev/shm", 2**30


def pytest_configure() -> None:
    """Temporary files lie in memory where there is room: on a disk, runs of a second wait half a second for it."""
    gc.disable()  # until all tests are imported, of which nothing is garbage
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = MEMORY  # for the processes that tests start, too
        tempfile.tempdir = None  # looked up anew


def pytest_collection_finish() -> None:
    """From here on garbage is looked for, but not among what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Pictures are rendered where a test looks at them; whatever its fixtures make is made here too."""
    looks = "report" in item.path.parts or item.get_closest_marker("pictures") is not None
    with contextlib.nullcontext() if looks else unrendered():
        return (yield)


@pytest.fixture(scope="session")
def digits() -> FederatedData:
    """Four clients with 240 digits, skewed."""
    partition = {"name": "dirichlet", "num_clients": 4, "alpha": 1.0}
    return load_federated(DataConfig(name="digits", limit=300), partition, seed=0)


@pytest.fixture
def federate(tmp_path: Path, digits: FederatedData) -> Iterator[FederationMaker]:
    """Make federations of the digits: `federate("run", workers=2)` keeps its journal and state in tmp_path/run.

    Called again with the same folder, it resumes. Without a folder nothing can be resumed.
    """
    opened: list[Engine] = []

    def size(client: str) -> int:
        return 0 if client.startswith(SERVER) else digits.train_size(client)

    def make(
        folder: str = "",
        *,
        workers: int = 0,
        wire: bool = False,
        engine: Engine | None = None,
        faults: FaultConfig | None = None,
        **options: Any,
    ) -> Federation:
        store = StateStore(tmp_path / (folder or f"unnamed-{len(opened)}") / "state")
        if engine is None and wire:
            engine = WireEngine(lambda: TaskHost(digits, store))
        elif engine is None:
            engine = LocalEngine(TaskHost(digits, store), workers, size)
        if faults is not None:
            engine = FaultyEngine(engine, faults, options.get("seed", 0), size, digits.clients)
        opened.append(engine)
        journal = Journal(tmp_path / folder) if folder else None
        return Federation(
            engine,
            digits.clients,
            digits.schema,
            journal=journal,
            pooled=True,
            version_readable=store.readable,
            **options,
        )

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """As at the clients: another number of threads sums in another order, and only slows such small models down."""
    torch.set_num_threads(1)


@pytest.fixture
def run_method(tmp_path: Path) -> Callable[..., Finished]:
    """Run a method: `run_method("fedprox", data, model="cnn", settings={"mu": 0.1}, rounds=2)`."""
    return functools.partial(run, folder=tmp_path)
