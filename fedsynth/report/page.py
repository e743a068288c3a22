"""One self-contained HTML page about a run, or about several side by side. It needs no network and runs no script."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedsynth import __version__
from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import ComparisonPlan, TuningResult
from fedsynth.federation.store import write_atomically
from fedsynth.report import course, holdings, outcome, side_by_side, strip_blocks
from fedsynth.report.blocks import Block, Section, Words, capitalised, section
from fedsynth.report.measures import measures
from fedsynth.report.reading import RunRecord, read_inside, read_run, say_fault
from fedsynth.report.side_by_side import metric_words
from fedsynth.report.tables import problem_lines

STRIP = "strip"  # the section that opens a page

STYLES = {"finished": "good", "running": "warn", "failed": "bad", "interrupted": "warn"}


@dataclass
class Page:
    """What the template fills in."""

    title: str
    kind: str
    about: str
    sections: list[Section]
    problems: list[str] = field(default_factory=list)
    stamps: list[dict[str, str]] = field(default_factory=list)
    home: str = ""
    refresh: int = 0
    strip: bytes = b""  # its opening pictures as one SVG, where there are some

    def html(self) -> str:
        """The page as one string."""
        page = _environment().get_template("page.html.j2")
        return page.render(
            **{key: value for key, value in vars(self).items() if key != "strip"},
            footer=f"Made by fedsynth {__version__}.",
        )


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedsynth.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def run_page(run: RunRecord) -> Page:
    """The report of one run."""
    parts = [
        ("result", "Result", outcome.headline),
        ("curves", f"{capitalised(run.metric_words)} over the rounds", outcome.curves),
        ("clients", "Clients", outcome.clients),
        ("classes", "Classes", outcome.classes),
        ("measures", "Measures", measures),
        ("split", "Who has what", holdings.split),
        ("samples", "Synthetic samples", holdings.samples),
        ("quality", "Quality of synthetic data", course.quality),
        ("recorded", "What the method recorded", holdings.recorded),
        ("timeline", "Who took part", course.took_part),
        ("cost", "Bytes and seconds", course.cost),
        ("privacy", "What left the clients", course.privacy),
        ("reproduce", "How to reproduce it", course.reproduce),
    ]
    sections = [section(id, title, run.problems, lambda make=make: make(run)) for id, title, make in parts]  # type: ignore[misc]
    opening, strip = _opening(run.problems, lambda: strip_blocks.run_strip(run))
    stamps = [{"text": run.state, "style": STYLES[run.state]}, {"text": "single run", "style": "warn"}]
    if run.summary and run.summary.problem:
        opening = [_failed([f"failed: {run.summary.problem}."]), *opening]
        stamps = [{"text": "no usable model", "style": "bad"}, *stamps]
    count = run.manifest.clients or "an unknown number of"
    about = f"{run.method} on {run.data}, seed {run.seed}, {count} clients."
    return Page(f"{run.name}", "report of a run", about, [*opening, *sections], run.problems, stamps, strip=strip)


def comparison_page(
    runs: Sequence[RunRecord],
    title: str,
    tuned: Sequence[TuningResult] = (),
    problems: Sequence[str] = (),
    links: dict[str, str] | None = None,
) -> Page:
    """The report of several runs."""
    groups = side_by_side.grouped(runs)
    found = [*problems, *(f"{run.name}: {problem}" for run in runs for problem in run.problems)]
    found += [f"{run.name} is {run.state}: it has no result yet." for run in runs if not run.summary]
    parts = [
        ("result", "Result", lambda: side_by_side.result(groups)),
        ("curves", f"{capitalised(metric_words(groups))} over the rounds", lambda: side_by_side.curves(groups)),
        ("clients", "Clients", lambda: side_by_side.clients(groups)),
        ("classes", "Classes", lambda: side_by_side.classes(groups)),
        ("controls", "Controls", lambda: side_by_side.controls(groups)),
        ("tuning", "Tuning", lambda: side_by_side.tuning(tuned)),
        ("splits", "Splits", lambda: side_by_side.splits(groups)),
        ("split", "Who has what", lambda: holdings.split(runs[0])),
        ("privacy", "What left the clients", lambda: side_by_side.privacy(groups)),
        ("reproduce", "How to reproduce it", lambda: side_by_side.reproduce(groups, links or {})),
    ]
    sections = [section(id, name, found, build) for id, name, build in parts]
    opening, strip = _opening(found, lambda: strip_blocks.comparison_strip(groups))
    problems_of = problem_lines([s.model_copy(update={"label": g.label}) for g in groups for _, s in g.finished])
    opening = [_failed(problems_of), *opening] if problems_of else opening
    single = any(len(group.runs) == 1 for group in groups)
    stamps = [{"text": "single runs", "style": "warn"}] if single else []
    about = f"{len(groups)} methods or settings, {len(runs)} runs."
    return Page(title, "comparison", about, [*opening, *sections], found, stamps, strip=strip)


def _failed(lines: Sequence[str]) -> Section:
    """What must be read before anything else."""
    return Section("failed", "No usable model", [Words(lines, notice=True)])


def _opening(problems: list[str], build: Callable[[], strip_blocks.Opening]) -> tuple[list[Section], bytes]:
    """The section that opens a page about added data, and its pictures as a file; nothing where none was added."""
    file = b""

    def blocks() -> list[Block]:
        nonlocal file
        made = build()
        file = made.file
        return made.blocks

    opening = section(STRIP, strip_blocks.TITLE, problems, blocks)
    return [opening] if opening.blocks else [], file


def comparison_of(folder: Path, links: dict[str, str] | None = None) -> Page:
    """The report of a comparison's folder: its runs so far, with their labels, and what was tuned."""
    problems: list[str] = []
    runs = []
    try:
        plan = ComparisonPlan.model_validate_json(read_inside(folder, "comparison.json"))
        named = [(run, str(run.experiment["name"])) for run in plan.planned]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f'"{folder}" is not the folder of a comparison ({say_fault(error)}).') from None
    for planned, name in named:
        try:
            run = read_run(_inside(folder, name))
        except ConfigError:
            problems.append(f"{name} has not begun.")
            continue
        run.label, run.base, run.control = planned.label, planned.base, planned.control
        runs.append(run)
    if not runs:
        raise ConfigError(f'No run of the comparison "{folder}" has begun.')
    return comparison_page(runs, folder.name, _tuned(folder, problems), problems, links)


