"""Several methods and seeds on the same splits, one table. A comparison that was interrupted can be resumed."""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.config import Experiment, make_experiment
from fedsynth.errors import ConfigError
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.report.artifacts import write_csv
from fedsynth.report.controls import SHARES_NOTHING, control_label, control_verdicts, verdict_lines
from fedsynth.report.plots import plot_clients, plot_curves
from fedsynth.report.tables import comparison_rows, markdown
from fedsynth.runfolder import write_json
from fedsynth.runner import check_setting, load_data, resume_run, run_experiment

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
) -> Comparison:
    """Run every method with every seed on the same splits, and beside them the references and the methods' controls."""
    given = make_experiment(tables)
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
    path.mkdir(parents=True)
    write_json(path / "comparison.json", {"planned": planned})
    return finish_comparison(path, progress, say)


def finish_comparison(
    path: Path, progress: bool | None = None, say: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Do what is left of a comparison and write its table."""
    try:
        kept = json.loads((path / "comparison.json").read_text(encoding="utf-8"))["planned"]
        planned = [_label_and_table(entry) for entry in kept]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'"{path}" is not the folder of a comparison ({error}).') from None
    summaries: list[dict[str, Any]] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    for number, (label, table) in enumerate(planned, 1):
        experiment = make_experiment({**table, "runs": str(path)})  # the folder may have been moved
        say(f"[{number}/{len(planned)}] {label}, seed {experiment.seed}")
        summary = _done(experiment, progress)
        summaries.append(
            {**summary, "label": label, "per_client": own_accuracies(path / str(experiment.name), summary)}
        )
        rows = (path / str(experiment.name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        curves.setdefault(label, [json.loads(row) for row in rows])
    done = Comparison(comparison_rows(summaries), summaries, control_verdicts(summaries), path)
    write_csv(path / "table.csv", done.rows)
    (path / "table.md").write_text(done.markdown() + "\n", encoding="utf-8")
    title = "Validation accuracy over all clients" + (", first seed" if len(summaries) > len(curves) else "")
    if any("validation" in row for rows in curves.values() for row in rows):
        plot_curves(path / "curves.png", {k: v for k, v in curves.items() if any("validation" in r for r in v)}, title)
    first: dict[str, dict[str, float]] = {}
    for summary in done.summaries:
        first.setdefault(summary["label"], summary["per_client"])
    if any(first.values()) and max(map(len, first.values())) <= MOST_CLIENTS_DRAWN:
        plot_clients(path / "clients.png", {label: of for label, of in first.items() if of}, "First seed")
    return done


def own_accuracies(path: Path, summary: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of every client on its own test part, from the clients.csv of a run."""
    column = f"{summary['clients'].get('view')}/test/accuracy"
    with (path / "clients.csv").open(newline="", encoding="utf-8") as file:
        return {row["client"]: float(row[column]) for row in csv.DictReader(file) if row.get(column)}


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


def _done(experiment: Experiment, progress: bool | None) -> dict[str, Any]:
    """The summary of a run: read if it is complete, otherwise made by resuming or by starting it."""
    path = experiment.runs / str(experiment.name)
    if (path / "summary.json").is_file():
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary
    if (path / "manifest.json").is_file():
        return resume_run(path, progress).summary
    if path.exists():  # killed while the folder was being made: nothing in it is worth keeping
        for leftover in path.iterdir():
            leftover.unlink()
        path.rmdir()
    return run_experiment(experiment, progress=progress).summary
