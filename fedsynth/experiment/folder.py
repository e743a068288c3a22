"""The folder of a run: made once, locked while a run goes, recognised again on resume."""

import contextlib
import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import fedsynth
from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import RunSummary
from fedsynth.experiment.config import Experiment
from fedsynth.federation.store import kept_secret, lock_of, write_json

SECRET = "state/noise.key"
HOW_NOT_WHAT = ("engine", "runs", "name")  # sections that say how a run is carried out, not what its result is


@dataclass(frozen=True)
class RunFolder:
    """A run's folder."""

    path: Path

    @classmethod
    def create(cls, experiment: Experiment, source: str, manifest: Mapping[str, object] | None) -> "RunFolder":
        """A new folder with the resolved experiment, the versions and, if it is known yet, the manifest of the split.

        `source` names the data, in the folder's name.
        """
        try:
            path = cls._new_path(experiment, source)
        except OSError as error:
            raise ConfigError(f'No run folder can be made in "{experiment.runs}": {error.strerror}.') from None
        config = experiment.resolved()
        write_json(path / "config.json", config)
        write_json(path / "versions.json", versions(experiment.plugins) | {"config": fingerprint(config)})
        if manifest is not None:
            write_json(path / "manifest.json", manifest)
        return cls(path)

    @staticmethod
    def _new_path(experiment: Experiment, source: str) -> Path:
        if experiment.name:
            path = experiment.runs / experiment.name
            if path.exists():
                raise ConfigError(f'The run folder "{path}" exists: choose another name, or resume it.')
            path.mkdir(parents=True)
            return path
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        source = "".join(c if c.isalnum() or c in "+-" else "-" for c in source)[:40]
        for number in range(1, 1000):
            suffix = "" if number == 1 else f"-{number}"
            path = experiment.runs / f"{stamp}-{experiment.method_name}-{source}-s{experiment.seed}{suffix}"
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                return path
        raise ConfigError(f'No free name for a run folder in "{experiment.runs}": set name = "…".')

    @classmethod
    def reopen(cls, path: Path, experiment: Experiment, accept_code_change: bool) -> "RunFolder":
        """A folder to go on with; refused when config or code are not those the run began with."""
        if _begun_with(path)["config"] != fingerprint(experiment.resolved()):
            raise ConfigError(f'"{path}" was begun with another config: restore its config.json, or start a new run.')
        check_same_code(path, experiment.plugins, accept_code_change)
        return cls(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process off the folder while a run goes; the lock holds the id of the process that has it."""
        with (self.path / ".lock").open("a") as file:
            if sys.platform != "win32":
                import fcntl

                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise ConfigError(f'"{self.path}" is in use: another process is running it.') from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    @contextlib.contextmanager
    def failure_kept(self) -> Iterator[None]:
        """Leave a word in failed.json when the run ends with an error; a resume takes it away again."""
        file = self.path / "failed.json"
        file.unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            write_json(file, {"error": type(error).__name__, "message": str(error)})
            raise

    def secret(self) -> bytes:
        """The key of the run's privacy noise: with the private state, for a resume, until the run is done."""
        return kept_secret(self.path / SECRET)

    def finish(self, summary: RunSummary) -> None:
        """Write the summary; its presence says that the run is complete. Nobody needs the noise's key any more."""
        write_json(self.path / "summary.json", summary.as_dict())
        key = self.path / SECRET
        for file in (key, lock_of(key)):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # where clients keep nothing, the key was all that was there
            key.parent.rmdir()


def check_same_code(path: Path, plugins: Sequence[Path], accept_code_change: bool) -> None:
    """Refuse to go on with other code than the run began with; the plug-ins are read, not run."""
    kept = _begun_with(path)
    if kept["code"] != code_fingerprint(plugins) and not accept_code_change:
        raise ConfigError(
            f'"{path}" was begun with other code (fedsynth {kept["fedsynth"]}): the result would be a mixture. '
            "Install that version, start a new run, or pass --accept-code-change."
        )


def _begun_with(path: Path) -> dict[str, str]:
    """The versions and hashes of config and code that a run began with."""
    try:
        kept = json.loads((path / "versions.json").read_text(encoding="utf-8"))
        return {key: kept[key] for key in ("config", "code", "fedsynth")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'"{path}" cannot be resumed: its record is damaged ({error}).') from None


def check_same_split(path: Path, split: str) -> None:
    """Refuse a run of other data than this split."""
    try:
        kept = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["fingerprint"]["split"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'The manifest of the run "{path}" cannot be read ({error}).') from None
    if kept != split:
        raise ConfigError(f'"{path}" was begun on other data: its split is not the one that the data gives now.')


def check_same_sites(path: Path, sites: Mapping[str, Mapping[str, object]]) -> None:
    """Refuse a run in which one of these sites had other data; sites that were not in it are new ones."""
    try:
        kept = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["sites"]
        then = {name: about["fingerprint"] for name, about in kept.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'The sites of the run "{path}" cannot be read from its manifest ({error}).') from None
    for name, about in sites.items():
        if then.get(name, about["fingerprint"]) != about["fingerprint"]:
            raise ConfigError(f'"{path}" was begun when site "{name}" had other data than now.')


def fingerprint(config: Mapping[str, object]) -> str:
    """A hash of what decides the result."""
    decisive = {key: value for key, value in config.items() if key not in HOW_NOT_WHAT}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def code_fingerprint(plugins: Sequence[Path] = ()) -> str:
    """A hash of the source of the package and of plugins, so that a resume with other code is noticed."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    for plugin in plugins:
        digest.update(plugin.name.encode() + b"\0" + plugin.read_bytes())
    return digest.hexdigest()


def versions(plugins: Sequence[Path]) -> dict[str, str]:
    """What this run was made with."""
    return {
        "fedsynth": fedsynth.__version__,
        "code": code_fingerprint(plugins),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
    }
