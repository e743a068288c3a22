"""The study of Fed-ZDA and AggEnhance behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/zero_shot.py --runs /tmp/zero-shot --jobs 2
    python benchmarks/zero_shot.py --runs /tmp/zero-shot --table docs/results/zero-shot.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from harness import Part, Table, accuracies, main, spread

from fedsynth.evaluation.convergence import first_crossing, mean_change, steady_crossing

LATE = 10  # rounds over which the fairness columns are averaged
TARGET = 0.5  # of AggEnhance's rounds to target

ZDA: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "q-FFL": {"name": "qffl"},
    "ZDAC": {"name": "fed_zdac", "start_round": 31},
    "ZDAS": {"name": "fed_zdas", "start_round": 31},
    "both": {"name": "fed_zda", "start_round": 31},
    "ZDAS, noise": {"name": "fed_zdas", "start_round": 31, "images": "noise"},
    "ZDAC, noise": {"name": "fed_zdac", "start_round": 31, "images": "noise"},
    "ZDAS, real": {"name": "fed_zdas", "start_round": 31, "images": "real"},
    "logit adjustment": {"name": "logit_adjustment"},
}
CONTROLS = ("ZDAS, noise", "ZDAC, noise", "ZDAS, real", "logit adjustment", "fedavg, noise")
"""Rows with one seed."""
ZDA_SHORT = {name: ZDA[name] for name in ("fedavg", "ZDAC", "ZDAS", "both")}
POINTS = {"after": "interior_points"}
AGG: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedavg, enhanced": {"name": "fedavg", **POINTS},
    "fedavg, enhanced as published": {"name": "fedavg", "after": {"name": "interior_points", "form": "published"}},
    "fedavg, noise": {"name": "fedavg", "after": {"name": "interior_points", "points": "noise"}},
    "fedprox": {"name": "fedprox"},
    "fedprox, enhanced": {"name": "fedprox", **POINTS},
    "trimmed mean": {"name": "trimmed_mean"},
    "trimmed mean, enhanced": {"name": "trimmed_mean", **POINTS},
}


AGG_SHORT = {name: AGG[name] for name in ("fedavg", "fedavg, enhanced")}


def zda_setting(data: str, split: str, rounds: int, limit: int) -> Table:
    """Fed-ZDA's: 100 clients, a tenth each round, E = 5, B = 10, SGD 0.02."""
    return {
        "data": {"name": data, "limit": limit, "validation": 0.0, "test": 0.2},
        "partition": {"name": split, "num_clients": 100},
        "model": {"name": "zda_cnn"},
        "train": {"rounds": rounds, "local_epochs": 5, "batch_size": 10, "lr": 0.02, "fraction": 0.1},
        "evaluation": {"test_curve": True},
    }


def agg_setting(data: str, gamma: float, rounds: int, limit: int, lr: float) -> Table:
    """AggEnhance's: 100 clients of log-normal size with Dirichlet(γ · prior) classes."""
    return {
        "data": {"name": data, "limit": limit, "validation": 0.0, "test": 0.0},
        "partition": {"name": "lognormal", "num_clients": 100, "gamma": gamma},
        "model": {"name": "agg_cnn"},
        "train": {"rounds": rounds, "local_epochs": 10, "batch_size": 32, "lr": lr, "fraction": 0.1},
        "evaluation": {"test_curve": True},
    }


def measure(curves: Sequence[list[Table]]) -> Table:
    """Accuracy and class variance over the last rounds, rounds to the target, and how calm the curve is."""
    tests = [[line["test"]["accuracy"] for line in curve] for curve in curves]
    variances = [statistics.mean(line["test"]["class_variance"] for line in curve[-LATE:]) for curve in curves]
    rounds = {
        "first_crossing": [first_crossing(values, TARGET) for values in tests],
        "steady_crossing": [steady_crossing(values, TARGET) for values in tests],
    }
    told = {name: " ".join(str(value or "–") for value in values) for name, values in rounds.items()}
    return {
        **accuracies(curves, LATE),
        **spread("class_variance", variances),
        "class_variance_seeds": " ".join(f"{value:.1f}" for value in variances),
        **told,
        **spread("change", [100 * mean_change(values) for values in tests]),
    }


PARTS = [
    Part("fashion-multimodal", partial(zda_setting, "fashion-mnist", "multimodal", 60, 25000), ZDA, few=CONTROLS),
    Part("fashion-unimodal", partial(zda_setting, "fashion-mnist", "unimodal", 60, 25000), ZDA_SHORT, seeds=1),
    Part("mnist-multimodal", partial(zda_setting, "mnist", "multimodal", 60, 25000), ZDA_SHORT, seeds=1),
    Part("fashion-lognormal", partial(agg_setting, "fashion-mnist", 1.0, 40, 12000, 0.01), AGG, few=CONTROLS),
    Part("cifar10-lognormal", partial(agg_setting, "cifar10", 1.0, 40, 12000, 0.005), AGG, few=CONTROLS),
    *(
        Part(
            f"fashion-lognormal-{gamma:g}",
            partial(agg_setting, "fashion-mnist", gamma, 40, 12000, 0.01),
            AGG_SHORT,
            seeds=1,
        )
        for gamma in (0.1, 10.0)
    ),
]

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
