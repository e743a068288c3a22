"""The rows of a comparison: methods, variants of methods with a name and settings of their own, and controls."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.experiment.files import Tables, override
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.report.controls import SHARES_NOTHING, control_label

REFERENCES = ("local", "finetune", "centralised")
SECTIONS = ("train", "model", "privacy")  # that a row may change beside the settings of its method
LONGEST = 40  # characters of a row's name
EXAMPLE = "private=feddpms:epsilon=3"


@dataclass(frozen=True)
class Row:
    """One row: a method with settings, under a name; where it is a `control`, of the row `base`."""

    label: str
    method: str
    settings: Tables = field(default_factory=dict)
    sections: Mapping[str, Tables] = field(default_factory=dict)
    base: str = ""
    control: str = ""

    @property
    def folder(self) -> str:
        """A name for the folders of its runs, without what some file systems refuse."""
        return folder_name(f"{self.base}-{self.control.lower()}" if control_of(self) else self.label)

    @property
    def does(self) -> tuple[Any, ...]:
        """What tells whether two rows are the same."""
        return self.method, self.settings, self.sections

    def put_into(self, tables: Tables) -> None:
        """Give an experiment's tables what this row has of its own."""
        own = tables.get("method", {})
        method = own if own.get("name") == self.method else {"name": self.method}
        tables["method"] = {**method, **self.settings}
        for name, values in self.sections.items():
            tables[name] = {**tables.get(name, {}), **values}


def control_of(row: Row) -> bool:
    """Whether a row is a control that has its name from its base."""
    return bool(row.control) and row.label == control_label(row.base, row.control)


def folder_name(label: str) -> str:
    """A label as the name of a folder or file."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-") or "row"


def plan_rows(methods: Sequence[str] | None, given: Any, references: bool, controls: bool) -> list[Row]:
    """The rows in their order: each named one, below it its controls, then logit adjustment and the references.

    `methods` are words such as "fedavg" or "private=feddpms:epsilon=3"; without any, the rows `given` in the file.
    """
    known = {label: _from_table(label, value) for label, value in _table(given).items()}
    words = list(methods) if methods is not None else list(known) or ["fedavg"]
    named = [known[word].label if word in known else word for word in words]
    twice = next((word for word, times in Counter(named).items() if times > 1), None)
    if twice:
        raise ConfigError(f'"{twice}" is compared with itself: name it once, or give a variant a name and settings.')
    rows = _with_bases([known[word] if word in known else _from_word(word) for word in named])
    if controls:
        rows = _with_controls(rows)
    there = {row.label for row in rows}
    extra = ([SHARES_NOTHING] if controls else []) + list(REFERENCES if references else ())
    rows += [Row(name, name) for name in extra if name not in there]
    _check_names(rows)
    return rows


def _table(given: Any) -> Mapping[str, Any]:
    if not isinstance(given or {}, Mapping):
        raise ConfigError('"rows" must be a section, such as [rows] with private = {method = "feddpms", epsilon = 3}.')
    return given or {}


def _from_table(label: str, value: Any) -> Row:
    """A row of the file: the name of a method, or a table with it and what is to be set."""
    table = {"method": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    method = table.pop("method", None)
    if not isinstance(method, str):
        raise ConfigError(f'rows: "{label}" must name its method, such as {{method = "feddpms", epsilon = 3}}.')
    inside: dict[str, Any] = {name: table.pop(name) for name in SECTIONS if isinstance(table.get(name), Mapping)}
    sections: dict[str, Tables] = {name: dict(values) for name, values in inside.items()}
    return _row(label, method, table, sections)


def _from_word(word: str) -> Row:
    """A row from the command line: "fedavg", or "name=method:key=value:key=value"."""
    first, *settings = re.split(r":(?=[A-Za-z_][\w.]*=)", word)
    label, equals, method = (part.strip() for part in first.partition("="))
    if (settings and not equals) or not label or (equals and not method):
        raise ConfigError(
            f'"{word}" cannot be read as a row: give a method, or a name and settings, such as {EXAMPLE}.'
        )
    inside = [text if text.split(".")[0] in SECTIONS else f"method.{text}" for text in settings]
    tables = override({}, inside)
    return _row(label, method or label, tables.pop("method", {}), tables)


def _row(label: str, method: str, settings: Tables, sections: Mapping[str, Tables]) -> Row:
    find_method(method)
    if len(label) > LONGEST or not re.fullmatch(r"[^\s:,=/\\][^:,=/\\]*", label):
        raise ConfigError(
            f'"{label}" cannot be the name of a row: take up to {LONGEST} characters, none of them : , = / or \\.'
        )
    if label != method and any(label == other.name for other in all_methods()):
        raise ConfigError(f'The row "{label}" runs {method}, and {label} is another method: give the row another name.')
    return Row(label, method, settings, sections)


def _with_bases(rows: Sequence[Row]) -> list[Row]:
    """The rows, and of each that is the control of another one by its settings, that it is."""
    return [next((found for base in rows if (found := _as_control(row, base))), row) for row in rows]


def _as_control(row: Row, base: Row) -> Row | None:
    for control, changes in find_method(row.method).controls.items():
        if (row.method, row.sections, row.settings) == (base.method, base.sections, {**base.settings, **changes}):
            return replace(row, base=base.label, control=control) if row is not base else None
    return None


def _with_controls(rows: Sequence[Row]) -> list[Row]:
    """Below every row the controls of its method that are not there already."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        for control, changes in () if row.control else find_method(row.method).controls.items():
            own = replace(row, settings={**row.settings, **changes}, base=row.label, control=control)
            if not any(own.does == other.does for other in rows):
                found.append(replace(own, label=control_label(row.label, control)))
    if not any(row.control for row in found):
        having = [method.name for method in all_methods() if method.controls]
        known = f"Methods that have: {', '.join(having)}." if having else "No method has any yet."
        named = ", ".join(row.method for row in rows)
        raise ConfigError(f"--controls: none of the compared methods ({named}) has controls. {known}")
    return found


def _check_names(rows: Sequence[Row]) -> None:
    labels = [label for label, times in Counter(row.label for row in rows).items() if times > 1]
    if labels:
        raise ConfigError(f'Two rows of the comparison are called "{labels[0]}": give each a name of its own.')
    shared = [name for name, times in Counter(row.folder.lower() for row in rows).items() if times > 1]
    if shared:
        raise ConfigError(f'Two rows of the comparison would share the folder "{shared[0]}": rename one of them.')
