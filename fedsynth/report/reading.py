"""Reads a run folder for people: whatever is there, and the names of what is not.

A folder may come from another machine, an older version or a run that was killed, so nothing in it is believed: files
that are missing, damaged, too large or links to elsewhere become a sentence in `problems`, never an error.
"""

import csv
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import Manifest, MetricsRow, Quality, RunSummary, TookPart
from fedsynth.evaluation.scores import WORDS, Metric
from fedsynth.federation.records import Recorded, read_record
from fedsynth.report.csv_files import read_rows

LARGEST = 64_000_000  # bytes of a file that is read
AT_ONCE = ("config.json", "versions.json", "manifest.json")  # written before the first round

State = Literal["finished", "running", "failed", "interrupted"]
T = TypeVar("T")


@dataclass
class RunRecord:
    """What a run folder holds. A part that cannot be read is empty."""

    path: Path
    state: State = "interrupted"
    failure: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    manifest: Manifest = field(default_factory=Manifest)
    summary: RunSummary | None = None
    participation: TookPart = field(default_factory=TookPart)
    records: dict[str, Recorded] = field(default_factory=dict)
    quality: Quality | None = None
    metrics: list[MetricsRow] = field(default_factory=list)
    clients: list[dict[str, str]] = field(default_factory=list)
    timeline: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    label: str = ""
    base: str = ""
    control: str = ""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def method(self) -> str:
        """The method's name, from wherever it is written."""
        return self.summary.method if self.summary else str(self.setting("method", "name") or "unknown method")

    @property
    def seed(self) -> object:
        """The seed; None when it is not known."""
        return self.summary.seed if self.summary else self.setting("seed")

    @property
    def data(self) -> str:
        """The name of the data."""
        return self.summary.data.name if self.summary else str(self.setting("data", "name") or "unknown data")

    @property
    def split(self) -> str:
        """The hash of the split."""
        return self.manifest.fingerprint.get("split", "") or (self.summary.data.split if self.summary else "")

    @property
    def planned_rounds(self) -> str:
        """As in "round 3 of 8"; empty where the config does not say."""
        rounds = self.setting("train", "rounds")
        return f" of {rounds}" if isinstance(rounds, int) else ""

    @property
    def validated(self) -> list[float]:
        """The validation scores so far."""
        found = [row.validation.of(self.metric) for row in self.metrics if row.validation is not None]
        return [value for value in found if value is not None]

    @property
    def metric(self) -> Metric:
        """The metric that the run goes by."""
        given = self.summary.metric if self.summary else self.setting("evaluation", "metric")
        return next((metric for metric in get_args(Metric) if metric == given), "accuracy")

    @property
    def metric_words(self) -> str:
        """The same in words."""
        return WORDS[self.metric]

    def setting(self, *keys: str) -> object:
        """A setting of the experiment; None where the config does not have it."""
        value: object = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def read_run(path: Path) -> RunRecord:
    """Read a run folder. An error only where there is no run folder at all."""
    path = path.resolve()
    if not any((path / name).is_file() for name in (*AT_ONCE, "summary.json", "metrics.jsonl")):
        raise ConfigError(f'"{path}" is not a run folder: it has none of the files of a run.')
    run = RunRecord(path)
    reader = _Reader(path, run.problems)
    run.config = reader.value("config.json", dict[str, Any]) or {}
    run.versions = reader.value("versions.json", dict[str, str]) or {}
    run.manifest = reader.value("manifest.json", Manifest) or Manifest()
    failed = reader.value("failed.json", dict[str, str], needed=False)
    run.state = _state(path, bool(failed))
    ended = run.state == "finished"
    run.summary = reader.value("summary.json", RunSummary, needed=ended)
    run.failure = failed.get("message", "") if failed and run.state == "failed" else ""
    run.participation = reader.value("participation.json", TookPart, needed=ended) or TookPart()
    run.records = reader.records("records.json")
    run.quality = reader.value("quality.json", Quality, needed=False)
    run.metrics = reader.lines("metrics.jsonl", MetricsRow)
    run.clients = reader.rows("clients.csv", needed=ended)
    run.timeline = reader.rows("timeline.csv", needed=ended, why=" (runs of older versions have none)")
    return run


def glance(path: Path) -> RunRecord:
    """What an overview needs of a run: its state, config, metrics and summary; problems are not looked for."""
    run = RunRecord(path.resolve())
    reader = _Reader(run.path, [])
    run.config = reader.value("config.json", dict[str, Any]) or {}
    run.state = _state(run.path, (run.path / "failed.json").exists())
    run.summary = reader.value("summary.json", RunSummary)
    run.metrics = reader.lines("metrics.jsonl", MetricsRow)
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

    def value(self, name: str, kind: type[T], needed: bool = True) -> T | None:
        """What a JSON file holds; None and a problem where that is nothing of this kind."""
        text = self.text(name, needed)
        return None if text is None else self._parse(name, text, TypeAdapter(kind).validate_json)

    def lines(self, name: str, kind: type[T]) -> list[T]:
        """A JSON object per line; a line that is not whole is left out and named."""
        lines, parse = (self.text(name, needed=True) or "").splitlines(), TypeAdapter(kind).validate_json
        rows = [self._parse(f"{name}, line {place},", line, parse) for place, line in enumerate(lines, 1)]
        return [row for row in rows if row is not None]

    def records(self, name: str) -> dict[str, Recorded]:
        """What a method recorded; what is damaged is left out and named."""
        kept = self.value(name, dict[str, Any], needed=False) or {}
        found = {key: self._parse(f'{name}: "{key}"', value, read_record) for key, value in kept.items()}
        return {key: record for key, record in found.items() if record is not None}

    def rows(self, name: str, needed: bool, why: str = "") -> list[dict[str, str]]:
        """A CSV file; a line with too few cells is left out and named."""
        rows = self._parse(name, self.text(name, needed, why) or "", lambda it: read_rows(io.StringIO(it))) or []
        whole = [row for row in rows if None not in row and None not in row.values()]
        if len(whole) < len(rows):
            self.problems.append(f"{name} has {len(rows) - len(whole)} lines that are not whole; they were left out.")
        return whole

    def _parse(self, name: str, given: Any, parse: Callable[[Any], T]) -> T | None:
        try:
            return parse(given)
        except (ValueError, csv.Error) as error:
            self.problems.append(f"{name} is damaged and was left out: {say_fault(error)}.")
            return None


def say_fault(error: Exception) -> str:
    """What is wrong, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
