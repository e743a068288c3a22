"""Experiment files and `key=value` words, as tables that nobody has checked yet.

And plug-ins: Python files of a user with methods, models or tasks of their own. Only files that the user named are
run. A run folder may come from somebody else, and so may all that is in it, hashes included. So what its config names
is not run before the user has said so.

Light to import: a file that is not there is said at once.
"""

import importlib.util
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError

TRUST = "say --trust-plugins (in Python: trust_plugins=True)"
NAME_THEM = "name them on the command line, such as 'plugins=[\"my_method.py\"]'"

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
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text  # a date is a name here


def load_plugins(plugins: Any) -> list[str]:
    """Import each file, whose decorators register what it defines; their absolute paths."""
    files = plugin_files(plugins)
    for file in files:
        _load(file)
    return [str(file) for file in files]


def plugin_files(plugins: Any) -> list[Path]:
    """The files by their absolute paths; nothing of them is run."""
    if not isinstance(plugins, list | tuple) or not all(isinstance(plugin, str | Path) for plugin in plugins):
        raise ConfigError('"plugins" must be a list of Python files, such as ["my_method.py"].')
    files = [Path(plugin).resolve() for plugin in plugins]
    for file in files:
        if not file.is_file():
            raise ConfigError(f'plugins: there is no Python file "{file}".')
    return files


def check_trusted(where: Path, trusted: bool, *lists: Any, how: str = TRUST) -> None:
    """Refuse the plug-ins that the file or folder `where` names, unless the user trusts them; `how` says how to."""
    named = [plugin for one in lists for plugin in (one if isinstance(one, list | tuple) else [one]) if one]
    if trusted or not named:
        return
    # As JSON: a name must not be able to move the cursor of a terminal over what is said here.
    files = ", ".join(sorted({json.dumps(os.path.abspath(str(plugin))) for plugin in named}))
    raise ConfigError(
        f'"{where}" names plug-ins, Python files that would be executed: {files}. Look at them, then {how}.'
    )


def find_beside(plugins: Any, folder: Path) -> Any:
    """Plugins named in an experiment file are looked for beside that file, then in the current folder."""
    if not isinstance(plugins, list):
        return plugins
    return [str(folder / p) if isinstance(p, str) and (folder / p).is_file() else p for p in plugins]


def _load(file: Path) -> None:
    name = f"fedsynth_plugins.{file.stem}"  # its last part names the tasks that are in it
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f'plugins: "{file}" is not a Python file.')
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(file):
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"plugins: {file} cannot be imported: {type(error).__name__}: {error}.") from error
