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
from harness import BESIDE, Part, Table, accuracies, main, spread

LATE = 10  # rounds over which accuracy and the fairness columns are averaged
START = 46  # of Fed-ZDA's images: three quarters through; the paper recommends late starts

PRIORS = {"shifts": 1, "statistics": 0.3, "variation": 0.003, "steps": 30, "image_lr": 0.1}
"""What an independent classifier recognised best in a probe (docs/methods/fed_zdas.md), in half of the steps."""
AS_ONE = {"source": "ensemble", "store": 10}  # at the end the server tunes on as many images as of single models

LATE_ROWS: dict[str, Table] = {
    "ZDAC": {"name": "fed_zdac"},
    "ZDAC, published": {"name": "fed_zdac", "form": "published"},
    "ZDAS": {"name": "fed_zdas"},
    "ZDAS, published": {"name": "fed_zdas", "form": "published"},
    "ZDAS, priors": {"name": "fed_zdas", **PRIORS},
    "ZDAS, all models as one": {"name": "fed_zdas", **AS_ONE},
    "ZDAS, all models as one, priors": {"name": "fed_zdas", **AS_ONE, **PRIORS},
    "ZDAS, noise": {"name": "fed_zdas", "images": "noise"},
    "ZDAC, re-measured, no images": {"name": "fed_zdac", "images": "none"},
    "ZDAS, real": {"name": "fed_zdas", "images": "real"},
    "both": {"name": "fed_zda"},
    "ZDAC, noise": {"name": "fed_zdac", "images": "noise"},
    "ZDAS, consensus": {"name": "fed_zdas", "consensus": 0.5},
    "ZDAS, store": {"name": "fed_zdas", "store": 10},
    "ZDAS, all models as one, hard labels": {"name": "fed_zdas", **AS_ONE, "labels": "wanted"},
    "ZDAC, statistics of all": {"name": "fed_zdac", "keep_statistics": False},
    "ZDAS, statistics of all": {"name": "fed_zdas", "keep_statistics": False},
}
"""Rows that are FedAvg before their images come: their first rounds are run once."""
ZDA: dict[str, Table] = {
    "fedavg": {"name": "fedavg", "local_data": "own"},  # in the shared loop, with the same bits
    "fedavg, pooled": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "q-FFL": {"name": "qffl"},
    **{name: {**row, "start_round": START} for name, row in LATE_ROWS.items()},
    "logit adjustment": {"name": "logit_adjustment"},
    **BESIDE,
}
FEW = ("ZDAC, noise", "ZDAS, consensus", "ZDAS, store", "ZDAS, all models as one, hard labels")
FEW += ("ZDAC, statistics of all", "ZDAS, statistics of all", "fedprox", "q-FFL", "logit adjustment", "moments")
"""Rows with one seed."""
ZDA_SHORT = {name: ZDA[name] for name in ("fedavg", "ZDAC", "ZDAS", "ZDAS, all models as one", *BESIDE)}


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
    rounds = [0, *(line["round"] for line in curves[0])]
    late = max(1, LATE // (rounds[-1] - rounds[-2]))
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


def zda_part(data: str, split: str, rows: dict[str, Table], seeds: int) -> Part:
    """A data set and a split; what comes late goes on from FedAvg's run."""
    setting = partial(zda_setting, data, split, 60, 25000)
    pooled = {"train": {**setting()["train"], "norm_buffers": "pooled"}}
    return Part(
        f"{data.removesuffix('-mnist')}-{split}",
        setting,
        rows,
        seeds=seeds,
        sections={"fedavg, pooled": pooled} if "fedavg, pooled" in rows else {},
        few=FEW,
        first=("fedavg",),
        shared="fedavg",
        burn_in=START - 1,
        forked=[name for name in rows if name in LATE_ROWS],
    )


PARTS = [
    zda_part("fashion-mnist", "multimodal", ZDA, seeds=5),
    zda_part("fashion-mnist", "unimodal", ZDA_SHORT, seeds=1),
    zda_part("mnist", "multimodal", ZDA_SHORT, seeds=1),
]

if __name__ == "__main__":
    main(PARTS, __doc__, measure)
