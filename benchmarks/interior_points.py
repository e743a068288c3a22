"""The study of AggEnhance behind docs/results.md: which points help, and whether more than class bias is corrected.

    FEDSYNTH_DATA=/path/to/data python benchmarks/interior_points.py --runs /tmp/interior-points --jobs 2
    python benchmarks/interior_points.py --runs /tmp/interior-points --table docs/results/interior-points.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT. Our defaults
were chosen on validation data with seeds 5 and 6, which are not used here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from convergence import first_crossing, mean_change, steady_crossing
from harness import BESIDE, Part, Table, accuracies, main, spread

LATE = 10  # rounds over which accuracy and class variance are averaged
TARGETS = (20, 25, 30, 35, 40, 50, 60, 70)  # accuracy in % to which rounds are counted
CLAMPED: Table = {"aggregator": {"name": "trimmed_mean", "clamp": 0.5}}  # the paper's "updates in [−0.5, 0.5]"
FORMER: Table = {
    **{"name": "interior_points", "image_optimizer": "adam", "clamp": True, "start": "last", "queue": 20},
    **{"tune_rate": 0.2, "max_tune_lr": 0.0},
}
"""Our form before its defaults were chosen anew, with which earlier tables were made."""


def enhanced(**settings: object) -> Table:
    """FedAvg with interior points."""
    return {"name": "fedavg", "post_aggregation": {"name": "interior_points", **settings}}


def corrected(**settings: object) -> Table:
    """FedAvg whose class bias is corrected, without training on anything."""
    return {"name": "fedavg", "post_aggregation": {"name": "class_bias", **settings}}


ROWS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "published": enhanced(form="published"),
    "ours": enhanced(),
    "noise": enhanced(points="noise"),
    "real points": enhanced(points="real"),
    "class bias": corrected(),
    **BESIDE,
}
MORE: dict[str, Table] = {
    "class bias, on points": corrected(inputs="points"),
    "class bias, biases alone": corrected(through="bias"),
    "one real point for good": enhanced(points="prior"),
    "published, older points weigh less": enhanced(form="published", decay=0.01),
    "ours, soft labels": enhanced(labels="soft"),
    "ours, three starts": enhanced(restarts=3),
    "former": {"name": "fedavg", "post_aggregation": FORMER},
}
"""Rows with one seed."""
BASES: dict[str, Table] = {
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "fedprox, published": {**enhanced(form="published"), "name": "fedprox", "mu": 0.1},
    "fedprox, ours": {**enhanced(), "name": "fedprox", "mu": 0.1},
    "trimmed mean": {"name": "fedavg", **CLAMPED},
    "trimmed mean, published": {**enhanced(form="published"), **CLAMPED},
    "trimmed mean, ours": {**enhanced(), **CLAMPED},
}
SHORT = {row: ROWS[row] for row in ("fedavg", "published", "ours", "class bias", *BESIDE)}


def agg_setting(data: str, gamma: float, rounds: int, limit: int) -> Table:
    """AggEnhance's: 100 clients of log-normal size with Dirichlet(γ · prior) classes.

    All images are dealt out, which the paper's accuracies need: its formula alone would leave 30 to a client.
    """
    return {
        "data": {"name": data, "limit": limit, "validation": 0.0, "test": 0.0},
        "partition": {"name": "lognormal", "num_clients": 100, "gamma": gamma, "use_all": True},
        "model": {"name": "agg_cnn"},
        "train": {"rounds": rounds, "local_epochs": 10, "batch_size": 32, "lr": 0.01, "fraction": 0.1},
        "evaluation": {"test_curve": True},
    }


def measured(curves: Sequence[list[Table]], name: str) -> float | None:
    """The mean over rounds and seeds of what the method measured."""
    found = [line["measured"][name] for curve in curves for line in curve if name in line.get("measured", {})]
    return statistics.mean(found) if found else None


def measure(curves: Sequence[list[Table]]) -> Table:
    """Accuracy and class variance over the last rounds, calm, rounds to the targets, and what the points were like."""
    tests = [[line["test"]["accuracy"] for line in curve] for curve in curves]
    variances = [statistics.mean(line["test"]["class_variance"] for line in curve[-LATE:]) for curve in curves]
    rules = {"first": first_crossing, "steady": steady_crossing}
    return {
        **accuracies(curves, LATE),
        **spread("class_variance", variances),
        "class_variance_seeds": " ".join(f"{value:.1f}" for value in variances),
        **{
            f"{name}_{target}": " ".join(str(rule(values, target / 100) or "–") for values in tests)
            for name, rule in rules.items()
            for target in TARGETS
        },
        **spread("change", [100 * mean_change(values) for values in tests]),
        **{name: measured(curves, name) for name in ("alignment", "consensus")},
    }


PARTS = [
    Part("fashion-mnist", partial(agg_setting, "fashion-mnist", 1.0, 30, 8000), ROWS | MORE, many=ROWS, few=MORE),
    Part("cifar10", partial(agg_setting, "cifar10", 1.0, 40, 20000), ROWS),
    Part("bases", partial(agg_setting, "fashion-mnist", 1.0, 30, 8000), BASES),
    *(
        Part(f"fashion-mnist, γ = {gamma:g}", partial(agg_setting, "fashion-mnist", gamma, 30, 8000), SHORT, seeds=1)
        for gamma in (0.1, 10.0)
    ),
]

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
