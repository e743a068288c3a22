"""What the tests of the command line share: commands as processes, and an experiment that takes seconds."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TINY = (
    "data.limit=200",
    "partition.num_clients=3",
    "partition.alpha=1.0",
    "model.name=mlp",
    "model.hidden=[16]",
    "train.local_epochs=1",
    "train.batch_size=8",  # enough steps to tell some classes apart: a run that takes all for one class fails
    "train.rounds=2",
    "engine.workers=1",
)


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object on the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


class Running:
    """A command under way."""

    def __init__(self, commands: Commands, pid: int, out: Path, err: Path) -> None:
        self.commands, self.pid, self.out, self.err = commands, pid, out, err
        self.done: Done | None = None

    def kill(self) -> Done:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> Done:
        """Its exit code and what it printed."""
        if self.done is None:
            code = int(self.commands.order({"wait": self.pid}))
            self.done = Done(code, self.out.read_text(), self.err.read_text())
        return self.done


class Commands:
    """Runs `fedsynth …`; see prefork.py."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.numbers = scratch, itertools.count()
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("prefork.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def order(self, order: dict[str, Any]) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def start(self, *args: object, cwd: Path, env: dict[str, str] | None = None, pictures: bool = False) -> Running:
        """Start a command and go on; `pictures`: whether its pictures are rendered."""
        number = next(self.numbers)
        out, err = self.scratch / f"out-{number}", self.scratch / f"err-{number}"
        order = {
            "args": list(map(str, args)),
            "cwd": str(cwd),
            "env": env or {},
            "out": str(out),
            "err": str(err),
            "pictures": pictures,
        }
        return Running(self, int(self.order(order)), out, err)

    def __call__(self, *args: object, **where: Any) -> Done:
        """Run a command to its end."""
        return self.start(*args, **where).wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="session")
def fedsynth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Run fedsynth commands as processes: `fedsynth("methods", cwd=folder)`."""
    commands = Commands(tmp_path_factory.mktemp("output"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """Settings of an experiment that takes a second."""
    return TINY
