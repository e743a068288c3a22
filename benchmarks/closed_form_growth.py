"""Memory and time of the closed form (`analytic`) as the number of clients grows: two examples each, random numbers.

    python benchmarks/closed_form_growth.py --clients 100 1000 10000 100000

Every size runs in a process of its own. Memory is the peak of the server's process and of its largest worker.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EACH, COLUMNS, CLASSES = 2, 20, 10


def run(clients: int, folder: Path) -> None:
    """One size; prints a row of the table."""
    from fedsynth import make_experiment
    from fedsynth.experiment.runner import run_experiment

    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=EACH * clients + 1000)
    x = rng.normal(size=(CLASSES, COLUMNS))[y] + rng.normal(size=(len(y), COLUMNS))
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y)
    started = time.perf_counter()
    result = run_experiment(
        make_experiment(
            {
                "data": {"name": f"npz:{folder / 'data.npz'}", "test": 0.0, "validation": 0.0, "global_test": 0.02},
                "partition": {"name": "iid", "num_clients": clients},
                "method": {"name": "analytic"},
                "evaluation": {"clients": 0, "final_clients": 0},
                "runs": str(folder / "runs"),
                "name": "closed-form",
            }
        ),
        progress=False,
    )
    taken, accuracy = time.perf_counter() - started, result.summary.test.accuracy
    here, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"| {clients:,} | {taken:.1f} | {here:.0f} | {workers:.0f} | {accuracy:.3f} |", flush=True)


def main() -> None:
    """All sizes, smallest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            run(args.one, Path(folder))
        return
    print("| clients | s in all | server, MiB | worker, MiB | accuracy |\n| --- | --- | --- | --- | --- |", flush=True)
    for clients in args.clients:
        command = [sys.executable, __file__, "--one", str(clients)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
