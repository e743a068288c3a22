"""What a report page is made of. Texts are plain: the template escapes them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from markupsafe import Markup

from fedsynth.report.svg import Series

LONG_TABLE = 12  # rows; longer tables are folded
MOST_ROWS = 300


@dataclass
class Words:
    """A paragraph, or a list when there are several; `notice` for what must not be missed."""

    kind: ClassVar[str] = "words"
    texts: Sequence[str]
    notice: bool = False
    lead: bool = False  # what a section says first


@dataclass
class Table:
    """Rows under a caption. The first column names the row; the others are right-aligned where `numbers` says so."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True
    links: Sequence[str] = ()  # of the first column, where a page has such
    folded: bool = False  # opens on demand; long ones always, unless they are not foldable
    foldable: bool = True
    stacked: bool = False  # on a narrow screen, a row's cells stand below each other

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows that a page has room for."""
        return self.rows[:MOST_ROWS]

    def __post_init__(self) -> None:
        self.folded = self.folded or (self.foldable and len(self.rows) > LONG_TABLE)


@dataclass
class Figure:
    """A picture, what it shows in words, its legend, and the numbers behind it."""

    kind: ClassVar[str] = "figure"
    title: str
    svg: Markup
    words: str
    series: Sequence[Series] = ()
    steps: tuple[str, str] | None = None  # what the faintest and the strongest colour of a grid stand for
    keys: Sequence[tuple[str, str]] = ()  # other signs: class of the style sheet and meaning
    numbers: Table | None = None


@dataclass
class Gallery:
    """Small pictures side by side."""

    kind: ClassVar[str] = "gallery"
    figures: Sequence[Figure]
    wide: bool = False  # pictures with texts in them


@dataclass
class Code:
    """Text to copy."""

    kind: ClassVar[str] = "code"
    title: str
    text: str
    folded: bool = False


Block = Words | Table | Figure | Gallery | Code


@dataclass
class Section:
    """A part of a page with a heading."""

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)


def section(id: str, title: str, problems: list[str], build: Callable[[], list[Block]]) -> Section:
    """A section from a builder; one that stumbles over damaged data becomes a sentence, and the page goes on."""
    try:
        return Section(id, title, build())
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        said = f"{type(error).__name__}: {error}"[:300]
        problems.append(f'The section "{title}" could not be made from what is there ({said}).')
        return Section(id, title, [Words([f"What this run kept for it is damaged: {said}."])])


def show(value: float | None, form: str = ".2f", scale: float = 1.0, unit: str = "") -> str:
    """A number and its unit; a dash for what is not known or not finite."""
    return "–" if value is None or not math.isfinite(value) else f"{scale * value:{form}}{unit}"


def capitalised(text: str) -> str:
    """With a large first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def percent(value: float | None, digits: int = 2) -> str:
    """A share as a percentage."""
    return show(value, f".{digits}f", 100, " %")


def megabytes(count: float | None) -> str:
    """Bytes as megabytes."""
    return show(count, ",.2f", 1e-6, " MB")


def seconds(value: float | None) -> str:
    """Seconds, and minutes where they are many."""
    return show(value, ".1f", 1, " s") if value is None or value < 120 else show(value, ".1f", 1 / 60, " min")
