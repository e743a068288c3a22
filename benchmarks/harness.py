"""Runs a study: many experiments, one core each, several side by side, resumable; results as one CSV file."""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import json
import multiprocessing
import os
import re
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Table = dict[str, Any]
BESIDE: dict[str, Table] = {"moments": {"name": "moments"}, "analytic": {"name": "analytic"}}
"""What one release of sums gives, without a generator: rows of every study."""


@dataclass(frozen=True)
class Part:
    """One setting in which some rows are compared. `tables` makes an experiment without its method.

    `sections` are other sections in which a row differs; `few` are rows with one seed alone, `many` rows with five;
    `first` are rows that others build on, and so complete before these; `told` are rows that another's run tells too.
    `forked` are rows that are the row `shared` for their first `burn_in` rounds: they go on from a copy of its run.
    """

    name: str
    tables: Callable[[], Table]
    rows: dict[str, Table]
    seeds: int = 3
    sections: dict[str, Table] = field(default_factory=dict)
    few: Collection[str] = ()
    many: Collection[str] = ()
    first: Collection[str] = ()
    told: Collection[str] = ()
    shared: str = ""
    burn_in: int = 0
    forked: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.forked and not (self.burn_in and self.shared in self.first):
            raise ValueError(f'{self.name}: the shared row "{self.shared}" must be in `first` and have a burn-in.')

    def seeds_of(self, row: str) -> range:
        """The seeds of a row."""
        return range(1 if row in self.few else 5 if row in self.many else self.seeds)

    def folder(self, row: str, seed: int) -> str:
        """The name of a run's folder."""
        return re.sub(r"[^\w.]+", "-", f"{self.name}-{row}-s{seed}".replace("ε", "eps"))

    def experiment(self, row: str, seed: int, runs: Path) -> Table:
        """One run: a row with a seed, which must give the same again: noise comes from the seed, too."""
        common = {"seed": seed, "runs": str(runs), "name": self.folder(row, seed), "engine": {"workers": 1}}
        tables = self.tables() | self.sections.get(row, {}) | common | {"method": self.rows[row]}
        return tables | {"privacy": {"secret_noise": False, **tables.get("privacy", {})}}

    def burnt_in(self, row: str, seed: int, runs: Path) -> tuple[Path | None, int]:
        """Where the shared rounds of a row are kept, and how many it must run itself to keep them there."""
        if row != self.shared and row not in self.forked:
            return None, 0
        kept = runs / f"{self.folder(self.shared, seed)}-after-{self.burn_in}"
        return kept, self.burn_in if row == self.shared else 0


@dataclass(frozen=True)
class Run:
    """One run of the plan."""

    part: Part
    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.part.name} {self.row} s{self.seed}"

    def job(self, runs: Path) -> tuple[Table, Path | None, int]:
        """What `complete` is told."""
        return self.part.experiment(self.row, self.seed, runs), *self.part.burnt_in(self.row, self.seed, runs)


def planned(parts: Sequence[Part], only: str) -> list[Run]:
    """All runs whose names contain `only`; first seeds first, so that a half-finished study has whole rows."""
    rows = [(part, row) for part in parts for row in part.rows if row not in part.told]
    runs = [Run(part, row, seed) for part, row in rows for seed in part.seeds_of(row)]
    return [run for run in sorted(runs, key=lambda run: run.seed) if only in str(run)]


