"""Rows that share their first rounds go on from one run of them, bit-identical to running each of them alone.

A method that acts late is FedAvg before its first round: the run of FedAvg stops there once, its folder is copied, and
each row goes on in a copy with its own config. It may differ in its method alone, and the code must be the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OWN_FILES = {"config.json", "versions.json", "manifest.json", ".lock", "failed.json"}
"""What a run folder has of its own; the rest is copied."""


class StoppedError(Exception):
    """The run has reached the round in which it shall stop."""


def keep_after(table: dict[str, Any], rounds: int, kept: Path) -> None:
    """Run an experiment, or go on with it, up to this round, and copy its folder; a run that is past it has no copy."""
    from fedsynth import make_experiment
    from fedsynth.experiment.runner import resume_run, run_experiment

    path = Path(table["runs"]) / table["name"]
    if kept.is_dir() or (path / "summary.json").is_file():
        return
    try:
        with stopping_after(rounds):
            if (path / "manifest.json").is_file():
                resume_run(path, progress=False)
            else:
                run_experiment(make_experiment(table), progress=False)
    except StoppedError:
        half = kept.with_name(kept.name + ".half")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(path, half)
        half.rename(kept)


@contextmanager
def stopping_after(rounds: int) -> Iterator[None]:
    """A run inside stops as soon as the checkpoint after this round is written."""
    from fedsynth.experiment import runner
    from fedsynth.federation.journal import Journal

    class Stopping(Journal):
        def write(self, step: int, values: dict[str, Any]) -> None:
            super().write(step, values)
            if values["round"] == rounds and values["phase"]:
                raise StoppedError

    runner.Journal = Stopping
    try:
        yield
    finally:
        runner.Journal = Journal


def fork(kept: Path, table: dict[str, Any]) -> bool:
    """Make the folder of an experiment out of a kept copy, to be resumed; whether there was one that suits."""
    from fedsynth import make_experiment
    from fedsynth.errors import ConfigError
    from fedsynth.experiment.folder import RunFolder, check_same_code

    path = Path(table["runs"]) / table["name"]
    if path.exists() or not kept.is_dir():
        return False
    experiment = make_experiment(table)
    theirs, ours = json.loads((kept / "config.json").read_text(encoding="utf-8")), experiment.resolved()
    apart = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)} - {"method", "name"}
    if apart:
        raise ConfigError(f"{path.name} differs from {kept.name} in more than its method: {', '.join(sorted(apart))}.")
    check_same_code(kept, experiment.plugins, accept_code_change=False)
    manifest = json.loads((kept / "manifest.json").read_text(encoding="utf-8"))
    RunFolder.create(experiment, "", manifest)
    # The checkpoints come last: a folder without any is run from its start, with the same result.
    for source in sorted(kept.iterdir(), key=lambda entry: entry.name == "checkpoints"):
        if source.is_dir():
            shutil.copytree(source, path / source.name)
        elif source.name not in OWN_FILES:
            shutil.copy2(source, path / source.name)
    return True