def _inside(folder: Path, name: str) -> Path:
    """A folder of the comparison, never one elsewhere."""
    path = (folder / name).resolve()
    if path.parent != folder.resolve():
        raise ConfigError(f'"{name}" is not in the folder of the comparison.')
    return path


def _tuned(folder: Path, problems: list[str]) -> list[TuningResult]:
    found = []
    for file in sorted((folder / "tuning").glob("*.json")):
        try:
            found.append(TuningResult.model_validate_json(read_inside(folder, f"tuning/{file.name}")))
        except (OSError, ValueError) as error:
            problems.append(f"tuning/{file.name} cannot be read: {say_fault(error)}.")
    return found


def make_page(paths: Sequence[Path]) -> Page:
    """The page for what the user named: a run, a comparison's folder, or several runs."""
    if len(paths) == 1:
        folder = paths[0]
        return comparison_of(folder) if (folder / "comparison.json").is_file() else run_page(read_run(folder))
    return comparison_page([read_run(path) for path in paths], "Comparison of runs")


def write_report(paths: Sequence[Path], output: Path | None = None) -> tuple[Path, Page]:
    """Write the report of runs; beside a single run, with its strip as a picture, unless told otherwise."""
    page = make_page(paths)
    file = output or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    try:
        write_atomically(file, page.html().encode())
        if page.strip and output is None:
            write_atomically(file.with_name("strip.svg"), page.strip)
    except OSError as error:
        raise ConfigError(f'The report cannot be written to "{file}": {error.strerror}.') from None
    return file, page
