"""Forked processes that do jobs, one at a time each: tasks of clients for the local engine, whole runs for a study.

They share this process's memory as it was when they were forked. One that dies is noticed at once, and all end with the
process that started them, even when that is killed.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, Literal, TypeVar

import torch

from fedsynth.errors import FedsynthError, UserError

PR_SET_PDEATHSIG = 1
PARENT_CHECK_SECONDS = 0.2
PATIENCE = 1.0  # seconds that an idle process has to end when told to

Job = TypeVar("Job")


@dataclass(frozen=True)
class Ended(Generic[Job]):
    """How a job ended and, unless it is done, why; `mistake`: it raised an error that its user can mend."""

    job: Job
    how: Literal["done", "failed", "died", "not finished", "not started"]
    why: str = ""
    mistake: bool = False


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


class Pool(Generic[Job]):
    """Up to `count` processes that call `work` with a job; `fresh`: each job gets a process of its own.

    A job must be something to pickle, and is best small. What `work` returns is dropped: it leaves its result in files.
    """

    def __init__(self, work: Callable[[Job], object], count: int, fresh: bool = False) -> None:
        self.work, self.count, self.fresh = work, count, fresh
        self._workers: list[_Worker[Job]] = []

    def carry_out(self, waiting: deque[Job], deadline: float | None = None) -> Iterator[Ended[Job]]:
        """Do the jobs, first come first served, and tell of each as it ends. Who is told may put one back to wait.

        After `deadline` seconds what has not started is dropped, and what runs is ended with its process.
        """
        end = None if deadline is None else time.monotonic() + deadline
        while waiting or any(worker.job is not None for worker in self._workers):
            self._share_out(waiting)
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                yield from self._give_up(waiting)
                return
            ready = wait([w.pipe for w in self._workers] + [w.process.sentinel for w in self._workers], left)
            for worker in list(self._workers):
                if worker.pipe in ready or worker.process.sentinel in ready:
                    yield from self._hear(worker)

    def close(self) -> None:
        """End all processes, whatever they do."""
        for worker in list(self._workers):
            self._end(worker, 0.0 if worker.job is not None else PATIENCE)

    def _share_out(self, waiting: deque[Job]) -> None:
        while len(self._workers) < self.count and sum(w.job is None for w in self._workers) < len(waiting):
            self._start()
        for worker in self._workers:
            if waiting and worker.job is None:
                worker.job = waiting.popleft()
                with contextlib.suppress(OSError):  # it died while idle: `_hear` finds out
                    worker.pipe.send(worker.job)

    def _hear(self, worker: _Worker[Job]) -> Iterator[Ended[Job]]:
        """A worker has done its job, or died."""
        job = worker.job
        try:
            error = worker.pipe.recv()
        except (EOFError, OSError):
            code = self._end(worker, PATIENCE)
            if not self.fresh:
                self._start()
            if job is not None:
                yield Ended(job, "died", f"signal {-code}" if code is not None and code < 0 else f"exit code {code}")
            return
        worker.job = None
        if self.fresh:
            self._end(worker, PATIENCE)
        if job is not None:
            yield Ended(job, "done") if error is None else Ended(job, "failed", *error)

    def _give_up(self, waiting: deque[Job]) -> Iterator[Ended[Job]]:
        for job in waiting:
            yield Ended(job, "not started")
        for worker in list(self._workers):
            if worker.job is not None:
                self._end(worker, 0.0)
                yield Ended(worker.job, "not finished")

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = context.Process(target=_serve, args=(theirs, inherited, os.getpid(), self.work), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _end(self, worker: _Worker[Job], patience: float) -> int | None:
        """Let a process go, at once or after a moment to end by itself; its exit code."""
        with contextlib.suppress(OSError):
            worker.pipe.send(None)
        worker.process.join(patience)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        return worker.process.exitcode


def _serve(pipe: Connection, inherited: list[Connection], parent: int, work: Callable[[Job], object]) -> None:
    """In the new process: do jobs until there are no more."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for other in inherited:  # copied by the fork, they would keep a dead sibling's pipe open
        other.close()
    torch.set_num_threads(1)  # one process a core
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while (job := pipe.recv()) is not None:
            pipe.send(_try(work, job))


def _try(work: Callable[[Job], object], job: Job) -> tuple[str, bool] | None:
    """Do a job; the text of an error, and whether it is the user's to mend."""
    try:
        work(job)
    except Exception as error:
        text = str(error) if isinstance(error, FedsynthError) else f"{type(error).__name__}: {error}"
        return text, isinstance(error, UserError)
    return None


def die_with_parent(parent: int) -> None:
    """End this process when its parent dies, even in the middle of a task."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before this could be asked for
            os._exit(1)
    else:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)
