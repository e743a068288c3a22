"""What a round of Fed-ZDAS and of AggEnhance costs beside a round of FedAvg, in the papers' settings, in turns.

    FEDSYNTH_DATA=/path/to/data python benchmarks/round_cost.py --turns 3

All of Fashion-MNIST at 100 clients, ten in a round, all cores. The first round of a run, which warms up, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from itertools import pairwise

from harness import Table
from interior_points import agg_setting
from zero_shot import zda_setting

from fedsynth import make_experiment
from fedsynth.experiment.runner import run_experiment

ROUNDS = 4


def zda() -> Table:
    """Fed-ZDA's setting."""
    return zda_setting("fashion-mnist", "multimodal", ROUNDS, 60000)


def agg() -> Table:
    """AggEnhance's setting."""
    return agg_setting("fashion-mnist", 1.0, ROUNDS, 60000)


CONTESTANTS: dict[str, tuple[Callable[[], Table], Table]] = {
    "FedAvg, Fed-ZDA's setting": (zda, {"name": "fedavg"}),
    "Fed-ZDAS": (zda, {"name": "fed_zdas", "start_round": 1}),
    "FedAvg, AggEnhance's setting": (agg, {"name": "fedavg"}),
    "AggEnhance": (agg, {"name": "agg_enhance"}),
}


def seconds_of(tables: Callable[[], Table], method: Table, runs: str) -> float:
    """The median round of a run, without judging the model."""
    table = tables() | {"method": method, "runs": runs, "evaluation": {"every": 1, "clients": 1}}
    metrics = run_experiment(make_experiment(table), progress=False).metrics
    marks = [row.seconds for row in metrics]
    return statistics.median(later - earlier for earlier, later in pairwise(marks))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as runs:
        for _ in range(args.turns):
            for name, (tables, method) in CONTESTANTS.items():
                found[name].append(seconds_of(tables, method, runs))
                print(f"{name}: {found[name][-1]:.2f} s", flush=True)
    names = list(CONTESTANTS)
    for base, other in zip(names[::2], names[1::2], strict=True):
        ratios = [b / a for a, b in zip(found[base], found[other], strict=True)]
        print(f"{other}: {statistics.median(ratios):.2f} of FedAvg ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
