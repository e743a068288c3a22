"""Several methods and seeds on the same splits, one table. A comparison that was interrupted can be resumed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.config import Experiment, make_experiment
from fedsynth.errors import ConfigError
from fedsynth.federation.methods import find_method
from fedsynth.report.artifacts import write_csv
from fedsynth.report.plots import plot_curves
from fedsynth.report.tables import comparison_rows, markdown
from fedsynth.runfolder import write_json
from fedsynth.runner import check_setting, load_data, resume_run, run_experiment

REFERENCES = ("local", "finetune", "centralised")


@dataclass(frozen=True)
class Comparison:
    """What a comparison gave: a row per method, the summaries behind it, and where it is kept."""

    rows: list[dict[str, Any]]
    summaries: list[dict[str, Any]]
    path: Path

    def markdown(self) -> str:
        """The table as Markdown."""
        return markdown(self.rows)


def compare_methods(
    tables: Mapping[str, Any],
    methods: Sequence[str],
    seeds: int,
    references: bool = True,
    progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Run every method with every seed on the same splits, and the reference rows beside them."""
    names = list(dict.fromkeys([*methods, *(REFERENCES if references else ())]))
    seed = make_experiment(tables).seed
    planned = [_one(tables, name, seed + k, methods[0]) for name in names for k in range(seeds)]
    first = make_experiment(planned[0])
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = first.runs / (first.name or f"{stamp}-compare")
    if path.exists():
        raise ConfigError(f'The folder "{path}" exists: choose another name, or resume it.')
    for table in planned:
        table["runs"], table["name"] = str(path), f"{table['method']['name']}-s{table['seed']}"
        make_experiment(table)  # every mistake is found before the first run begins
    check_setting(first, load_data(first))
    path.mkdir(parents=True)
    write_json(path / "comparison.json", {"planned": planned})
    return finish_comparison(path, progress, say)


def finish_comparison(
    path: Path, progress: bool | None = None, say: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Do what is left of a comparison and write its table."""
    try:
        planned = json.loads((path / "comparison.json").read_text(encoding="utf-8"))["planned"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f'"{path}" is not the folder of a comparison ({error}).') from None
    summaries: list[dict[str, Any]] = []
    curves: dict[str, list[dict[str, Any]]] = {}
    for number, table in enumerate(planned, 1):
        experiment = make_experiment({**table, "runs": str(path)})  # the folder may have been moved
        say(f"[{number}/{len(planned)}] {experiment.method_name}, seed {experiment.seed}")
        summary = _done(experiment, progress)
        summaries.append(summary)
        rows = (path / str(experiment.name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        curves.setdefault(experiment.method_name, [json.loads(row) for row in rows])
    table_rows = comparison_rows(summaries)
    write_csv(path / "table.csv", table_rows)
    (path / "table.md").write_text(markdown(table_rows) + "\n", encoding="utf-8")
    title = "Validation accuracy over all clients" + (", first seed" if len(summaries) > len(curves) else "")
    if any("validation" in row for rows in curves.values() for row in rows):
        plot_curves(path / "curves.png", {k: v for k, v in curves.items() if any("validation" in r for r in v)}, title)
    return Comparison(table_rows, summaries, path)


def _one(tables: Mapping[str, Any], name: str, seed: int, base: str) -> dict[str, Any]:
    """The experiment of one row: the file's settings for that method, and the same model for all."""
    table = json.loads(json.dumps(tables))
    own = table.get("method", {})
    table["method"] = own if own.get("name") == name else {"name": name}
    table["seed"] = seed
    table.setdefault("model", {"name": find_method(base).model})
    return dict(table)


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
