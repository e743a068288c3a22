"""Running one contestant as a process and watching it: its JSON lines, its time, the memory of its process tree."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SAMPLE_SECONDS = 2.0  # reading it costs the machine a little; more often would slow those who use every core


@dataclass
class Measurement:
    """What one run of one contestant took."""

    seconds: list[float]  # per round, the first one (start-up, cold caches) left out
    first_round: float
    total_seconds: float
    peak_pss: int  # bytes; shared pages are counted once over the whole tree
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)


def run_contestant(command: list[str], timeout: float) -> Measurement:
    """Run a contestant to its end; a failure ends the benchmark with what the contestant wrote last."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]).rstrip(
            ":"
        ),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = psutil.Popen(command, stdout=out, stderr=errors, env=environment)
        try:
            peak = _watch(process, started + timeout)
        finally:
            _end(process)
        out.seek(0), errors.seek(0)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({process.returncode}):\n{errors.read()[-2000:]}")
        lines = [json.loads(line) for line in out if line.startswith("{")]
    rounds = [line["seconds"] for line in lines if "round" in line]
    steps = [line["steps"] for line in lines if "steps" in line]
    extra = {"steps": steps} | {k: v for line in lines if "round" not in line for k, v in line.items()}
    return Measurement(rounds[1:], rounds[0], time.perf_counter() - started, peak, extra)


def _watch(process: psutil.Popen, deadline: float) -> int:
    """Sample the memory of the tree until the process ends; the largest sum seen."""
    peak = 0
    while True:
        try:
            process.wait(SAMPLE_SECONDS)
            return peak
        except psutil.TimeoutExpired:
            peak = max(peak, tree_pss(process))
        if time.perf_counter() > deadline:
            raise SystemExit(f"{' '.join(process.args)} did not finish in time; see --timeout.")


def tree_pss(process: psutil.Process) -> int:
    """Proportional set size of a process and all below it: what they take of the machine together."""
    total = 0
    for member in _tree(process):
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError):
            continue
    return total


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _end(process: psutil.Popen) -> None:
    """End the contestant and everything it started, if it still runs."""
    if process.poll() is not None:
        return
    members = _tree(process)
    for member in members:
        try:
            member.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(members, timeout=10)
    for member in alive:
        member.kill()


def flower_python(given: str | None, folder: Path, torch_version: str) -> str:
    """The Python of a virtual environment with Flower: the given one, or one made here once."""
    if given:
        return given
    python = folder / "flower-venv" / "bin" / "python"
    if not python.exists():
        print("Making a virtual environment for Flower (once) ...", flush=True)
        subprocess.run(["python3", "-m", "venv", str(python.parent.parent)], check=True)
        wanted = ["flwr[simulation]==1.41.0", f"torch=={torch_version}", "numpy"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    return str(python)
