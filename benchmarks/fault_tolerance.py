"""GANDALF's table 2 on the virtual clock: accuracy and simulated time with and without fault tolerance.

    FEDSYNTH_DATA=/path/to/data python benchmarks/fault_tolerance.py --runs /tmp/faults --jobs 2
    python benchmarks/fault_tolerance.py --runs /tmp/faults --table docs/results/fault-tolerance.csv

Without: a fixed order; a client that does not answer is waited for until the deadline, then skipped. With: who has
completed least comes first, a missed heartbeat gives a client up, and the deadline is shorter. Both train the
classifier alone, in two groups, without synthetic samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from harness import Part, Table, accuracies, main, spread

TARGET = 0.75  # accuracy at which the time is taken
METHOD: Table = {"name": "gandalf", "synthetic": "none", "static": False}
FAULTS: Table = {"delay": 2.0, "seconds_per_example": 0.1, "spread": 0.3}
ROWS: dict[str, Table] = {"with": {**METHOD, "order": "least_completed"}, "without": {**METHOD, "order": "fixed"}}


def setting(rounds: int = 40) -> Table:
    """Fashion-MNIST, 20 clients with four major classes."""
    return {
        "data": {"name": "fashion-mnist", "limit": 4000, "validation": 0.0, "test": 0.0},
        "partition": {"num_clients": 20, "name": "major_minor"},
        "model": {"name": "cnn"},
        "train": {"rounds": rounds, "local_epochs": 1, "batch_size": 32, "lr": 0.05},
        "evaluation": {"test_curve": True},
    }


def sections(dropout: float) -> dict[str, Table]:
    """A client works for about 20 simulated seconds; the deadlines are one and a half and three times that."""
    return {
        "with": {"faults": {**FAULTS, "dropout": dropout, "deadline": 40.0, "heartbeat": 5.0}},
        "without": {"faults": {**FAULTS, "dropout": dropout, "deadline": 60.0}},
    }


def measure(curves: Sequence[list[Table]]) -> Table:
    """Best accuracy, simulated minutes of a round and to the target, rounds to the target."""
    best = [100 * max(line["test"]["accuracy"] for line in curve) for curve in curves]
    length = [curve[-1]["simulated_seconds"] / len(curve) / 60 for curve in curves]
    crossed = [
        next(((n, line) for n, line in enumerate(curve, 1) if line["test"]["accuracy"] >= TARGET), None)
        for curve in curves
    ]
    reached = [found for found in crossed if found]
    return {
        **accuracies(curves),
        **spread("best", best),
        **spread("round_minutes", length),
        "rounds_to_target": statistics.mean(n for n, _ in reached) if reached else None,
        "minutes_to_target": statistics.mean(x["simulated_seconds"] / 60 for _, x in reached) if reached else None,
        "minutes_seeds": " ".join(f"{x[1]['simulated_seconds'] / 60:.2f}" if x else "–" for x in crossed),
        "reached": len(reached),
    }


PARTS = [
    *(Part(f"dropout {p}", setting, ROWS, sections=sections(p)) for p in (0.1, 0.4, 0.7)),
    Part("dropout 0.7, longer", partial(setting, 100), {"without": ROWS["without"]}, sections=sections(0.7)),
]
"""Without fault tolerance 40 rounds are not always enough to reach the target."""

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
