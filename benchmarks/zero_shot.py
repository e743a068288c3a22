"""The study of Fed-ZDA behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/zero_shot.py --runs /tmp/zero-shot --jobs 2
    python benchmarks/zero_shot.py --runs /tmp/zero-shot --table docs/results/zero-shot.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from convergence import mean_change
from harness import Part, Table, accuracies, main, spread

LATE = 10  # rounds over which accuracy and the fairness columns are averaged
START = 46  # of Fed-ZDA's images: three quarters through; the paper recommends late starts

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


def measure(curves: Sequence[list[Table]]) -> Table:
    """Accuracy, class variance and the clients' own accuracy over the last rounds, and calm."""
    every = curves[0][-1]["round"] - curves[0][-2]["round"]
    late = LATE // every
    tests = [[line["test"]["accuracy"] for line in curve] for curve in curves]
    variances = [statistics.mean(line["test"]["class_variance"] for line in curve[-late:]) for curve in curves]
    own = [line["validation"] for curve in curves for line in curve[-late:] if "mean" in line.get("validation", {})]
    return {
        **accuracies(curves, late),
        "local_mean": 100 * statistics.mean(line["mean"] for line in own) if own else None,
        "local_variance": statistics.mean(line["variance"] for line in own) if own else None,
        **spread("class_variance", variances),
        "class_variance_seeds": " ".join(f"{value:.1f}" for value in variances),
        **spread("change", [100 * mean_change(values) for values in tests]),
    }


PARTS = [
    Part("fashion-multimodal", partial(zda_setting, "fashion-mnist", "multimodal", 60, 25000), ZDA, few=FEW),
    Part("fashion-unimodal", partial(zda_setting, "fashion-mnist", "unimodal", 60, 25000), ZDA_SHORT, seeds=1),
    Part("mnist-multimodal", partial(zda_setting, "mnist", "multimodal", 60, 25000), ZDA_SHORT, seeds=1),
]

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
