"""Charts as inline SVG: small, sharp on any screen, and coloured by the page's style sheet, light or dark.

Charts are drawn about 340 units wide, so that their text stays readable on a phone. Colour is never the only sign:
lines differ in their dashes, marks in their shape. Every text is escaped; every chart has a title and a description.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
COLOURS = 8
LEVELS = 7
_IDS = itertools.count(1)


@dataclass(frozen=True)
class Series:
    """A line: points (x, y), those that are not finite left out; `dashed` for a second kind of the same colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dashed: bool = False

    @property
    def classes(self) -> str:
        """What the style sheet knows it by: a colour, and dashes that change when the colours repeat."""
        dash = "dash" if self.dashed else f"d{self.colour // COLOURS % 3}"
        return f"s{self.colour % COLOURS} {dash}"


def new_id() -> int:
    """A number that no other part of a page has."""
    return next(_IDS)


def frame(title: str, about: str, width: float, height: float, content: str) -> Markup:
    """An SVG with a title and a description that a screen reader says."""
    number = new_id()
    return Markup(
        f'<svg viewBox="0 0 {rounded(width)} {rounded(height)}" role="img" aria-labelledby="t{number} a{number}">'
        f'<title id="t{number}">{escape(title)}</title><desc id="a{number}">{escape(about)}</desc>{content}</svg>'
    )


def curves(
    title: str, about: str, series: Sequence[Series], x_label: str, y_label: str, percent: bool = True
) -> Markup:
    """Lines over a common axis; y from 0 to 100 where it is a percentage of everything."""
    height, left, right, top, bottom = 226, 34, 8, 24, 34
    lines = [[(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)] for line in series]
    xs = [x for line in lines for x, _ in line] or [0.0, 1.0]
    ys = [y for line in lines for _, y in line] or [0.0, 1.0]
    x_ticks = ticks(min(xs), max(max(xs), min(xs) + 1), 6, whole=True)
    y_ticks = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0] if percent else ticks(min(0.0, *ys), max(*ys, 1e-9), 5)
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)

    def px(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (WIDTH - left - right)

    def py(y: float) -> float:
        return top + (1 - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])) * (height - top - bottom)

    parts = [
        draw_rule(left, py(y), WIDTH - right, py(y), "rule") + write_text(left - 5, py(y) + 4, rounded(y), "end")
        for y in y_ticks
    ]
    parts += [
        write_text(px(x), height - bottom + 15, rounded(x), "end" if px(x) > WIDTH - 16 else "middle")
        for x in x_ticks
        if x_low <= x <= x_high
    ]
    parts.append(write_text((left + WIDTH - right) / 2, height - 3, x_label, "middle", "axis"))
    parts.append(write_text(0, 11, y_label, "start", "axis"))
    for line, points in zip(series, lines, strict=True):
        if len(points) == 1:
            x, y = rounded(px(points[0][0])), rounded(py(points[0][1]))
            parts.append(f'<circle class="dot {line.classes}" cx="{x}" cy="{y}" r="3"/>')
        elif points:
            path = "L".join(f"{rounded(px(x))} {rounded(py(y))}" for x, y in points)
            parts.append(f'<path class="line {line.classes}" d="M{path}"/>')
    return frame(title, about, WIDTH, height + 2, "".join(parts))


def bars(
    title: str, about: str, rows: Sequence[tuple[str, float | None]], marks: Sequence[float | None] = ()
) -> Markup:
    """A horizontal bar per row, 0 to 100, with its number; `marks` puts a diamond on each row for a second number."""
    step, left, right = 20, _label_width([label for label, _ in rows]), 46
    scale = (WIDTH - left - right) / 100
    parts = []
    for index, (label, value) in enumerate(rows):
        y = index * step
        parts.append(write_text(left - 6, y + 13, short(label), "end"))
        parts.append(draw_rule(left, y + 16, left + 100 * scale, y + 16, "rule"))
        if value is None or not math.isfinite(value):
            parts.append(write_text(left + 4, y + 13, "none", "start", "faint"))
            continue
        parts.append(
            f'<rect class="bar" x="{left}" y="{y + 3}" width="{rounded(max(0.5, value * scale))}" height="11"/>'
        )
        parts.append(write_text(WIDTH, y + 13, f"{value:.1f}", "end"))
        mark = marks[index] if index < len(marks) else None
        if mark is not None and math.isfinite(mark):
            x = rounded(left + mark * scale)
            parts.append(f'<path class="mark" d="M{x} {y + 3}l5 5.5l-5 5.5l-5-5.5z"/>')
    return frame(title, about, WIDTH, max(step * len(rows), 1), "".join(parts))


def whiskers(title: str, about: str, rows: Sequence[tuple[str, float, float, float]]) -> Markup:
    """A mean with its interval per row, around a line at zero: (label, low, mean, high)."""
    step, left = 24, _label_width([row[0] for row in rows], 158)
    ends = ticks(min(0.0, *(row[1] for row in rows)), max(0.0, *(row[3] for row in rows)), 5)
    scale = (WIDTH - left - 14) / max(ends[-1] - ends[0], 1e-9)
    bottom = step * len(rows)

    def px(value: float) -> float:
        return left + (value - ends[0]) * scale

    parts = [draw_rule(px(x), 0, px(x), bottom, "zero" if x == 0 else "rule") for x in ends]
    parts += [write_text(px(x), bottom + 14, f"{x:+g}" if x else "0", "middle") for x in ends]
    for index, (label, low, mean, high) in enumerate(rows):
        y = index * step + step / 2
        parts.append(write_text(left - 8, y + 4, short(label, 20), "end"))
        parts.append(draw_rule(px(low), y, px(high), y, "whisker"))
        parts.append(f'<circle class="mean" cx="{rounded(px(mean))}" cy="{rounded(y)}" r="4"/>')
    return frame(title, about, WIDTH, bottom + 20, "".join(parts))


