"""Python files of a user with methods, models or tasks of their own. Only files that the user named are run.

A run folder may come from somebody else, and so may all that is in it, hashes included. So what its config names is not
run before the user has said so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError

TRUST = "say --trust-plugins (in Python: trust_plugins=True)"
NAME_THEM = "name them on the command line, such as 'plugins=[\"my_method.py\"]'"


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
