"""Reads a run folder for people: whatever is there, and the names of what is not.

A folder may come from another machine, an older version or a run that was killed, so nothing in it is believed: files
that are missing, damaged, too large or links to elsewhere become a sentence in `problems`, never an error.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsynth.errors import ConfigError
from fedsynth.report.csv_files import read_rows

LARGEST = 64_000_000  # bytes of a file that is read
AT_ONCE = ("config.json", "versions.json", "manifest.json")  # written before the first round
AT_THE_END = ("clients.csv", "participation.json")

State = Literal["finished", "running", "failed", "interrupted"]


@dataclass
class RunRecord:
    """What a run folder holds. A part that cannot be read is empty."""

    path: Path
    state: State = "interrupted"
    failure: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    participation: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, str]] = field(default_factory=list)
    timeline: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    label: str = ""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def method(self) -> str:
        """The method's name, from wherever it is written."""
        return str(pick(self.summary, "method") or pick(self.config, "method", "name") or "unknown method")

    @property
    def seed(self) -> Any:
        """The seed; None when it is not known."""
        return pick(self.summary, "seed") if self.summary else pick(self.config, "seed")

    @property
    def split(self) -> str:
        """The hash of the split."""
        return str(pick(self.manifest, "fingerprint", "split") or pick(self.summary, "data", "split") or "")


def pick(value: Any, *keys: str) -> Any:
    """A value deep in nested tables; None where any step is missing or not a table."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: Any, *keys: str) -> float | None:
    """A finite number deep in nested tables; None where there is none."""
    found = pick(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def read_run(path: Path) -> RunRecord:
    """Read a run folder. An error only where there is no run folder at all."""
    path = path.resolve()
    if not any((path / name).is_file() for name in (*AT_ONCE, "summary.json", "metrics.jsonl")):
        raise ConfigError(f'"{path}" is not a run folder: it has none of the files of a run.')
    run = RunRecord(path)
    reader = _Reader(path, run.problems)
    for name in AT_ONCE:
        setattr(run, name.removesuffix(".json"), reader.table(name))
    failed = reader.table("failed.json", needed=False)
    run.state = _state(path, bool(failed))
    ended = run.state == "finished"
    run.summary = reader.table("summary.json", needed=ended)
    run.failure = str(failed.get("message", "")) if run.state == "failed" else ""
    run.participation = reader.table("participation.json", needed=ended)
    run.records = reader.table("records.json", needed=False)
    run.quality = reader.table("quality.json", needed=False)
    run.metrics = reader.lines("metrics.jsonl")
    run.clients = reader.rows("clients.csv", needed=ended)
    run.timeline = reader.rows("timeline.csv", needed=ended, why=" (runs of older versions have none)")
    return run


def glance(path: Path) -> RunRecord:
    """What an overview needs of a run: its state, config, metrics and summary; problems are not looked for."""
    run = RunRecord(path.resolve())
    reader = _Reader(run.path, [])
    run.config = reader.table("config.json")
    run.state = _state(run.path, (run.path / "failed.json").exists())
    run.summary = reader.table("summary.json")
    run.metrics = reader.lines("metrics.jsonl")
    return run


def _state(path: Path, failed: bool) -> State:
    if (path / "summary.json").exists():
        return "finished"
    if is_locked(path):
        return "running"
    return "failed" if failed else "interrupted"


def is_locked(path: Path) -> bool:
    """Whether a process is running the folder right now."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        with (path / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_inside(folder: Path, name: str) -> bytes:
    """The bytes of a file in a folder; ValueError when it leads out of it or is too large, OSError as usual."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ValueError("it is a link to another place")
    if file.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    return file.read_bytes()


class _Reader:
    def __init__(self, folder: Path, problems: list[str]) -> None:
        self.folder, self.problems = folder, problems

    def text(self, name: str, needed: bool, why: str = "") -> str | None:
        """A file's text; None and a problem where there is none that can be read."""
        try:
            return read_inside(self.folder, name).decode()
        except FileNotFoundError:
            if needed:
                self.problems.append(f"{name} is missing{why}.")
        except (OSError, ValueError) as error:
            self.problems.append(f"{name} cannot be read: {error}.")
        return None

    def table(self, name: str, needed: bool = True) -> dict[str, Any]:
        """A JSON object."""
        text = self.text(name, needed)
        return {} if text is None else self._parsed(name, text, _object, {})

    def lines(self, name: str) -> list[dict[str, Any]]:
        """A JSON object per line; a line that is not whole is left out and named."""
        rows = []
        for place, line in enumerate((self.text(name, needed=True) or "").splitlines(), 1):
            row: dict[str, Any] = self._parsed(f"{name}, line {place},", line, _object, {})
            rows += [row] if row else []
        return rows

    def rows(self, name: str, needed: bool, why: str = "") -> list[dict[str, str]]:
        """A CSV file; a line with too few cells is left out and named."""
        text = self.text(name, needed, why)
        rows = [] if text is None else self._parsed(name, text, lambda it: read_rows(io.StringIO(it)), [])
        whole = [row for row in rows if None not in row and None not in row.values()]
        if len(whole) < len(rows):
            self.problems.append(f"{name} has {len(rows) - len(whole)} lines that are not whole; they were left out.")
        return whole

    def _parsed(self, name: str, text: str, parse: Callable[[str], Any], otherwise: Any) -> Any:
        try:
            return parse(text)
        except (ValueError, RecursionError, csv.Error) as error:
            self.problems.append(f"{name} is damaged and was left out: {error}.")
            return otherwise


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
