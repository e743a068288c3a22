"""CSV files of results, for people and their spreadsheets.

Names of clients, classes and methods come from elsewhere, and a spreadsheet runs a cell that begins like a formula.
Such text is written with an apostrophe before it, which spreadsheets take as "this is text"; reading takes it off.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
"""Apostrophes included, so that text which begins with one itself is read back as it was."""


def safe_cell(value: Any) -> Any:
    """Text as no spreadsheet runs it; numbers, negative ones too, stay numbers."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def plain_cell(text: Any) -> Any:
    """The text that `safe_cell` was given; anything else stays as it is."""
    return text[1:] if isinstance(text, str) and text.startswith("'") and _FORMULA.match(text) else text


def write_rows(file: Any, rows: Iterable[Sequence[Any]]) -> None:
    """Write lines of cells to an open file."""
    csv.writer(file).writerows([safe_cell(cell) for cell in row] for row in rows)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """A CSV file with the union of the rows' keys as columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [columns, *([row.get(column, "") for column in columns] for row in rows)])


def read_rows(lines: Iterable[str]) -> list[dict[Any, Any]]:
    """The rows of a file that was written here, as `csv.DictReader` gives them, its text as it was."""
    return [{plain_cell(key): plain_cell(value) for key, value in row.items()} for row in csv.DictReader(lines)]
