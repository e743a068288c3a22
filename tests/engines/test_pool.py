"""The pool of processes: every job's end is told, whatever it was, and a process survives an error of a job."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import pytest

from fedsynth.engines.pool import Ended, Pool
from fedsynth.errors import UserError


def work(job: str) -> None:
    """What the first word of a job says; the second names a file for the process's id."""
    what, _, name = job.partition(" ")
    Path(name).write_text(str(os.getpid()))
    if what == "mistake":
        raise UserError("set it to 1")
    if what == "raise":
        raise OSError("the disk is full")
    if what == "exit":
        os._exit(3)
    if what == "sleep":
        time.sleep(60)


def ends(*jobs: str, count: int = 1, fresh: bool = False, deadline: float | None = None) -> list[Ended[str]]:
    pool = Pool(work, count, fresh)
    try:
        return list(pool.carry_out(deque(jobs), deadline))
    finally:
        pool.close()


@pytest.mark.parametrize(("fresh", "processes"), [(False, 1), (True, 3)])
def test_errors_are_told_and_do_no_harm_to_the_process(tmp_path: Path, fresh: bool, processes: int) -> None:
    jobs = [f"{what} {tmp_path / what}" for what in ("mistake", "raise", "work")]
    assert ends(*jobs, fresh=fresh) == [
        Ended(jobs[0], "failed", "set it to 1", True),
        Ended(jobs[1], "failed", "OSError: the disk is full", False),
        Ended(jobs[2], "done"),
    ]
    assert len({file.read_text() for file in tmp_path.iterdir()} - {str(os.getpid())}) == processes


def test_a_process_that_dies_is_told_and_replaced(tmp_path: Path) -> None:
    died, done = ends(f"exit {tmp_path / 'a'}", f"work {tmp_path / 'b'}")
    assert (died.how, died.why, done.how) == ("died", "exit code 3", "done")
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_after_the_deadline_nothing_runs(tmp_path: Path) -> None:
    jobs = [f"sleep {tmp_path / str(number)}" for number in range(3)]
    found = ends(*jobs, count=2, deadline=1.0)
    assert sorted(ended.how for ended in found) == ["not finished", "not finished", "not started"]
    for file in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_job_may_be_put_back(tmp_path: Path) -> None:
    pool, waiting, told = Pool(work, 1), deque([f"exit {tmp_path / 'a'}"]), []
    for ended in pool.carry_out(waiting):
        told.append(ended.how)
        if len(told) < 3:
            waiting.append(ended.job)
    pool.close()
    assert told == ["died"] * 3
