"""Several methods and seeds on the same splits, one table. A comparison that was interrupted can be resumed."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import ComparisonPlan, PlannedRun, RunSummary
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import check_trusted
from fedsynth.experiment.recorder import read_metrics
from fedsynth.experiment.runner import check_setting, load_data
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.federation.store import write_json
from fedsynth.report.controls import SHARES_NOTHING, ControlVerdict, control_label, control_verdicts, verdict_lines
from fedsynth.report.csv_files import write_csv
from fedsynth.report.page import write_report
from fedsynth.report.plots import plot_clients, plot_curves
from fedsynth.report.reading import say_fault
from fedsynth.report.tables import ComparisonRow, comparison_rows, latex, markdown
from fedsynth.studies.tuning import check_tuning, with_settings
from fedsynth.studies.work import Work, summary_with_clients

REFERENCES = ("local", "finetune", "centralised")


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
    methods: Sequence[str],
    seeds: int,
    references: bool = True,
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    controls: bool = False,
    tune: int = 0,
    jobs: int | None = None,
) -> Comparison:
    """Run every method with every seed on the same splits, and beside them the references and the methods' controls.

    `tune` trials for each method find its settings first. `jobs` runs go side by side: one per core unless told.
    """
    given = make_experiment(tables)
    if given.engine.name == "flower":
        raise ConfigError("compare runs on one machine: over a network, start one run per method.")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = given.runs / (given.name or f"{stamp}-compare")
    if path.exists():
        raise ConfigError(f'The folder "{path}" exists: choose another name, or resume it.')
    kept = {**tables, "runs": str(path), "plugins": list(map(str, given.plugins))}  # absolute: resumed from anywhere
    planned = [
        _planned(kept, variant, given.seed + k, methods[0])
        for variant in _variants(methods, references, controls)
        for k in range(seeds)
    ]
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
    planned = [PlannedRun(label=run.label, experiment={**run.experiment, **here}) for run in plan.planned]
    work = Work(progress, say, jobs)
    if plan.tune:
        planned = _tuned(path, planned, plan.tune, work)
    experiments = [(run.label, make_experiment(run.experiment)) for run in planned]
    work.do([(f"{label}, seed {experiment.seed}", experiment) for label, experiment in experiments])
    summaries = [summary_with_clients(experiment, label) for label, experiment in experiments]
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
    title = "Validation accuracy over all clients" + (", first seed" if len(experiments) > len(rows) else "")
    plot_curves(done.path / "curves.png", {row: read_metrics(done.path / names[row]) for row in rows}, title)
    plot_clients(done.path / "clients.png", {row: clients[row] for row in rows}, "First seed")


def _tuned(path: Path, planned: Sequence[PlannedRun], trials: int, work: Work) -> list[PlannedRun]:
    """The planned runs with the settings that a search on the first seed found for their method."""
    bases: dict[str, Mapping[str, Any]] = {}
    for run in planned:
        if run.label == run.experiment["method"]["name"]:
            bases.setdefault(run.label, run.experiment)
    folder = path / "tuning"
    folder.mkdir(exist_ok=True)
    found = work.tune(folder, bases, trials)
    result = []
    for run in planned:
        own = run.experiment["method"]
        name, base = own["name"], bases[own["name"]]["method"]
        chosen = {
            key: value
            for key, value in found[name].chosen.items()  # what a control changes stays as the control has it
            if not key.startswith("method.") or own.get(key[7:]) == base.get(key[7:])
        }
        result.append(PlannedRun(label=run.label, experiment=with_settings(run.experiment, chosen)))
    return result


@dataclass(frozen=True)
class _Variant:
    """One row of the table: a method, or one of its controls."""

    method: str
    control: str = ""

    @property
    def label(self) -> str:
        return control_label(self.method, self.control) if self.control else self.method

    @property
    def folder(self) -> str:
        """A name for the folders of its runs, without what some file systems refuse."""
        control = re.sub(r"[^a-z0-9]+", "-", self.control.lower()).strip("-")
        return f"{self.method}-{control}" if self.control else self.method

    @property
    def changes(self) -> Mapping[str, Any]:
        """The settings in which a control differs from its method."""
        return find_method(self.method).controls[self.control] if self.control else {}


def _variants(methods: Sequence[str], references: bool, controls: bool) -> list[_Variant]:
    """The rows in their order: each method, below it its controls, then logit adjustment and the references."""
    rows: list[_Variant] = []
    for name in methods:
        rows.append(_Variant(name))
        if controls:
            rows.extend(_Variant(name, control) for control in find_method(name).controls)
    if controls:
        if not any(row.control for row in rows):
            having = [method.name for method in all_methods() if method.controls]
            known = f"Methods that have: {', '.join(having)}." if having else "No method has any yet."
            raise ConfigError(f"--controls: none of the compared methods ({', '.join(methods)}) has controls. {known}")
        rows.append(_Variant(SHARES_NOTHING))
    rows.extend(_Variant(name) for name in (REFERENCES if references else ()))
    rows = list(dict.fromkeys(rows))
    shared = [name for name, times in Counter(row.folder for row in rows).items() if times > 1]
    if shared:
        raise ConfigError(f'Two rows of the comparison would share the folder "{shared[0]}": rename one control.')
    return rows


def _planned(tables: Mapping[str, Any], variant: _Variant, seed: int, base: str) -> PlannedRun:
    """A run of one row: the file's settings for that method, what the control changes, and the same model for all."""
    table = json.loads(json.dumps(tables))
    own = table.get("method", {})
    method = own if own.get("name") == variant.method else {"name": variant.method}
    table["method"] = {**method, **variant.changes}
    table["seed"], table["name"] = seed, f"{variant.folder}-s{seed}"
    table.setdefault("model", {"name": find_method(base).model})
    return PlannedRun(label=variant.label, experiment=table)
