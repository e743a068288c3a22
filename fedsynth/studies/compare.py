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
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.plugins import check_trusted
from fedsynth.experiment.runner import check_setting, load_data
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.federation.store import write_json
from fedsynth.report.controls import SHARES_NOTHING, control_label, control_verdicts, verdict_lines
from fedsynth.report.csv_files import read_rows, write_csv
from fedsynth.report.page import write_report
from fedsynth.report.plots import plot_clients, plot_curves
from fedsynth.report.tables import comparison_rows, latex, markdown
from fedsynth.studies.tuning import check_tuning, with_settings
from fedsynth.studies.work import Work, summary_of

REFERENCES = ("local", "finetune", "centralised")
MOST_CLIENTS_DRAWN = 100


@dataclass(frozen=True)
class Comparison:
    """What a comparison gave: a row per label, the summaries behind it, the controls' verdicts and its folder."""

    rows: list[dict[str, Any]]
    summaries: list[dict[str, Any]]
    controls: list[dict[str, Any]]
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
    first, *_ = [make_experiment(run["experiment"]) for run in planned]  # mistakes are found before the first run
    check_setting(first, load_data(first))
    if tune:
        check_tuning(first)
    path.mkdir(parents=True)
    write_json(path / "comparison.json", {"planned": planned, "tune": tune})
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
        kept = json.loads((path / "comparison.json").read_text(encoding="utf-8"))
        planned = [_label_and_table(entry) for entry in kept["planned"]]
        trials = int(kept.get("tune", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'"{path}" is not the folder of a comparison ({error}).') from None
    check_trusted(path, trust_plugins, *(table.get("plugins") for _, table in planned))
    planned = [(label, {**table, "runs": str(path)}) for label, table in planned]  # the folder may have been moved
    work = Work(progress, say, jobs)
    if trials:
        planned = _tuned(path, planned, trials, work)
    experiments = [(label, make_experiment(table)) for label, table in planned]
    work.do([(f"{label}, seed {experiment.seed}", experiment) for label, experiment in experiments])
    summaries = [_summary(label, experiment) for label, experiment in experiments]
    done = Comparison(comparison_rows(summaries), summaries, control_verdicts(summaries), path)
    _write_tables(done)
    curves: dict[str, list[dict[str, Any]]] = {}
    for label, experiment in experiments:
        rows = (path / str(experiment.name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        curves.setdefault(label, [json.loads(row) for row in rows])
    title = "Validation accuracy over all clients" + (", first seed" if len(summaries) > len(curves) else "")
    if any("validation" in row for rows in curves.values() for row in rows):
        plot_curves(path / "curves.png", {k: v for k, v in curves.items() if any("validation" in r for r in v)}, title)
    _draw_clients(done)
    write_report([path])
    return done


def _summary(label: str, experiment: Experiment) -> dict[str, Any]:
    """What a run gave, with its label and the accuracy of every client on its own test part."""
    summary = summary_of(experiment)
    return {**summary, "label": label, "per_client": own_accuracies(experiment.runs / str(experiment.name), summary)}


def own_accuracies(path: Path, summary: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of every client on its own test part, from the clients.csv of a run."""
    column = f"{summary['clients'].get('view')}/test/accuracy"
    with (path / "clients.csv").open(newline="", encoding="utf-8") as file:
        return {row["client"]: float(row[column]) for row in read_rows(file) if row.get(column)}


def _draw_clients(done: Comparison) -> None:
    """A dot for every client and row, of the first seed."""
    first: dict[str, dict[str, float]] = {}
    for summary in done.summaries:
        first.setdefault(summary["label"], summary["per_client"])
    if any(first.values()) and max(map(len, first.values())) <= MOST_CLIENTS_DRAWN:
        plot_clients(done.path / "clients.png", {label: of for label, of in first.items() if of}, "First seed")


def _write_tables(done: Comparison) -> None:
    write_csv(done.path / "table.csv", done.rows)
    (done.path / "table.md").write_text(done.markdown() + "\n", encoding="utf-8")
    (done.path / "table.tex").write_text(latex(done.rows), encoding="utf-8")


def _tuned(
    path: Path, planned: Sequence[tuple[str, dict[str, Any]]], trials: int, work: Work
) -> list[tuple[str, dict[str, Any]]]:
    """The planned runs with the settings that a search on the first seed found for their method."""
    bases: dict[str, dict[str, Any]] = {}
    for label, table in planned:
        if label == table["method"]["name"]:
            bases.setdefault(label, table)
    folder = path / "tuning"
    folder.mkdir(exist_ok=True)
    found = work.tune(folder, bases, trials)
    result = []
    for label, table in planned:
        name = table["method"]["name"]
        base = bases[name]["method"]
        chosen = {
            key: value
            for key, value in found[name]["chosen"].items()  # what a control changes stays as the control has it
            if not key.startswith("method.") or table["method"].get(key[7:]) == base.get(key[7:])
        }
        result.append((label, with_settings(table, chosen)))
    return result


def _label_and_table(kept: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A planned run as it was kept; earlier comparisons kept the experiment alone, labelled by its method."""
    return (kept["label"], kept["experiment"]) if "experiment" in kept else (kept["method"]["name"], kept)


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


def _planned(tables: Mapping[str, Any], variant: _Variant, seed: int, base: str) -> dict[str, Any]:
    """A run of one row: the file's settings for that method, what the control changes, and the same model for all."""
    table = json.loads(json.dumps(tables))
    own = table.get("method", {})
    method = own if own.get("name") == variant.method else {"name": variant.method}
    table["method"] = {**method, **variant.changes}
    table["seed"], table["name"] = seed, f"{variant.folder}-s{seed}"
    table.setdefault("model", {"name": find_method(base).model})
    return {"label": variant.label, "experiment": table}
