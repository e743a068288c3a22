"""Whole pieces of work side by side, each in a process of its own: runs of a comparison, one per core.

What a piece gives is in the files it writes, so only a failure comes back. A process ends with the one that started
it, even when that one is killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedsynth.engines.worker import die_with_parent
from fedsynth.errors import FedsynthError, UserError

PARENT_CHECK_SECONDS = 0.2


def side_by_side(pieces: Sequence[tuple[str, Callable[[], Any]]], jobs: int, say: Callable[[str], None]) -> None:
    """Do named pieces of work, at most `jobs` at a time; the first failure ends the others and is raised."""
    context = multiprocessing.get_context("fork")
    waiting = list(pieces)[::-1]
    live: dict[Connection, tuple[str, BaseProcess]] = {}
    done = 0
    try:
        while waiting or live:
            while waiting and len(live) < jobs:
                name, work = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_carry_out, args=(work, theirs, os.getpid()))
                process.start()
                theirs.close()
                live[ours] = name, process
            for pipe in [found for found in wait(list(live)) if isinstance(found, Connection)]:
                name, process = live.pop(pipe)
                _raise_failure(name, pipe, process)
                done += 1
                say(f"[{done}/{len(pieces)}] {name}")
    finally:
        for _, process in live.values():
            process.kill()
            process.join()


def _carry_out(work: Callable[[], Any], pipe: Connection, parent: int) -> None:
    """In the new process: do the work, and send a failure as text."""
    die_with_parent()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()  # where the system has no such call
    torch.set_num_threads(1)  # one piece a core
    try:
        work()
        pipe.send_bytes(b"null")
    except KeyboardInterrupt:
        os._exit(1)
    except Exception as error:
        own = isinstance(error, FedsynthError)
        told = {
            "user": isinstance(error, UserError),
            "message": str(error) if own else f"{type(error).__name__}: {error}",
        }
        pipe.send_bytes(json.dumps(told).encode())


def _end_with(parent: int) -> None:
    """A comparison that was killed must not leave runs behind that hold their folders."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def _raise_failure(name: str, pipe: Connection, process: BaseProcess) -> None:
    try:
        told = json.loads(pipe.recv_bytes())
    except EOFError:
        process.join()
        raise FedsynthError(f"{name}: its process ended without a word (exit code {process.exitcode}).") from None
    finally:
        pipe.close()
    process.join()
    if told is not None:
        raise (UserError if told["user"] else FedsynthError)(f"{name}: {told['message']}")
