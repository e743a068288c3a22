"""The study of FedDPMS behind docs/results.md: resumable, two runs side by side, results as one CSV file.

    FEDSYNTH_DATA=/path/to/data python benchmarks/feddpms.py --runs /tmp/feddpms --jobs 2
    python benchmarks/feddpms.py --runs /tmp/feddpms --table docs/results/feddpms.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import json
import multiprocessing
import os
import statistics
import sys
from pathlib import Path
from typing import Any

PUBLISHED = {"name": "feddpms", "form": "published"}
OURS = {"name": "feddpms"}
ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "moon": {"name": "moon"},
    "fedmix": {"name": "fedmix"},
    "fedvae": {"name": "fedvae"},
    "logit adjustment": {"name": "logit_adjustment"},
    "published": PUBLISHED,
    "published, without synthesis": {**PUBLISHED, "synthetic": "none"},
    "published, noise": {**PUBLISHED, "synthetic": "noise"},
    "published, no filter": {**PUBLISHED, "filter": "none"},
    "published, real samples": {**PUBLISHED, "synthetic": "real"},
    "ours, ε = 8": OURS,
    "ours, ε = 1": {**OURS, "epsilon": 1.0},
    "ours, without synthesis": {**OURS, "synthetic": "none"},
    "ours, noise": {**OURS, "synthetic": "noise"},
    "ours, no filter": {**OURS, "filter": "none"},
    "ours, real samples": {**OURS, "synthetic": "real"},
}
"""Rows of the table at β = 0.1; the other settings run the three that matter most."""
THREE = ("fedavg", "published", "ours, ε = 8")
CIFAR = {"sigma": 4.0, "quota": 200}  # the paper's numbers for CIFAR10


def experiment(part: str, row: str, seed: int, runs: Path) -> dict[str, Any]:
    """One run as an experiment; all share the paper's training settings."""
    data, beta, limit, rounds = PARTS[part]["data"], PARTS[part]["beta"], PARTS[part]["limit"], PARTS[part]["rounds"]
    method = dict(ROWS[row])
    if data == "cifar10" and method.get("mechanism") == "paper":
        method |= CIFAR
    held = {"limit": limit, "validation": 0.1} if limit else {"validation": 0.0}
    return {
        "seed": seed,
        "runs": str(runs),
        "name": f"{part}-{row}-s{seed}".translate(str.maketrans({" ": "-", ",": "", "ε": "eps", "=": ""})),
        "data": {"name": data, "test": 0.0, **held},
        "partition": {"name": "dirichlet", "num_clients": 10, "alpha": beta},
        "model": {"name": "cnn"},
        "train": {
            "rounds": rounds,
            "local_epochs": 5,
            "batch_size": 64,
            "optimizer": "adam",
            "lr": 0.001,
            "schedule": "step",
        },
        "method": method,
        "engine": {"workers": 1},
        "evaluation": {"test_curve": True},
    }


PARTS: dict[str, dict[str, Any]] = {
    "fashion-0.1": {"data": "fashion-mnist", "beta": 0.1, "limit": 6000, "rounds": 20, "rows": tuple(ROWS), "seeds": 3},
    "fashion-0.5": {"data": "fashion-mnist", "beta": 0.5, "limit": 6000, "rounds": 20, "rows": THREE, "seeds": 3},
    "cifar10-0.5": {"data": "cifar10", "beta": 0.5, "limit": 3000, "rounds": 15, "rows": THREE, "seeds": 3},
    "full": {"data": "fashion-mnist", "beta": 0.5, "limit": None, "rounds": 50, "rows": THREE[:2], "seeds": 1},
}


def plan(only: str) -> list[tuple[str, str, int]]:
    """Part, row and seed of every run whose name contains `only`; the first seeds of all come first."""
    runs = [
        (seed, part, row)
        for part, settings in PARTS.items()
        for row in settings["rows"]
        for seed in range(settings["seeds"])
    ]
    ordered = sorted(runs, key=lambda run: (run[1] == "full", run[0]))
    return [(part, row, seed) for seed, part, row in ordered if only in f"{part} {row} s{seed}"]


def do(part: str, row: str, seed: int, runs: Path) -> str:
    """Make sure that one run is complete."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from fedsynth import make_experiment
    from fedsynth.runner import resume_run, run_experiment

    table = experiment(part, row, seed, runs)
    path = runs / table["name"]
    if (path / "summary.json").is_file():
        return f"{path.name}: was complete"
    if (path / "manifest.json").is_file():
        result = resume_run(path, progress=False)
    else:
        result = run_experiment(make_experiment(table), progress=False)
    return f"{path.name}: {result.summary['test']['accuracy']:.4f} in {result.summary['seconds']:.0f} s"


def measured(part: str, row: str, runs: Path) -> dict[str, Any] | None:
    """Mean of the last five rounds and the final accuracy, over the seeds that are complete."""
    last, final, seconds = [], [], []
    for seed in range(PARTS[part]["seeds"]):
        path = runs / experiment(part, row, seed, runs)["name"]
        if (path / "summary.json").is_file():
            curve = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
            accuracies = [100 * line["test"]["accuracy"] for line in curve]
            last.append(statistics.mean(accuracies[-5:]))
            final.append(accuracies[-1])
            seconds.append(curve[-1]["seconds"])
    if not last:
        return None
    return {
        "part": part,
        "row": row,
        "last5": statistics.mean(last),
        "last5_std": statistics.stdev(last) if len(last) > 1 else None,
        "final": statistics.mean(final),
        "final_std": statistics.stdev(final) if len(final) > 1 else None,
        "seeds": " ".join(f"{value:.2f}" for value in last),
        "seconds": statistics.mean(seconds),
        "n": len(last),
    }


def write_table(runs: Path, target: Path) -> None:
    """The results as CSV."""
    rows = [found for part, s in PARTS.items() for row in s["rows"] if (found := measured(part, row, runs))]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Run what is missing, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run folders")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--only", default="", help="only runs whose part, row and seed contain this")
    parser.add_argument("--table", type=Path, help="write what is complete as CSV and run nothing")
    args = parser.parse_args()
    if args.table:
        write_table(args.runs, args.table)
        return
    args.runs.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        jobs = [pool.submit(do, part, row, seed, args.runs) for part, row, seed in plan(args.only)]
        for number, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            print(f"[{number}/{len(jobs)}] {job.result()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
