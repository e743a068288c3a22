"""Contestant: fedsynth's FedAvg as a user runs it, run folder, checkpoints and metrics included.

A round is timed by fedsynth's own record, from one finished round to the next. Validation is off, as for the others.
"""

from __future__ import annotations

import itertools
import tempfile

import numpy as np
from plain_loop import arguments, tell
from workloads import CLASSES, Split, Workload, workload

from fedsynth import make_experiment
from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.data.federated import FederatedData
from fedsynth.data.partition import PartitionConfig
from fedsynth.experiment.runner import run_experiment


def federated(split: Split, clients: int) -> FederatedData:
    """The split as fedsynth's data: every client trains on all its rows, nothing is kept for validation."""
    starts, ends = split.bounds[:-1], split.bounds[1:]
    return FederatedData(
        pool=Dataset(split.x, split.y),
        sources=np.zeros(len(split.y), dtype=np.int64),
        groups=None,
        clients=[f"{number:06d}" for number in range(clients)],
        rows=split.rows,
        bounds=np.stack([starts, ends, ends, ends], axis=1),
        test=Dataset(split.test_x, split.test_y),
        test_sources=None,
        schema=Schema(split.x.shape[1:], CLASSES, tuple(map(str, range(CLASSES)))),
        source_names=("benchmark",),
        client_sources=np.zeros(clients, dtype=np.int64),
        held_out=np.empty(0, dtype=np.int64),
        fingerprint="benchmark",
        seed=0,
        partition=PartitionConfig(name="benchmark", num_clients=clients),
        config=DataConfig(),
    )


def settings(work: Workload, rounds: int, workers: int, runs: str) -> dict[str, object]:
    """The workload as an experiment."""
    return {
        "runs": runs,
        "model": {"name": work.model},
        "train": {
            "rounds": rounds,
            "local_epochs": work.epochs,
            "batch_size": work.batch_size,
            "optimizer": work.optimizer,
            "lr": work.lr,
            "fraction": work.picked / work.clients,
        },
        "engine": {"workers": workers},
        "evaluation": {"every": 0},
    }


def main() -> None:
    """Train for some rounds."""
    args = arguments()
    work, split = workload(args.workload), Split.load(args.data)
    with tempfile.TemporaryDirectory() as runs:
        experiment = make_experiment(settings(work, args.rounds, args.workers, runs))
        result = run_experiment(experiment, progress=False, data=federated(split, work.clients))
    moments = [0.0, *(row.seconds for row in result.metrics)]
    for number, (before, after) in enumerate(itertools.pairwise(moments), start=1):
        tell(round=number, seconds=after - before)
    tell(accuracy=result.summary.test.accuracy, client_epochs=result.summary.client_epochs)


if __name__ == "__main__":
    main()
