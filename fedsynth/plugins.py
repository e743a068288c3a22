"""Python files of a user with methods, models or tasks of their own. Only files that the user named are run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError


def load_plugins(plugins: Any) -> list[str]:
    """Import each file, whose decorators register what it defines; their absolute paths."""
    if not isinstance(plugins, list | tuple) or not all(isinstance(plugin, str | Path) for plugin in plugins):
        raise ConfigError('"plugins" must be a list of Python files, such as ["my_method.py"].')
    files = [Path(plugin).resolve() for plugin in plugins]
    for file in files:
        _load(file)
    return [str(file) for file in files]


def beside(plugins: Any, folder: Path) -> Any:
    """Plugins named in an experiment file are looked for beside that file, then in the current folder."""
    if not isinstance(plugins, list):
        return plugins
    return [str(folder / p) if isinstance(p, str) and (folder / p).is_file() else p for p in plugins]


def _load(file: Path) -> None:
    name = f"fedsynth_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f'plugins: there is no Python file "{file}".')
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(file):
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"plugins: {file} cannot be imported: {type(error).__name__}: {error}.") from error
