"""Federated learning on skewed data, repaired with synthetic data.

import fedsynth
result = fedsynth.run("fedavg", data={"name": "digits"}, train={"rounds": 5})
result.summary["test"]["accuracy"], result.model, result.path
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsynth.config import Experiment, load_experiment, make_experiment
from fedsynth.runner import RunResult, resume_run, run_experiment

__all__ = ["Experiment", "RunResult", "load_experiment", "make_experiment", "resume", "run"]


def run(method: str = "fedavg", *, progress: bool | None = None, **sections: Any) -> RunResult:
    """Run one method. Keyword arguments are the sections and keys of an experiment file.

    `method` is a method's name, or a table with its name and settings: `{"name": "fedprox", "mu": 0.01}`.
    """
    table = {"name": method} if isinstance(method, str) else dict(method)
    return run_experiment(make_experiment({**sections, "method": table}), progress=progress)


def resume(path: str | Path, *, progress: bool | None = None) -> RunResult:
    """Go on with a run that was interrupted, from its folder."""
    return resume_run(Path(path), progress)