@dataclass(frozen=True)
class Cells:
    """Cells of a grid that look alike: a class of the style sheet, (row, column) pairs, and how tall of 1."""

    style: str
    cells: Sequence[tuple[int, int]]
    tall: float = 1.0


def grid(
    title: str,
    about: str,
    rows: Sequence[str],
    columns: Sequence[str],
    kinds: Sequence[Cells],
    x_label: str,
    marks: Sequence[tuple[int, int]] = (),
) -> Markup:
    """A table drawn as coloured cells, one path per kind of cell, so that 10,000 cells stay small."""
    left = _label_width(rows)
    wide = min(29.0, (WIDTH - left - 2) / max(1, len(columns)))
    high = min(max(wide, 13.0), 19.0) if len(rows) <= 40 else max(3.0, min(11.0, 480 / len(rows)))
    gap = 1.0 if min(wide, high) >= 6 else 0.0
    top = 0.0 if high >= 12 else 5.0  # room for the first label
    parts = []
    for kind in kinds:
        tall = high * kind.tall if high >= 8 else high  # in tiny cells only colour can be seen
        shape = f"h{rounded(wide - gap)}v{rounded(tall - gap)}h-{rounded(wide - gap)}z"
        path = "".join(
            f"M{rounded(left + c * wide)} {rounded(top + r * high + high - tall)}{shape}" for r, c in kind.cells
        )
        parts.append(f'<path class="{kind.style}" d="{path}"/>' if path else "")
    for row, column in marks:
        x, y = left + (column + 0.5) * wide, top + (row + 0.5) * high
        parts.append(
            f'<circle class="ring" cx="{rounded(x)}" cy="{rounded(y)}" r="{rounded(max(1.5, min(wide, high) / 4))}"/>'
        )
    every = max(1, math.ceil(13 / high))
    parts += [
        write_text(left - 5, top + (r + 0.5) * high + 4, short(rows[r]), "end") for r in range(0, len(rows), every)
    ]
    bottom = top + len(rows) * high
    longest = max((len(short(name, 8)) for name in columns), default=1)
    every = max(1, math.ceil((longest * 7.2 + 4) / wide))
    parts += [
        write_text(left + (c + 0.5) * wide, bottom + 13, short(columns[c], 8), "middle")
        for c in range(0, len(columns), every)
        if c == 0 or left + (c + 0.5) * wide + longest * 3.6 <= WIDTH
    ]
    parts.append(write_text(left, bottom + 29, x_label, "start", "axis"))
    return frame(title, about, WIDTH, bottom + 34, "".join(parts))


def levels(values: Sequence[Sequence[float | None]], low: float, high: float) -> list[Cells]:
    """Numbers as steps of one colour, `low` the faintest; what is not known stays empty."""
    steps: list[list[tuple[int, int]]] = [[] for _ in range(LEVELS)]
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            if value is not None and math.isfinite(value):
                share = (value - low) / (high - low) if high > low else 1.0
                steps[min(LEVELS - 1, max(0, int(share * LEVELS)))].append((r, c))
    return [Cells(f"q{step}", cells) for step, cells in enumerate(steps)]


def picture(title: str, about: str, png: str, size: tuple[int, int], rows: Sequence[str]) -> Markup:
    """A small PNG (base64) with a label beside each of its equally high rows."""
    left = _label_width(rows, 70)
    width = 260 - left
    height = width * size[1] / size[0]
    step = height / max(1, len(rows))
    every = max(1, math.ceil(12 / step))
    parts = [
        f'<image href="data:image/png;base64,{png}" x="{left}" y="0" width="{width}" height="{rounded(height)}" '
        'preserveAspectRatio="none" class="pixels"/>'
    ]
    parts += [write_text(left - 5, (r + 0.5) * step + 4, short(rows[r], 9), "end") for r in range(0, len(rows), every)]
    return frame(title, about, 260, height, "".join(parts))


def ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """About `count` round numbers that cover low to high."""
    span = max(high - low, 1e-9)
    raw = span / max(1, count - 1)
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]


def short(text: str, longest: int = 12) -> str:
    """A label that fits; the table below the chart has the whole one."""
    return text if len(text) <= longest else f"{text[: longest - 4]}…{text[-3:]}"


def _label_width(labels: Sequence[str], most: int = 106) -> int:
    longest = max((len(short(label, 22)) for label in labels), default=0)
    return min(most, 10 + round(7.8 * longest))


def write_text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    """A text of an SVG."""
    of = f' class="{style}"' if style else ""
    return f'<text x="{rounded(x)}" y="{rounded(y)}" text-anchor="{anchor}"{of}>{escape(text)}</text>'


def draw_rule(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line of an SVG."""
    return f'<line class="{style}" x1="{rounded(x1)}" y1="{rounded(y1)}" x2="{rounded(x2)}" y2="{rounded(y2)}"/>'


def rounded(number: float) -> str:
    """A number with at most one digit behind the point."""
    return f"{number:.1f}".removesuffix(".0")