def complete(table: Table, kept: Path | None = None, burn_in: int = 0) -> str:
    """Make sure that one run is complete; in a process of its own. `kept`: where rounds lie that it shares with others,
    or, with a `burn_in`, where it shall leave so many of its own.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    from fedsynth import make_experiment
    from fedsynth.experiment.runner import resume_run, run_experiment

    path = Path(table["runs"]) / table["name"]
    if (path / "summary.json").is_file():
        return f"{path.name}: was complete"
    if kept:
        from burn_in import fork, keep_after

        keep_after(table, burn_in, kept) if burn_in else fork(kept, table)
    if (path / "manifest.json").is_file():
        result = resume_run(path, progress=False)
    else:
        result = run_experiment(make_experiment(table), progress=False)
    found = result.summary.test.accuracy
    if found is None:  # one model per client: the mean over their own test parts
        found = result.summary.clients.mean
    return f"{path.name}: {found:.4f} in {result.summary.seconds:.0f} s"


def curve_of(table: Table) -> list[Table] | None:
    """The metrics of a complete run: of the rounds that were evaluated, on the test set where it was looked at."""
    path = Path(table["runs"]) / table["name"]
    if not (path / "summary.json").is_file():
        return None
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluated = "test" if any("test" in line for line in lines) else "validation"
    return [line for line in lines if evaluated in line]


def spread(name: str, values: Sequence[float]) -> Table:
    """Mean and standard deviation over the seeds."""
    return {name: statistics.mean(values), f"{name}_std": statistics.stdev(values) if len(values) > 1 else None}


def accuracies(curves: Sequence[list[Table]], window: int = 5) -> Table:
    """Accuracy in %: mean of the last rounds, last round, and each seed's mean of the last rounds.

    On the test part, or on the validation part where the test part was not looked at round by round.
    """
    part = "test" if "test" in curves[0][0] else "validation"
    tests = [[100 * line[part]["accuracy"] for line in curve] for curve in curves]
    last = [statistics.mean(values[-window:]) for values in tests]
    return {
        **spread("late", last),
        **spread("final", [values[-1] for values in tests]),
        "seeds": " ".join(f"{value:.2f}" for value in last),
    }


def write_table(
    parts: Sequence[Part], runs: Path, target: Path, measure: Callable[[Sequence[list[Table]]], Table]
) -> None:
    """What is complete, as CSV: a line per part and row."""
    lines = []
    for part in parts:
        for row in part.rows:
            found = [curve_of(part.experiment(row, seed, runs)) for seed in part.seeds_of(row)]
            curves = [curve for curve in found if curve]
            if curves:
                seconds = statistics.mean(curve[-1]["seconds"] for curve in curves)
                counted = {"seconds": seconds, "n": len(curves)}
                lines.append({"part": part.name, "row": row, **measure(curves), **counted})
    save(parts, lines, target)


def save(parts: Sequence[Part], lines: Sequence[Table], target: Path) -> None:
    """Write lines as CSV in the order of the plan.

    What the file says of runs that are not in the folder any more stays, if it rests on more seeds. It does not know
    with which settings they ran: take rows out of the file when their settings change.
    """
    best: dict[tuple[str, ...], Table] = {}
    for line in [*lines, *(read_table(target) if target.is_file() else [])]:
        key = (line["part"], line["row"], line.get("source", ""))
        if key not in best or int(line["n"]) > int(best[key]["n"]):
            best[key] = line
    plan = [(part.name, row) for part in parts for row in part.rows]
    kept = sorted((key for key in best if key[:2] in plan), key=lambda key: plan.index((key[0], key[1])))
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(best[kept[0]]))
        writer.writeheader()
        writer.writerows(best[key] for key in kept)


def read_table(path: Path) -> list[Table]:
    """The lines of a table that an earlier call wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(
    parts: Sequence[Part],
    about: str | None,
    measure: Callable[[Sequence[list[Table]]], Table] = accuracies,
    write: Callable[[Sequence[Part], Path, Path], None] | None = None,
) -> None:
    """The command line of a study: run what is missing, or write the table (with `write`, where curves do not do)."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--only", default="", help="only runs whose part, row and seed contain this")
    parser.add_argument("--table", type=Path, help="write what is complete as CSV and run nothing")
    args = parser.parse_args()
    if args.table:
        if write is None:
            write_table(parts, args.runs, args.table, measure)
        else:
            write(parts, args.runs, args.table)
        return
    from fedsynth import make_experiment

    args.runs.mkdir(parents=True, exist_ok=True)
    todo = planned(parts, args.only)
    for run in todo:  # a mistake in a row shall not come to light after hours
        make_experiment(run.part.experiment(run.row, run.seed, args.runs))
    context = multiprocessing.get_context("spawn")
    number = 0
    for stage in (True, False):
        now = [run for run in todo if (run.row in run.part.first) == stage]
        with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
            jobs = [pool.submit(complete, *run.job(args.runs)) for run in now]
            for job in concurrent.futures.as_completed(jobs):
                number += 1
                print(f"[{number}/{len(todo)}] {job.result()}", flush=True)
