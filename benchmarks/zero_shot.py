"""The study of Fed-ZDA and AggEnhance behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/zero_shot.py --runs /tmp/zero-shot --jobs 2
    python benchmarks/zero_shot.py --runs /tmp/zero-shot --table docs/results/zero-shot.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from convergence import first_crossing, mean_change, steady_crossing
from harness import Part, Table, accuracies, main, spread

LATE = 10  # rounds over which accuracy and the fairness columns are averaged
START = 46  # of Fed-ZDA's images: three quarters through; the paper recommends late starts
TARGETS = (20, 25, 30, 35, 40, 50, 60, 70)  # accuracy in % to which rounds are counted

ZDA: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "q-FFL": {"name": "qffl"},
    "ZDAC": {"name": "fed_zdac", "start_round": START},
    "ZDAS": {"name": "fed_zdas", "start_round": START},
    "both": {"name": "fed_zda", "start_round": START},
    "ZDAC, statistics of all": {"name": "fed_zdac", "start_round": START, "keep_statistics": False},
    "ZDAS, statistics of all": {"name": "fed_zdas", "start_round": START, "keep_statistics": False},
    "ZDAS, noise": {"name": "fed_zdas", "start_round": START, "images": "noise"},
    "ZDAC, noise": {"name": "fed_zdac", "start_round": START, "images": "noise"},
    "ZDAS, real": {"name": "fed_zdas", "start_round": START, "images": "real"},
    "logit adjustment": {"name": "logit_adjustment"},
}
FEW = ("ZDAC, statistics of all", "ZDAS, statistics of all", "ZDAC, noise", "ZDAS, real", "logit adjustment")
"""Rows with one seed."""
ZDA_SHORT = {name: ZDA[name] for name in ("fedavg", "ZDAC", "ZDAS")}
POINTS = {"post_aggregation": "interior_points"}
AGG: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedavg, enhanced": {"name": "fedavg", **POINTS},
    "fedavg, enhanced as published": {
        "name": "fedavg",
        "post_aggregation": {"name": "interior_points", "form": "published"},
    },
    "fedavg, noise": {"name": "fedavg", "post_aggregation": {"name": "interior_points", "points": "noise"}},
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "fedprox, enhanced": {"name": "fedprox", "mu": 0.1, **POINTS},
    "trimmed mean": {"name": "trimmed_mean"},
    "trimmed mean, enhanced": {"name": "trimmed_mean", **POINTS},
}


AGG_SHORT = {name: AGG[name] for name in ("fedavg", "fedavg, enhanced")}


def zda_setting(data: str, split: str, rounds: int, limit: int) -> Table:
    """Fed-ZDA's: 100 clients, a tenth each round, E = 5, B = 10, SGD 0.02.

    What a client holds out serves for the local columns; `keep_statistics` was chosen by it, on seed 0. Every other
    round is evaluated: evaluating all takes as long as training.
    """
    return {
        "data": {"name": data, "limit": limit, "validation": 0.2, "test": 0.0},
        "partition": {"name": split, "num_clients": 100},
        "model": {"name": "zda_cnn"},
        "train": {"rounds": rounds, "local_epochs": 5, "batch_size": 10, "lr": 0.02, "fraction": 0.1},
        "evaluation": {"test_curve": True, "every": 2},
    }


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


def measure(curves: Sequence[list[Table]]) -> Table:
    """Accuracy, class variance and the clients' own accuracy over the last rounds, calm, and rounds to the targets.

    Rounds are counted only where all of them are evaluated.
    """
    every = curves[0][-1]["round"] - curves[0][-2]["round"]
    late = LATE // every
    tests = [[line["test"]["accuracy"] for line in curve] for curve in curves]
    variances = [statistics.mean(line["test"]["class_variance"] for line in curve[-late:]) for curve in curves]
    crossings = {"first": first_crossing, "steady": steady_crossing}
    rounds = {
        f"{name}_{target}": " ".join(str(rule(values, target / 100) or "–") for values in tests) if every == 1 else ""
        for name, rule in crossings.items()
        for target in TARGETS
    }
    own = [line["validation"] for curve in curves for line in curve[-late:] if "mean" in line.get("validation", {})]
    return {
        **accuracies(curves, late),
        "local_mean": 100 * statistics.mean(line["mean"] for line in own) if own else None,
        "local_variance": statistics.mean(line["variance"] for line in own) if own else None,
        **spread("class_variance", variances),
        "class_variance_seeds": " ".join(f"{value:.1f}" for value in variances),
        **rounds,
        **spread("change", [100 * mean_change(values) for values in tests]),
    }


PARTS = [
    Part("fashion-multimodal", partial(zda_setting, "fashion-mnist", "multimodal", 60, 25000), ZDA, few=FEW),
    Part("fashion-unimodal", partial(zda_setting, "fashion-mnist", "unimodal", 60, 25000), ZDA_SHORT, seeds=1),
    Part("mnist-multimodal", partial(zda_setting, "mnist", "multimodal", 60, 25000), ZDA_SHORT, seeds=1),
    Part(
        "fashion-lognormal",
        partial(agg_setting, "fashion-mnist", 1.0, 30, 8000),
        AGG,
        few=(*FEW, "fedavg, enhanced as published"),
    ),
    Part("cifar10-lognormal", partial(agg_setting, "cifar10", 1.0, 40, 8000), AGG, few=FEW),
    *(
        Part(f"fashion-lognormal-{gamma:g}", partial(agg_setting, "fashion-mnist", gamma, 30, 8000), AGG_SHORT, seeds=1)
        for gamma in (0.1, 10.0)
    ),
]

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
