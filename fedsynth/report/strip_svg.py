"""The pictures of the repair strip: a bar a client, a colour a class, hatched where it was added; samples; accuracies.

Colours are a palette for colour blindness, and not the only sign: classes stand in one order, wide parts carry their
class, and every part says what it is when pointed at.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fedsynth.report.svg import WIDTH, draw_rule, frame, new_id, rounded, short, write_text

CLASS_COLOURS = 10


@dataclass(frozen=True)
class Part:
    """A part of a bar: so many examples of a class; `added` ones are hatched."""

    label: int
    count: int
    added: bool = False


@dataclass(frozen=True)
class Bar:
    """A client's bar."""

    name: str
    parts: Sequence[Part]
    total: str


def class_style(label: int) -> str:
    """The style of a class; they repeat where there are many."""
    return f"c{label % CLASS_COLOURS}"


def stacked(title: str, about: str, bars: Sequence[Bar], classes: Sequence[str]) -> Markup:
    """A bar a client, each as long as the other, divided by class."""
    step = 20 if len(bars) <= 16 else 14
    left = min(90, 10 + round(7.2 * max((len(short(bar.name, 10)) for bar in bars), default=0)))
    totals = 12 + round(7.2 * max((len(bar.total) for bar in bars), default=0))
    wide, hatch, drawn = WIDTH - left - totals, f"hatch{new_id()}", []
    covered: list[str] = []
    for place, bar in enumerate(bars):
        top, x = place * step, float(left)
        drawn.append(write_text(left - 5, top + step / 2 + 4, short(bar.name, 10), "end"))
        drawn.append(write_text(WIDTH, top + step / 2 + 4, bar.total, "end", "faint"))
        whole = sum(part.count for part in bar.parts)
        if not whole:
            drawn.append(draw_rule(left, top + step / 2, left + wide, top + step / 2, "rule"))
        for part in bar.parts:
            size = wide * part.count / whole if whole else 0.0
            box = f'x="{rounded(x)}" y="{top + 1}" width="{size:.2f}" height="{step - 3}"'
            drawn.append(_part(box, part, classes))
            covered += [f"M{x:.2f} {top + 1}h{size:.2f}v{step - 3}h-{size:.2f}z"] if part.added else []
            drawn.append(_inside(x, top + step / 2 + 4, size, classes[part.label]) if step == 20 else "")
            x += size
    pattern = (
        f'<defs><pattern id="{hatch}" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M1 0V5"/></pattern></defs>'
    )
    over = f'<path fill="url(#{hatch})" d="{"".join(covered)}" pointer-events="none"/>' if covered else ""
    texts = [piece for piece in drawn if piece.startswith("<text")]
    shapes = [piece for piece in drawn if not piece.startswith("<text")]
    content = "".join([pattern, *shapes, over, *texts])
    return frame(title, about, WIDTH, max(step * len(bars), 1), content)


def _part(box: str, part: Part, classes: Sequence[str]) -> str:
    said = f"{part.count} {'added ' if part.added else ''}of class {classes[part.label]}"
    style = f"{class_style(part.label)} part{' added' if part.added else ''}"
    return f'<rect class="{style}" {box}><title>{escape(said)}</title></rect>' if part.count else ""


def _inside(x: float, y: float, size: float, name: str) -> str:
    """The name of a class inside of its part, where it fits."""
    shown = short(name, 7)
    return write_text(x + size / 2, y, shown, "middle", "inside") if size >= 7.2 * len(shown) + 4 else ""


def mosaic(
    title: str, about: str, png: str, size: tuple[int, int], rows: Sequence[str], columns: Sequence[str]
) -> Markup:
    """A PNG (base64) of samples, a class a column, with a label at each of its equally high rows."""
    left, top = 10 + round(7.2 * max((len(row) for row in rows), default=0)), 20
    width = min(WIDTH - left, 44 * len(columns))
    height = width * size[1] / size[0]
    each, high = width / max(1, len(columns)), height / max(1, len(rows))
    image = (
        f'<image href="data:image/png;base64,{png}" x="{left}" y="{top}" width="{rounded(width)}" '
        f'height="{rounded(height)}" preserveAspectRatio="none" class="pixels"/>'
    )
    fits = max(1, int((each - 2) / 7.2))
    names = [
        write_text(left + (k + 0.5) * each, 11, short(name, max(fits, 1)), "middle") for k, name in enumerate(columns)
    ]
    ticks = [
        f'<rect class="{class_style(k)}" x="{rounded(left + k * each + 1)}" y="{top - 4}" width="{rounded(each - 2)}" '
        'height="3"/>'
        for k in range(len(columns))
    ]
    heads = names if fits >= min(5, max(map(len, columns), default=0)) else []
    sides = [write_text(left - 5, top + (k + 0.5) * high + 4, row, "end") for k, row in enumerate(rows)]
    return frame(title, about, WIDTH, top + height + 2, "".join([image, *ticks, *heads, *sides]))


