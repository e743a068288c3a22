"""Federated learning on skewed data, repaired with synthetic data.

import fedsynth
result = fedsynth.run("fedavg", data={"name": "digits"}, train={"rounds": 5})
result.summary.test.accuracy, result.model, result.path
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from fedsynth.experiment.config import Experiment, load_experiment, make_experiment
    from fedsynth.experiment.runner import RunResult

__all__ = ["Experiment", "RunResult", "load_experiment", "make_experiment", "resume", "run"]

# Imported when first used: a Flower node starts a process for every message, and importing PyTorch takes seconds.
_HOMES = {
    "Experiment": "fedsynth.experiment.config",
    "load_experiment": "fedsynth.experiment.config",
    "make_experiment": "fedsynth.experiment.config",
    "RunResult": "fedsynth.experiment.runner",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("fedsynth")
        except PackageNotFoundError:
            return "unknown"
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def run(method: str = "fedavg", *, progress: bool | None = None, **sections: Any) -> "RunResult":
    """Run one method. Keyword arguments are the sections and keys of an experiment file.

    `method` is a method's name, or a table with its name and settings: `{"name": "fedprox", "mu": 0.01}`.
    """
    from fedsynth.experiment.config import make_experiment
    from fedsynth.experiment.runner import run_experiment

    table = {"name": method} if isinstance(method, str) else dict(method)
    return run_experiment(make_experiment({**sections, "method": table}), progress=progress)


def resume(path: str | Path, *, progress: bool | None = None, trust_plugins: bool = False) -> "RunResult":
    """Go on with a run that was interrupted, from its folder.

    `trust_plugins`: the plug-ins that its config names may be executed. Look at them first if the folder is not yours.
    """
    from fedsynth.experiment.runner import resume_run

    return resume_run(Path(path), progress, trust_plugins=trust_plugins)
