"""Starts fedsynth commands as real processes without paying for the imports each time.

One process imports everything, then forks a child per command line it reads from standard input. A child is what the
`fedsynth` script is: a process of its own with its own arguments, folder, output and exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401

import fedsynth.audit.run
import fedsynth.report.dashboard
import fedsynth.studies.advise
import fedsynth.studies.compare
import fedsynth.studies.quality
import fedsynth.studies.stress
import fedsynth.studies.verify  # noqa: F401 - the imports to be paid for once
from fedsynth import cli
from fedsynth.cli import app  # noqa: F401

sys.path.append(str(Path(__file__).parents[1]))
from unrendered import unrendered


def become(order: dict) -> None:
    """Be the command: its folder, its arguments, its output, and Ctrl-C as in a terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started pytest with &
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    for number, path in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["fedsynth", *order["args"]]
    code = 1
    try:
        with contextlib.nullcontext() if order["pictures"] else unrendered():
            cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    """Answer orders until standard input ends: {"args", "cwd", …} starts a command, {"wait": id} waits for one."""
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            become(order)
        print(child, flush=True)


if __name__ == "__main__":
    serve()