def accuracies(title: str, about: str, rows: Sequence[tuple[str, float, str]]) -> Markup:
    """A bar for each (label, accuracy in percent, style), on one scale from 0 to 100."""
    step, right = 26, 42
    left = 10 + round(7.0 * max((len(short(label, 20)) for label, _, _ in rows), default=0))
    scale = (WIDTH - left - right) / 100
    drawn = []
    for place, (label, value, style) in enumerate(rows):
        top = place * step
        drawn.append(write_text(left - 6, top + 16, short(label, 20), "end"))
        drawn.append(draw_rule(left, top + 21, left + 100 * scale, top + 21, "rule"))
        drawn.append(f'<rect class="{style}" x="{left}" y="{top + 5}" width="{rounded(value * scale)}" height="14"/>')
        drawn.append(write_text(WIDTH, top + 16, f"{value:.1f}", "end"))
    return frame(title, about, WIDTH, max(step * len(rows), 1), "".join(drawn))


@dataclass(frozen=True)
class Panel:
    """A picture of the strip with its heading and a line below it."""

    title: str
    words: str
    svg: Markup


GAP, HEAD, LINE = 28, 44, 15
ACROSS = 2  # panels beside each other: as wide as a README


def as_file(heading: str, panels: Sequence[Panel], classes: Sequence[str], style: str) -> str:
    """All panels in one SVG file of its own, light or dark as the reader's screen is."""
    lines = _wrapped(heading, 72)
    drawn = [write_text(GAP, 28 + 22 * k, line, "start", "heading") for k, line in enumerate(lines)]
    top = HEAD + 22.0 * (len(lines) - 1)
    keys, high = _legend(classes, top + 8)
    drawn, top = drawn + keys, top + high
    for first in range(0, len(panels), ACROSS):
        row = panels[first : first + ACROSS]
        deepest = max(len(_wrapped(panel.words, 54)) for panel in row) * LINE
        for place, panel in enumerate(row):
            drawn += _placed(panel, GAP + place * (WIDTH + GAP), top, deepest)
        top += 24 + deepest + max(_height(panel) for panel in row) + GAP
    width = ACROSS * (WIDTH + GAP) + GAP
    about = f"{heading} " + " ".join(f"{panel.title}: {panel.words}" for panel in panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {rounded(top)}" width="{width}" '
        f'height="{rounded(top)}" role="img" aria-label="{escape(about)}"><style>{style}</style>'
        f'<rect class="ground" width="{width}" height="{rounded(top)}"/>{"".join(drawn)}</svg>\n'
    )


def _legend(classes: Sequence[str], top: float) -> tuple[list[str], float]:
    """The colours of the classes in lines, and how high they are together."""
    drawn, x, y = [], float(GAP), top
    for label, name in enumerate(classes[: 3 * CLASS_COLOURS]):
        shown = short(name, 16)
        if x + 34 + 7 * len(shown) > ACROSS * (WIDTH + GAP):
            x, y = float(GAP), y + 18
        drawn.append(f'<rect class="{class_style(label)}" x="{rounded(x)}" y="{rounded(y)}" width="10" height="10"/>')
        drawn.append(write_text(x + 15, y + 9, shown, "start"))
        x += 34 + 7 * len(shown)
    return drawn, y - top + 28


def _placed(panel: Panel, x: float, top: float, deepest: int) -> list[str]:
    """A panel with its heading and words, its picture below the deepest words of its row."""
    words = [
        write_text(x, top + 30 + k * LINE, line, "start", "faint") for k, line in enumerate(_wrapped(panel.words, 54))
    ]
    place = (
        f'<svg x="{rounded(x)}" y="{rounded(top + 24 + deepest)}" width="{WIDTH}" height="{rounded(_height(panel))}" '
    )
    title = write_text(x, top + 14, panel.title, "start", "strong")
    return [title, *words, str(panel.svg).replace("<svg ", place, 1)]


def _height(panel: Panel) -> float:
    return float(re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', panel.svg)[0])


def _wrapped(words: str, longest: int) -> list[str]:
    return textwrap.wrap(words, longest) or [""]
