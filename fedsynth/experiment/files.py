"""Experiment files and `key=value` words, as tables that nobody has checked yet.

Light to import: a file that is not there is said at once.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.experiment.plugins import NAME_THEM, TRUST, check_trusted, find_beside

Tables = dict[str, Any]
"""What an experiment file holds: sections and values by name."""


def load_tables(file: Path | None, assignments: Iterable[str] = ()) -> Tables:
    """The tables of an experiment file (or none) with overrides; plug-ins of a run must be among the overrides."""
    words = list(assignments)
    named = any(word.partition("=")[0].strip() == "plugins" for word in words)
    return override(read_experiment(file, named, NAME_THEM) if file else {}, words)


def read_experiment(file: Path, trust_plugins: bool = False, how: str = TRUST) -> Tables:
    """The tables of an experiment file, not yet checked.

    A JSON file is the config of a run, which may be somebody else's: plug-ins that it names are refused unless the user
    trusts them, in the way that `how` tells.
    """
    try:
        text = file.read_text(encoding="utf-8")
        tables = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f'There is no file "{file}".') from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as an experiment: {error}.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"{file} cannot be read as an experiment: it must hold one object.")
    if "plugins" in tables:
        tables["plugins"] = find_beside(tables["plugins"], file.parent)
        check_trusted(file, trust_plugins or file.suffix != ".json", tables["plugins"], how=how)
    engine = tables.get("engine")
    if isinstance(engine, dict) and isinstance(engine.get("certificate"), str):
        engine["certificate"] = str((file.parent / engine["certificate"]).absolute())
    return tables


def read_run_config(folder: Path, trust_plugins: bool) -> Tables:
    """The tables of the experiment that a run folder holds."""
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f'"{folder}" is not a run folder: it has no config.json.')
    return read_experiment(file, trust_plugins)


def override(tables: Mapping[str, Any], assignments: Iterable[str]) -> Tables:
    """Apply `key=value` words such as `train.rounds=5` or `method.name=fedprox` to an experiment's tables."""
    result = json.loads(json.dumps(tables, default=str))
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f'"{word}" is not of the form key=value, such as train.rounds=5.')
        *path, last = key.strip().split(".")
        table = result
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f'"{key}" cannot be set: "{part}" is a value, not a section.')
        table[last] = _value(text.strip())
    return dict(result)


def _value(text: str) -> Any:
    """A TOML value, or the text itself when it is not one (so that method.name=fedprox needs no quotes)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
