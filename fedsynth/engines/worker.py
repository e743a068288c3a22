"""A worker process of the local engine: waits for jobs on a pipe, runs them one at a time on one thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedsynth.federation.host import TaskHost

PR_SET_PDEATHSIG = 1
IDLE_CHECK_SECONDS = 2.0


def serve(pipe: Connection, others: list[Connection], host: TaskHost) -> None:
    """Run jobs `(number, client, request path, reply path)` until told to stop or the parent is gone."""
    parent = os.getppid()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for other in others:  # pipe ends copied by the fork would keep a dead sibling's pipe open
        with contextlib.suppress(OSError):
            other.close()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            while not pipe.poll(IDLE_CHECK_SECONDS):
                if os.getppid() != parent:
                    return
            job = pipe.recv()
            if job is None:
                return
            number, client, request, reply = job
            Path(reply).write_bytes(host.handle(client, Path(request).read_bytes()))
            pipe.send(number)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, even in the middle of a task."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
