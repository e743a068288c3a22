"""The local engine: one machine, one single-threaded worker process per core, or everything in this process.

Workers are forked once the data is in memory, so they share it; requests and replies pass through files in a scratch
folder; clients with the most data go first. A worker that dies is noticed at
once, its task is tried once more elsewhere, and nothing waits for it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedsynth.engines.worker import serve
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
    return (0, "") if count <= 1 else (count, "")


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: _Job | None = None


@dataclass
class _Job:
    number: int
    client: str
    request: str
    reply: str
    tries: int = 0


class LocalEngine:
    """Runs tasks on this machine. `sizes` tells how much work a client is, so that the longest starts first."""

    clock = 0.0

    def __init__(self, host: TaskHost, workers: int = 0, sizes: Callable[[str], int] = lambda client: 0) -> None:
        self.host, self.count, self.sizes = host, workers, sizes
        self._workers: list[_Worker] = []
        self._numbers = 0
        self._scratch: Path | None = None

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """See `Engine.ask`."""
        if self.count == 0:
            return self._ask_here(requests, deadline)
        jobs = self._post(requests)
        try:
            return self._run(task, jobs, deadline)
        finally:
            for path in {job.request for job in jobs}:
                Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the workers and remove the scratch folder."""
        for worker in self._workers:
            self._stop(worker)
        self._workers.clear()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def worker_ids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    # -- one process --------------------------------------------------------------------------------------------

    def _ask_here(self, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        answers = Answers()
        started = time.monotonic()
        for client, request in requests.items():
            if deadline is not None and time.monotonic() - started > deadline:
                answers.failures[client] = Failure(client, "timeout", f"not started within {deadline:g} s")
                continue
            answers.replies[client] = Blob(self.host.handle(client, request))
        return answers

    # -- worker processes ---------------------------------------------------------------------------------------

    def _post(self, requests: Mapping[str, bytes]) -> list[_Job]:
        """Write each distinct request once and queue the jobs, longest first."""
        if self._scratch is None:
            self._scratch = new_scratch()
        paths: dict[int, str] = {}
        jobs = []
        for client in sorted(requests, key=lambda c: (-self.sizes(c), c)):
            request = requests[client]
            self._numbers += 1
            if id(request) not in paths:
                path = self._scratch / f"request-{self._numbers}"
                path.write_bytes(request)
                paths[id(request)] = str(path)
            jobs.append(_Job(self._numbers, client, paths[id(request)], str(self._scratch / f"reply-{self._numbers}")))
        return jobs

    def _run(self, task: str, jobs: list[_Job], deadline: float | None) -> Answers:
        answers = Answers()
        waiting = deque(jobs)
        end = None if deadline is None else time.monotonic() + deadline
        while len(self._workers) < min(self.count, max(len(jobs), 1)):
            self._workers.append(self._start())
        while waiting or any(worker.job for worker in self._workers):
            for worker in self._workers:
                if waiting and worker.job is None:
                    self._give(worker, waiting.popleft())
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                self._give_up(waiting, answers, deadline)
                break
            ready = wait([w.pipe for w in self._workers] + [w.process.sentinel for w in self._workers], left)
            for worker in list(self._workers):
                if worker.pipe in ready or worker.process.sentinel in ready:
                    self._hear(worker, task, waiting, answers)
        return answers

    @staticmethod
    def _give(worker: _Worker, job: _Job) -> None:
        job.tries += 1
        worker.job = job
        try:
            worker.pipe.send((job.number, job.client, job.request, job.reply))
        except OSError:
            pass  # it died while idle: `_hear` finds out and tries the job elsewhere

    def _hear(self, worker: _Worker, task: str, waiting: deque[_Job], answers: Answers) -> None:
        """A worker has answered or died."""
        job = worker.job
        try:
            number = worker.pipe.recv() if worker.pipe.poll() else None
        except (EOFError, OSError):
            number = None
        if job is not None and number == job.number:
            worker.job = None
            answers.replies[job.client] = Blob(Path(job.reply))
            return
        if worker.process.is_alive() and number is None:
            worker.process.join(1.0)
        if worker.process.is_alive():
            return
        self._workers[self._workers.index(worker)] = self._start()
        code = worker.process.exitcode
        worker.pipe.close()
        if job is None:
            return
        Path(job.reply).unlink(missing_ok=True)
        what = f'the worker of client "{job.client}" died in task "{task}" ({_reason(code)})'
        if job.tries < TRIES:
            answers.notes.append(f"{what}; tried again elsewhere")
            waiting.appendleft(job)
        else:
            answers.failures[job.client] = Failure(job.client, "crashed", f"{what}, twice")

    def _give_up(self, waiting: deque[_Job], answers: Answers, deadline: float | None) -> None:
        """The deadline has passed: what has not started is dropped, what runs is ended with its worker."""
        for job in waiting:
            answers.failures[job.client] = Failure(job.client, "timeout", f"not started within {deadline:g} s")
        for index, worker in enumerate(self._workers):
            if worker.job is None:
                continue
            job = worker.job
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
            Path(job.reply).unlink(missing_ok=True)
            answers.failures[job.client] = Failure(job.client, "timeout", f"not finished within {deadline:g} s")
            self._workers[index] = self._start()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        others = [ours, *(worker.pipe for worker in self._workers if not worker.pipe.closed)]
        process = context.Process(target=serve, args=(theirs, others, self.host), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    @staticmethod
    def _stop(worker: _Worker) -> None:
        try:
            worker.pipe.send(None)
        except OSError:
            pass
        worker.process.join(0.0 if worker.job else 1.0)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


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
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _reason(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
