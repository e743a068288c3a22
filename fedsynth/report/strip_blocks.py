"""The blocks of the repair strip: they open the report of every run, and of every comparison, that adds data."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from fedsynth.evaluation.results import SynthesisCheck
from fedsynth.federation.methods import NOISE, WITHOUT_SYNTHESIS
from fedsynth.federation.records import SYNTHETIC
from fedsynth.report import strip_svg
from fedsynth.report.blocks import Block, Figure, Gallery, Table, Words, capitalised, show
from fedsynth.report.holdings import newest_samples, picture_of, read_arrays
from fedsynth.report.intervals import interval
from fedsynth.report.reading import RunRecord
from fedsynth.report.side_by_side import Group, metric_words
from fedsynth.report.strip import Strip, sentence, short_number, strip_of
from fedsynth.report.strip_svg import Bar, Panel, Part, class_style
from fedsynth.report.synthesis import MARKS, failed_synthesis_lines, synthesis_words

TITLE = "What clients lacked, and what was added"
MOST_CLIENTS = 30
MOST_CLASSES = 20  # of the picture of samples and of the legend
DRAWS = 3  # samples of each class
MEANS = "samples/real-class-means.safetensors"
RANKED = ("failed", "look", "unknown", "good")
REAL = "real samples"  # the control that shows the upper bound
SHORT_WORDS = {NOISE: "the same with noise", WITHOUT_SYNTHESIS: "the same, no samples", REAL: "the same, real ones"}


@dataclass(frozen=True)
class Opening:
    """What opens a page: its blocks, and the pictures among them as an SVG file; both empty where nothing was added."""

    blocks: list[Block]
    file: bytes = b""


def run_strip(run: RunRecord) -> Opening:
    """The strip of one run: checks that failed first, then the pictures; and these for a file of their own."""
    strip = strip_of(run)
    if strip is None:
        return Opening([])
    return _blocks(strip, run, run.summary.synthesis if run.summary else [], [], run.method)


def _blocks(strip: Strip, run: RunRecord, checks: Sequence[SynthesisCheck], last: list[Figure], label: str) -> Opening:
    figures = [*_split_figures(strip), *_sample_figures(run, strip), *last]
    verdict = _checks(checks)
    failed = any(check.mark == "failed" for check in checks)
    blocks: list[Block] = [
        *(verdict if failed else []),
        Words([sentence(strip)], lead=True),
        Gallery(figures, wide=True),
    ]
    panels = [Panel(figure.title, figure.words, figure.svg) for figure in figures]
    file = strip_svg.as_file(f"{label}: {sentence(strip)}", panels, strip.classes, _style()).encode()
    return Opening([*blocks, *([] if failed else verdict)], file)


def comparison_strip(groups: Sequence[Group]) -> Opening:
    """The strip of the first row that adds data, what that is worth beside its controls, and the checks of all rows."""
    adding = [g for g in groups if not g.runs[0].control and any(strip_of(run) is not None for run in g.runs)]
    if not adding:
        return Opening([])
    group = adding[0]
    run, strip = next((run, strip) for run in group.runs if (strip := strip_of(run)) is not None)
    summaries = [s.model_copy(update={"label": g.label}) for g in groups for _, s in g.finished]
    failed = failed_synthesis_lines(summaries)
    others = [other.label for other in adding[1:]]
    said = f"Shown is {group.label}, seed {run.seed}."
    said += (
        f" {', '.join(others)} {'add' if len(others) > 1 else 'adds'} data too: see their own reports."
        if others
        else ""
    )
    made = _blocks(strip, run, [], _worth(groups, group), group.label)
    notice: list[Block] = [Words(failed, notice=True)] if failed else []
    return Opening([*notice, *made.blocks, Words([said]), *_all_checks(groups)], made.file)


def _worth(groups: Sequence[Group], chosen: Group) -> list[Figure]:
    """The chosen metric on the global test of FedAvg, of the controls and variants of a row, and of the row itself."""
    method = chosen.runs[0].method
    of = {g.runs[0].control: g for g in groups if g.runs[0].control and g.runs[0].base == chosen.label}
    plain = [(g.label, g, "bar") for g in groups if g.runs[0].method == "fedavg" and not g.runs[0].control][:1]
    below = [(SHORT_WORDS[name], of[name], "bar other") for name in (NOISE, WITHOUT_SYNTHESIS) if name in of]
    variants = [(g.label, g, "bar own") for g in groups if g.runs[0].method == method and not g.runs[0].control]
    above = [(SHORT_WORDS[REAL], of[REAL], "bar bound")] if REAL in of else []
    found = [
        (name, interval(g.numbers(lambda s: s.tested)), style) for name, g, style in (*plain, *below, *variants, *above)
    ]
    rows = [(name, 100 * value.mean, style) for name, value, style in found if value is not None]
    if len(rows) < 2:
        return []
    n = min(value.n for _, value, _ in found if value is not None)
    said = "; ".join(f"{name}: {value:.1f} %" for name, value, _ in rows)
    seeds = "single runs" if n == 1 else f"means over {n} seeds"
    words = f"{capitalised(metric_words(groups))} of the global model on the global test, {seeds}. {said}."
    title = "4 What it is worth"
    return [Figure(title, strip_svg.accuracies(title, words, rows), words)]


def _all_checks(groups: Sequence[Group]) -> list[Block]:
    """The checks of every row that has some, of its worst seed."""
    rows: dict[str, dict[str, str]] = {}
    columns = list(dict.fromkeys(check.check for g in groups for _, s in g.finished for check in s.synthesis))
    for group in groups:
        for check in sorted((c for _, s in group.finished for c in s.synthesis), key=lambda c: -RANKED.index(c.mark)):
            rows.setdefault(group.label, {})[check.check] = f"{MARKS[check.mark]} {_value(check)}"
    cells = [[label, *(row.get(name, "–") for name in columns)] for label, row in rows.items()]
    caption = "Did the synthesis work? The worst seed of each row; their own reports say more"
    return [Table(caption, ["method", *columns], cells, numbers=False, stacked=True)] if rows else []


def _value(check: SynthesisCheck) -> str:
    if check.value is None:
        return "not known"
    return show(check.value, ".2f") if check.check == "diversity" else show(check.value, ".0f", 100, " %")


def _checks(checks: Sequence[SynthesisCheck]) -> list[Block]:
    ranked = sorted(checks, key=lambda check: RANKED.index(check.mark))
    words = [synthesis_words(check) for check in ranked]
    return [Words(words, notice=any(check.mark in ("failed", "look") for check in checks))] if words else []


def _split_figures(strip: Strip) -> list[Figure]:
    """What each client has, and the same with what was added."""
    shown, classes = range(min(len(strip.clients), MOST_CLIENTS)), range(len(strip.classes))
    some = f" The first {len(shown)} clients are drawn." if len(shown) < len(strip.clients) else ""
    names = [str(name) for name in strip.classes]
    keys = [(class_style(k), name) for k, name in enumerate(names)] if len(names) <= MOST_CLASSES else []
    figures = []
    if strip.told:
        bars = [_bar(strip.clients[r], [Part(k, strip.held[r][k]) for k in classes]) for r in shown]
        noisy = f", as they released it, with noise of σ = {strip.noise:.3g} on each number" if strip.noise else ""
        lacking = f"{short_number(strip.missing(after=False))} of {len(names)} classes missing per client"
        words = f"{sum(map(sum, strip.held)):,} real examples{noisy}; {lacking}.{some}"
        drawn = strip_svg.stacked("1 What clients have", words, bars, names)
        figures.append(Figure("1 What clients have", drawn, words, keys=keys))
    if not strip.known:
        return figures
    bars = [_bar(strip.clients[r], _mixed(strip.held[r], strip.added[r]), split=True) for r in shown if strip.record]
    bars += [_bar("server", _mixed([0] * len(names), row), split=True) for row in _server_rows(strip)]
    every = (*strip.added, *_server_rows(strip))
    words = f"Hatched is what was added: {sum(map(sum, every)):,} {strip.what}.{some} {_basis(strip)}".strip()
    drawn = strip_svg.stacked("2 With what was added", words, bars, names)
    return [*figures, Figure("2 With what was added", drawn, words, numbers=_numbers(strip))]


def _server_rows(strip: Strip) -> list[list[int]]:
    return strip.server.added if strip.server else []


def _mixed(own: Sequence[int], more: Sequence[int]) -> list[Part]:
    return [part for k in range(len(own)) for part in (Part(k, own[k]), Part(k, more[k], added=True))]


def _bar(name: str, parts: Sequence[Part], split: bool = False) -> Bar:
    own, more = (sum(part.count for part in parts if part.added is added) for added in (False, True))
    return Bar(name, parts, f"{own}+{more}" if split else f"{own}")


def _basis(strip: Strip) -> str:
    """How it is known what was added."""
    record, about = strip.record, " ".join(r.about for r in (strip.record, strip.server) if r and r.about)
    if record is None or record.basis == "exact":
        return about
    noisy = f" with noise of σ = {record.noise:.3g} on each" if record.noise else ""
    said = "Not counted at the clients: it is what follows from what they released for the method"
    return f"{said}, class counts{noisy}. {about}" if record.held else f"{said}. {about}"


def _numbers(strip: Strip) -> Table:
    rows = [
        [client, *(f"{own} + {more}" if more else str(own) for own, more in zip(have, gets, strict=True))]
        for client, have, gets in zip(strip.clients, strip.held, strip.added, strict=True)
        if strip.record
    ]
    rows += [["server", *(f"0 + {more}" for more in row)] for row in _server_rows(strip)]
    return Table("Own examples + what was added, by client and class", ["client", *strip.classes], rows, folded=True)


def _sample_figures(run: RunRecord, strip: Strip) -> list[Figure]:
    """Some of the samples that were shown last, a class a column, below the real means where a simulation has them."""
    found = newest_samples(run)
    if found is None or not strip.classes or not strip.what.startswith(SYNTHETIC):
        return []
    images, labels = found
    means = _class_means(run, images.shape[1:])
    shown = list(range(len(strip.classes)))[:MOST_CLASSES]
    rows = [] if means is None else [("real mean", _first(*means, shown, 0))]
    drawn = min(DRAWS, max(int((labels == k).sum()) for k in shown) if len(labels) else 0)
    rows += [("synthetic", _first(images, labels, shown, draw)) for draw in range(drawn)]
    png, size = picture_of([row for _, row in rows], images.shape[1:])
    classes = [strip.classes[k] for k in shown]
    lacking = [strip.classes[k] for k in shown if not (labels == k).any()]
    below = ", below the mean of all real training images of it" if means else ""
    title, words = "3 The samples", f"Samples that the method has shown, a column a class{below}."
    words += f" None of: {', '.join(lacking)}." if lacking else ""
    text = base64.b64encode(png).decode()
    return [Figure(title, strip_svg.mosaic(title, words, text, size, [name for name, _ in rows], classes), words)]


def _class_means(run: RunRecord, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """The real class means and their classes, where the run was a simulation and has kept them."""
    try:
        means = read_arrays(run.path, MEANS)
    except (OSError, ValueError, KeyError):
        return None
    return means if means[0].shape[1:] == shape else None


def _first(images: np.ndarray, labels: np.ndarray, classes: Sequence[int], draw: int) -> list[np.ndarray | None]:
    """The n-th image of each class."""
    places = [np.flatnonzero(labels == k) for k in classes]
    return [images[rows[draw]] if draw < len(rows) else None for rows in places]


@functools.cache
def _style() -> str:
    return resources.files("fedsynth.report").joinpath("templates/page.css").read_text(encoding="utf-8")
