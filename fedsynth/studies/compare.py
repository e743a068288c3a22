"""Several methods and seeds on the same splits, one table. A comparison that was interrupted can be resumed."""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import ComparisonPlan, PlannedRun, RunSummary
from fedsynth.evaluation.scores import WORDS
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import check_trusted
from fedsynth.experiment.recorder import read_metrics
from fedsynth.experiment.runner import check_setting, load_data
from fedsynth.federation.methods import find_method
from fedsynth.federation.store import write_json
from fedsynth.report.controls import ControlVerdict, control_verdicts, verdict_lines
from fedsynth.report.csv_files import write_csv
from fedsynth.report.page import write_report
from fedsynth.report.plots import plot_clients, plot_curves
from fedsynth.report.reading import say_fault
from fedsynth.report.tables import ComparisonRow, comparison_rows, latex, markdown
from fedsynth.studies.rows import Row, plan_rows
from fedsynth.studies.tuning import check_tuning, with_settings
from fedsynth.studies.work import Work, summary_with_clients


@dataclass(frozen=True)
class Comparison:
    """What a comparison gave: a row per label, the summaries behind it, the controls' verdicts and its folder."""

    rows: list[ComparisonRow]
    summaries: list[RunSummary]
    controls: list[ControlVerdict]
    path: Path

    def markdown(self) -> str:
        """The table as Markdown, and what the controls say below it."""
        legend, *lines = verdict_lines(self.controls) or [""]
        return markdown(self.rows) + (f"\n\n{legend}\n\n" + "\n".join(f"* {line}." for line in lines) if lines else "")


def compare_methods(
    tables: Mapping[str, Any],
    methods: Sequence[str] | None,
    seeds: int,
    references: bool = True,
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    controls: bool = False,
    tune: int = 0,
    jobs: int | None = None,
) -> Comparison:
    """Run every row with every seed on the same splits, and beside them the references and the methods' controls.

    `methods` are names of methods, or variants such as "private=feddpms:epsilon=3"; None: those of the table `rows`.
    `tune` trials for each method find its settings first. `jobs` runs go side by side: one per core unless told.
    """
    given = make_experiment(tables)
    rows = plan_rows(methods, tables.get("rows"), references, controls)
    if given.engine.name == "flower":
        raise ConfigError("compare runs on one machine: over a network, start one run per method.")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = given.runs / (given.name or f"{stamp}-compare")
    if path.exists():
        raise ConfigError(f'The folder "{path}" exists: choose another name, or resume it.')
    kept = {**tables, "runs": str(path), "plugins": list(map(str, given.plugins))}  # absolute: resumed from anywhere
    kept.pop("rows", None)
    planned = [_planned(kept, row, given.seed + k, rows[0].method) for row in rows for k in range(seeds)]
    first, *_ = [make_experiment(run.experiment) for run in planned]  # mistakes are found before the first run
    check_setting(first, load_data(first))
    if tune:
        check_tuning(first)
    path.mkdir(parents=True)
    write_json(path / "comparison.json", ComparisonPlan(planned=planned, tune=tune).as_dict())
    return finish_comparison(path, progress, say, jobs, trust_plugins=True)  # the caller has just named them


def finish_comparison(
    path: Path,
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    jobs: int | None = None,
    trust_plugins: bool = False,
) -> Comparison:
    """Do what is left of a comparison and write its tables; plug-ins are executed only where they are trusted."""
    try:
        plan = ComparisonPlan.model_validate_json((path / "comparison.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f'"{path}" is not the folder of a comparison ({say_fault(error)}).') from None
    check_trusted(path, trust_plugins, *(run.experiment.get("plugins") for run in plan.planned))
    here = {"runs": str(path)}  # the folder may have been moved
    planned = [run.model_copy(update={"experiment": {**run.experiment, **here}}) for run in plan.planned]
    work = Work(progress, say, jobs)
    if plan.tune:
        planned = _tuned(path, planned, plan.tune, work)
    experiments = [(run.label, make_experiment(run.experiment)) for run in planned]
    work.do([(f"{label}, seed {experiment.seed}", experiment) for label, experiment in experiments])
    summaries = [
        summary_with_clients(experiment, run.label).model_copy(update={"base": run.base, "control": run.control})
        for run, (_, experiment) in zip(planned, experiments, strict=True)
    ]
    done = Comparison(comparison_rows(summaries), summaries, control_verdicts(summaries), path)
    write_csv(path / "table.csv", [row.as_dict() for row in done.rows])
    (path / "table.md").write_text(done.markdown() + "\n", encoding="utf-8")
    (path / "table.tex").write_text(latex(done.rows), encoding="utf-8")
    _draw(done, experiments)
    write_report([path])
    return done


def _draw(done: Comparison, experiments: Sequence[tuple[str, Experiment]]) -> None:
    """The first seed of every row: curves, and a dot for every client."""
    names = {label: str(experiment.name) for label, experiment in reversed(experiments)}
    clients = {summary.label: summary.per_client for summary in reversed(done.summaries)}
    rows = [row.method for row in done.rows]
    metric = done.summaries[0].metric
    title = f"Validation over all clients: {WORDS[metric]}" + (", first seed" if len(experiments) > len(rows) else "")
    plot_curves(done.path / "curves.png", {row: read_metrics(done.path / names[row]) for row in rows}, title, metric)
    plot_clients(done.path / "clients.png", {row: clients[row] for row in rows}, "First seed", metric)


def _tuned(path: Path, planned: Sequence[PlannedRun], trials: int, work: Work) -> list[PlannedRun]:
    """The planned runs with the settings that a search on the first seed found for their row, or for its base."""
    bases: dict[str, Mapping[str, Any]] = {}
    for run in planned:
        if not run.control:
            bases.setdefault(run.label, run.experiment)
    folder = path / "tuning"
    folder.mkdir(exist_ok=True)
    found = work.tune(folder, bases, trials)
    result = []
    for run in planned:
        name = run.base or run.label
        own, base = run.experiment["method"], bases[name]["method"]
        chosen = {
            key: value
            for key, value in found[name].chosen.items()  # what a control changes stays as the control has it
            if not key.startswith("method.") or own.get(key[7:]) == base.get(key[7:])
        }
        result.append(run.model_copy(update={"experiment": with_settings(run.experiment, chosen)}))
    return result


def _planned(tables: Mapping[str, Any], row: Row, seed: int, base: str) -> PlannedRun:
    """A run of one row: the file's settings for its method, those of the row, and the same model for all."""
    table = json.loads(json.dumps(tables))
    table.setdefault("model", {"name": find_method(base).model})
    row.put_into(table)
    table["seed"], table["name"] = seed, f"{row.folder}-s{seed}"
    of = {"base": row.base, "control": row.control} if row.control else {}
    return PlannedRun(label=row.label, experiment=table, **of)
