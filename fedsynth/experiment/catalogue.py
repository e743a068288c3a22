"""Which methods there are. A list is read from the files that declare them, which imports nothing and is quick.

A method is a function or class under `@method("name", model="…")`; the first line of its docstring says what it does.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.experiment.files import load_plugins, plugin_files

if TYPE_CHECKING:
    from fedsynth.federation.methods import Method

METHODS = Path(__file__).parents[1] / "methods"
USUAL_MODEL = "cnn"  # of `@method`, where a declaration names none


@dataclass(frozen=True)
class Entry:
    """What a list of methods says of one: its name, what it does, and the model of its paper."""

    name: str
    summary: str
    model: str


def list_methods() -> list[Entry]:
    """Every method in `methods/`, by name. Plug-ins are not among them."""
    files = (file.read_text(encoding="utf-8") for file in METHODS.rglob("*.py"))
    return sorted((entry for text in files for entry in _declared(text)), key=lambda entry: entry.name)


def _declared(text: str) -> Iterator[Entry]:
    if "@method(" not in text:
        return
    for node in ast.parse(text).body:
        for call in getattr(node, "decorator_list", ()):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "method":
                about = ast.get_docstring(node) or ""  # type: ignore[arg-type]  # only functions and classes have decorators
                given = {word.arg: word.value for word in call.keywords}
                model = ast.literal_eval(given["model"]) if "model" in given else USUAL_MODEL
                yield Entry(ast.literal_eval(call.args[0]), about.split("\n")[0], model)


def load_method(name: str) -> "Method":
    """A method of that name, imported; an error that names the nearest one otherwise."""
    import fedsynth.methods  # noqa: F401  (registers all methods)
    from fedsynth.federation.methods import find_method

    return find_method(name)


def load_methods_of(file: Path) -> list[str]:
    """Execute a plug-in; the names of the methods that it adds."""
    files = plugin_files([file])
    import fedsynth.methods  # noqa: F401
    from fedsynth.federation.methods import all_methods

    before = {method.name for method in all_methods()}
    load_plugins(files)
    return sorted({method.name for method in all_methods()} - before)
