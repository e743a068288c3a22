"""The local engine: one machine, one single-threaded worker process per core, or everything in this process.

Workers are forked once the data is in memory, so they share it; requests and replies pass through files in a scratch
folder; clients with the most data go first. A task whose worker died is tried once more elsewhere.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedsynth.engines.pool import Ended, Pool
from fedsynth.federation.host import TaskHost
from fedsynth.federation.port import Answers, Blob, Failure

TRIES = 2  # a task whose worker died is tried once more


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(wanted: int | None, device: str) -> tuple[int, str]:
    """How many worker processes to fork (0: stay in this process), and why not more, in words."""
    if device != "cpu":
        return 0, f"Running in one process: the work goes to {device}."
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return 0, "Running in one process: this system does not fork safely."
    if wanted is None and "ipykernel" in sys.modules:
        return 0, "Running in one process, as notebooks should; set engine.workers to use more cores."
    count = usable_cores() if wanted is None else wanted
    return count if count > 1 else 0, ""


@dataclass
class _Job:
    client: str
    request: Path
    reply: Path
    tries: int = 0


class LocalEngine:
    """Runs tasks on this machine. `sizes` tells how much work a client is, so that the longest starts first."""

    clock = 0.0

    def __init__(self, host: TaskHost, workers: int = 0, sizes: Callable[[str], int] = lambda client: 0) -> None:
        self.host, self.sizes = host, sizes
        self._pool = Pool(partial(_handle, host), workers) if workers else None
        self._numbers = 0
        self._scratch: Path | None = None

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """See `Engine.ask`."""
        if self._pool is None:
            return self._ask_here(requests, deadline)
        answers, waiting = Answers(), deque(self._post(requests))
        files = {job.request for job in waiting}
        try:
            for ended in self._pool.carry_out(waiting, deadline):
                if _retried(ended, task, deadline, answers):
                    waiting.appendleft(ended.job)
        finally:
            for file in files:
                file.unlink(missing_ok=True)
        return answers

    def close(self) -> None:
        """Stop the workers and remove the scratch folder."""
        if self._pool is not None:
            self._pool.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _ask_here(self, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        answers = Answers()
        started = time.monotonic()
        for client, request in requests.items():
            if deadline is not None and time.monotonic() - started > deadline:
                answers.failures[client] = Failure(client, "timeout", f"not started within {deadline:g} s")
                continue
            answers.replies[client] = Blob(self.host.handle(client, request))
        return answers

    def _post(self, requests: Mapping[str, bytes]) -> list[_Job]:
        """Write each distinct request once and queue the jobs, longest first."""
        if self._scratch is None:
            self._scratch = new_scratch()
        paths: dict[int, Path] = {}
        jobs = []
        for client in sorted(requests, key=lambda c: (-self.sizes(c), c)):
            request = requests[client]
            self._numbers += 1
            if id(request) not in paths:
                paths[id(request)] = self._scratch / f"request-{self._numbers}"
                paths[id(request)].write_bytes(request)
            jobs.append(_Job(client, paths[id(request)], self._scratch / f"reply-{self._numbers}"))
        return jobs


def _handle(host: TaskHost, job: _Job) -> None:
    """In a worker: carry out a request, and leave the reply in its file."""
    job.reply.write_bytes(host.handle(job.client, job.request.read_bytes()))


def _retried(ended: Ended[_Job], task: str, deadline: float | None, answers: Answers) -> bool:
    """Enter how a job ended; True if it is to be tried once more."""
    job, client = ended.job, ended.job.client
    if ended.how == "done":
        answers.replies[client] = Blob(job.reply)
        return False
    job.reply.unlink(missing_ok=True)
    if ended.how in ("not started", "not finished"):
        answers.failures[client] = Failure(client, "timeout", f"{ended.how} within {deadline:g} s")
        return False
    job.tries += 1
    what = f'the worker of client "{client}" {ended.how} in task "{task}" ({ended.why})'
    if job.tries < TRIES:
        answers.notes.append(f"{what}; tried again elsewhere")
        return True
    answers.failures[client] = Failure(client, "crashed", f"{what}, twice")
    return False


def new_scratch() -> Path:
    """A temporary folder named after this process; those of processes that were killed are removed on the way."""
    for left in Path(tempfile.gettempdir()).glob("fedsynth-*-*"):
        owner = left.name.split("-")[1]
        if owner.isdigit() and not _exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"fedsynth-{os.getpid()}-"))


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # another user's process is one all the same
        return not isinstance(error, ProcessLookupError)
    return True
