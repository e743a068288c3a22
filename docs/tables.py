"""Fills the tables of these pages from the settings classes and the measured results.

A page holds markers such as `<!-- table: train -->` … `<!-- end -->`; what stands between them is made here. Run
`python docs/tables.py` after changing a setting; `python docs/tables.py --check` only says which pages are out of date.
"""

from __future__ import annotations

import csv
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

import fedsynth.methods  # noqa: F401  (registers the methods)
from fedsynth.components.slots import Aggregator, LocalData, LocalObjective, PostAggregation, ServerOptimizer, SlotValue
from fedsynth.data.partition import PARTITIONERS, PartitionConfig
from fedsynth.experiment.config import SECTIONS, Experiment
from fedsynth.federation.methods import all_methods, find_method

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- table: (?P<what>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SLOTS: dict[str, type[SlotValue]] = {
    "objective": LocalObjective,
    "aggregator": Aggregator,
    "server": ServerOptimizer,
    "post_aggregation": PostAggregation,
    "local_data": LocalData,
}
COLUMNS = {
    "test": "global test",
    "class_variance": "class variance",
    "mean": "clients, mean",
    "worst": "worst client",
    "variance": "client variance",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def settings_table(fields: dict[str, FieldInfo]) -> str:
    """Key, kind, default and meaning of each field."""
    if not fields:
        return "No settings of its own.\n"
    rows = [
        [f"`{key}`{other_names(key, field)}", kind_of(field.annotation), default_of(field), meaning_of(field)]
        for key, field in fields.items()
    ]
    return table(["key", "kind", "default", "meaning"], rows)


def other_names(key: str, field: FieldInfo) -> str:
    """Names that other tools use for the same key."""
    choices = field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else []
    others = [f"`{choice}`" for choice in choices if choice != key]
    return f" (or {', '.join(others)})" if others else ""


def kind_of(annotation: Any) -> str:
    """The kind of a value, in words."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return kind_of(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(part) for part in typing.get_args(annotation) if part is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin in (tuple, list):
        return "list"
    if origin is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, SlotValue):
        return "name or table"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
    return names.get(annotation, "section")


def default_of(field: FieldInfo) -> str:
    """The default as one would write it in an experiment file."""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | Path):
        return f'`"{value}"`'
    if isinstance(value, tuple | list):
        return f"`{list(value)}`"
    return "`{}`" if value == {} else f"`{value}`"


def meaning_of(field: FieldInfo) -> str:
    """The description, as a part of a table."""
    return without_capital((field.description or "").strip().rstrip(".").replace("|", "\\|"))


def without_capital(text: str) -> str:
    """With a small first letter, unless the first word is a name."""
    first = text.split(" ")[0]
    named = first in ("Adam's", "Python") or any(letter.isupper() for letter in first[1:])  # Fed-ZDAC, GANs, SGD
    return text if named else text[:1].lower() + text[1:]


def top_level() -> str:
    """Keys of an experiment that stand above the sections."""
    sections = (*SECTIONS, "partition", "method")
    return settings_table({key: field for key, field in Experiment.model_fields.items() if key not in sections})


def partition_table(name: str) -> str:
    """Keys of one partitioner; those that all have are listed once, under `common`."""
    common = PartitionConfig.model_fields
    if name == "common":
        return settings_table({key: field for key, field in common.items() if key != "name"})
    fields = PARTITIONERS[name].config.model_fields
    return settings_table(
        {k: f for k, f in fields.items() if k != "name" and (k not in common or f.default != common[k].default)}
    )


def slot_table(slot: str) -> str:
    """The values of a slot and their settings."""
    rows = []
    for name, kind in sorted(SLOTS[slot].known.items()):
        if not kind.__module__.startswith("fedsynth."):
            continue
        keys = ", ".join(f"`{key}` = {default_of(field)}" for key, field in kind.model_fields.items())
        summary = (kind.__doc__ or "").strip().split("\n")[0].rstrip(".")
        rows.append([f"`{name}`", without_capital(summary), keys or "–"])
    return table(["value", "what it does", "settings"], rows)


def method_list() -> str:
    """All methods with a link to their pages."""
    rows = [
        [f"[`{m.name}`](methods/{m.name}.md)", m.summary.rstrip("."), f"`{m.model}`"]
        for m in all_methods()
        if m.program.__module__.startswith("fedsynth.")
    ]
    return table(["method", "what it does", "model it takes unless told"], rows)


def results_table(wanted: str) -> str:
    """Rows of a kept comparison: `FILE` for all, or `FILE METHOD METHOD …`."""
    file, *names = wanted.split()
    with (DOCS / "results" / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if not names or row["method"] in names]
    return table(
        ["method", *COLUMNS.values(), "n"],
        [[row["method"], *(result_cell(row, key) for key in COLUMNS), row["n"]] for row in rows],
    )


def result_cell(row: dict[str, str], key: str) -> str:
    """Mean ± standard deviation over the seeds."""
    if not row[key]:
        return "–"
    scale, digits = (1, 0) if "variance" in key else (100, 1)
    own = " (own models)" if key == "mean" and row["view"] == "personal" else ""
    spread = f" ± {scale * float(row[f'{key}_std']):.{digits}f}" if row[f"{key}_std"] else ""  # none for a single run
    return f"{scale * float(row[key]):.{digits}f}{spread}{own}"


STUDY = {"late": "mean of the last 5 rounds", "seeds": "each seed", "final": "last round"}


def study_table(wanted: str) -> str:
    """One part of a study's results: `FILE PART`, or `FILE PART | COLUMN = heading | …` for other columns."""
    place, *chosen = (words.strip() for words in wanted.split("|"))
    file, part = place.split(" ", 1)
    columns = dict(tuple(words.split(" = ", 1)) for words in chosen) if chosen else STUDY
    with (DOCS / "results" / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["part"] == part]
    return table(
        ["", *columns.values(), "n"],
        [
            [row["row"], *(study_cell(row, key) for key in columns), row["n"] if row["n"] != "1" else "1, single run"]
            for row in rows
        ],
    )


def study_cell(row: dict[str, str], key: str) -> str:
    """A number with its spread over the seeds, or a list of numbers as it is."""
    if " " in row[key] or "." not in row[key]:
        return row[key] or "–"
    value = float(row[key])
    digits = 1 if "variance" in key else 2
    spread = f" ± {float(row[f'{key}_std']):.{digits}f}" if row.get(f"{key}_std") else ""
    return f"{value:.{digits}f}{spread}"


def plain_table(name: str) -> str:
    """A kept table as it is."""
    with (DOCS / "results" / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    return table(header, rows)


def network_table(wanted: str) -> str:
    """What an ask over a network costs (`seconds`), or what that means for a run of so many rounds (`runs 50`)."""
    kind, _, rounds = wanted.partition(" ")
    with (DOCS / "results" / "network.csv").open(newline="", encoding="utf-8") as lines:
        sizes = list(csv.DictReader(lines))
    if kind == "seconds":
        rows = [
            [s["megabytes"], f"{s['seconds']} ({s['fastest']}–{s['slowest']})", s["megabytes_per_second"], s["n"]]
            for s in sizes
        ]
        return table(["MB to each site, and back", "seconds an ask, median (range)", "MB/s, all sites", "n"], rows)
    with (DOCS / "results" / "network-asks.csv").open(newline="", encoding="utf-8") as lines:
        methods = list(csv.DictReader(lines))
    rows = []
    for row in methods:
        asks = float(row["once"]) + int(rounds) * float(row["per_round"])
        minutes = [f"{asks * float(size['seconds']) / 60:.0f}" for size in sizes]
        rows.append([row["method"], f"{float(row['once']):g}", f"{float(row['per_round']):g}", f"{asks:g}", *minutes])
    header = ["method", "asks, once", "asks a round", f"asks in {rounds} rounds"]
    return table([*header, *(f"minutes at {size['megabytes']} MB" for size in sizes)], rows)


def made(what: str) -> str:
    """The table that a marker asks for."""
    kind, _, name = what.partition(" ")
    if kind == "top-level":
        return top_level()
    if kind == "section":
        fields: type[BaseModel] = SECTIONS[name]
        return settings_table(fields.model_fields)
    if kind == "method":
        return settings_table(find_method(name).config.own_settings())
    makers = {
        "partition": partition_table,
        "slot": slot_table,
        "results": results_table,
        "study": study_table,
        "csv": plain_table,
        "network": network_table,
    }
    return method_list() if kind == "methods" else makers[kind](name)


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda match: match[1] + made(match["what"]) + match[3], text)


def main(check: bool) -> int:
    """Rewrite the pages, or name those that would change."""
    stale = 0
    for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"]):
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new == text:
            continue
        stale += 1
        print(f"{page.relative_to(DOCS.parent)} {'is out of date' if check else 'is up to date again'}")
        if not check:
            page.write_text(new, encoding="utf-8")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
