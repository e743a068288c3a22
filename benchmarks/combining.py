"""Combinations that nobody has published, beside each method alone: Fashion-MNIST, Dirichlet 0.1.

    FEDSYNTH_DATA=/path/to/data python benchmarks/combining.py --runs /tmp/combinations --jobs 2
    python benchmarks/combining.py --runs /tmp/combinations --table docs/results/combinations.csv

The setting is that of the study of FedDPMS (benchmarks/feddpms.py), whose rows stand beside these. `tried` are
evaluated on validation data, with one seed; what is best there is then evaluated on the test part with three
(`evaluated`).
In `private` all that leaves a client has ε = 8 in total (per record, add or remove one, δ = 1e-5).
"""

from __future__ import annotations

from functools import partial

from feddpms import OURS, setting
from harness import BESIDE, Part, Table, main
from interior_points import FORMER

LA: Table = {"objective": "logit_adjusted"}
SMOOTH: Table = {"objective": {"name": "logit_adjusted", "smoothing": 10.0}}
POINTS: Table = {"post_aggregation": FORMER}
INTERIOR: Table = {"name": "fedavg", **POINTS}
DYN: Table = {"objective": "dynamic", "aggregator": "feddyn"}
GANDALF: Table = {"name": "gandalf"}
FEWER: Table = {**GANDALF, "tau": 0.3}
AVERAGED: Table = {"mediators": 10}  # a group for each client: nobody trains in turn
IN_TURN: Table = {**GANDALF, "synthetic": "none", "static": False}

SINGLE: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "feddyn": {"name": "feddyn"},
    "logit adjustment": {"name": "logit_adjustment"},
    "logit adjustment, smoothed": {"name": "logit_adjustment", "smoothing": 10.0},
    "interior points": INTERIOR,
    "GANDALF": GANDALF,
    "GANDALF, fewer images": FEWER,
    "SDA-FL": {"name": "sda_fl", "gan_steps": 400},
    "training in turn": IN_TURN,
    **BESIDE,
}
COMBINED: dict[str, Table] = {
    "FedDPMS + logit adjustment": {**OURS, **LA},
    "FedDPMS + smoothed logit adjustment": {**OURS, **SMOOTH},
    "FedDPMS + interior points": {**OURS, **POINTS},
    "FedDPMS + logit adjustment + interior points": {**OURS, **LA, **POINTS},
    "FedDPMS + FedDyn": {**OURS, **DYN},
    "training in turn + logit adjustment": {**IN_TURN, **LA},
    "training in turn + interior points": {**IN_TURN, **POINTS},
    "GANDALF, fewer images + logit adjustment": {**FEWER, **LA},
    "GANDALF, fewer images + smoothed logit adjustment": {**FEWER, **SMOOTH},
    "GANDALF, fewer images + interior points": {**FEWER, **POINTS},
    "GANDALF, fewer images, one group": {**FEWER, "mediators": 1},
    "GANDALF's images, FedAvg": {**GANDALF, **AVERAGED},
    "GANDALF's images, fewer, FedAvg": {**FEWER, **AVERAGED},
    "GANDALF's images, fewer, logit adjustment": {**FEWER, **AVERAGED, **LA},
    "GANDALF's images, fewer, FedDyn": {**FEWER, **AVERAGED, **DYN},
    "GANDALF with a VAE, fewer images": {**FEWER, "gan": "vae"},
}
"""Without a word: our form with its default settings, but interior points as they were when this ran (`FORMER`).

Smoothed: ten examples are added to every class's count.
"""

FILLED: Table = {**FEWER, **AVERAGED, "counts_epsilon": 0.5}
PRIVATE: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "logit adjustment": {"name": "logit_adjustment"},
    "logit adjustment, smoothed": {"name": "logit_adjustment", "smoothing": 10.0},
    "interior points": INTERIOR,
    "logit adjustment + interior points": {"name": "logit_adjustment", **POINTS},
    "interior points, slower tuning": {"name": "fedavg", "post_aggregation": {**FORMER, "tune_rate": 0.001}},
    "interior points, limited rate": {"name": "agg_enhance"},
    "training in turn": IN_TURN,
    "training in turn + logit adjustment": {**IN_TURN, **LA},
    "GANDALF's images, fewer, FedAvg": {**FILLED, "gan_epsilon": 3.0, "gan_steps": 600, "gan_batch_size": 64},
    "noise in place of the images": {**FILLED, "synthetic": "noise", "gan_epsilon": 3.0, "gan_steps": 0},
}
"""What can be had where everything that leaves a client is protected; class counts take a small part of ε.

Slower tuning: a rate of 0.002, as where clients have the rate that the method is made for. Limited rate: the default
form of today.
"""
MANY = ("fedavg", "fedprox", "feddyn", "logit adjustment", "GANDALF's images, fewer, FedAvg")
FEW = tuple(row for row in PRIVATE if row not in ("fedavg", "GANDALF's images, fewer, FedAvg"))
LIMIT: Table = {"updates": "dp_sgd", "budget": 8.0}
SHARED: dict[str, Table] = {
    row: {"privacy": LIMIT | {"target": 7.0}}
    for row in ("GANDALF's images, fewer, FedAvg", "noise in place of the images")
}
"""With ε = 3 for the GANs and 0.5 for the counts, 7 are left for the rounds."""


def protected() -> Table:
    """The same setting with DP-SGD, and the rate, batch and epochs that suit it (chosen by FedAvg on validation data).

    Rounds are calibrated to a little less than the budget, which noisy class counts must fit in too. Evaluation
    asks no client, because what it sends is not protected.
    """
    tables = setting("fashion-mnist", 0.1, 6000, 20, validation=0.0)
    return tables | {
        "train": tables["train"] | {"optimizer": "sgd", "lr": 2.0, "local_epochs": 2, "batch_size": 128},
        "privacy": LIMIT | {"target": 7.8},
        "evaluation": {"clients": 0, "final_clients": 0, "test_curve": True},
    }


PARTS = [
    Part("tried", partial(setting, "fashion-mnist", 0.1, 8000, 15, 0.25), SINGLE | COMBINED, 1),
    Part("evaluated", partial(setting, "fashion-mnist", 0.1, 6000, 20), SINGLE | COMBINED, many=MANY),
    Part("private", protected, PRIVATE, sections=SHARED, few=FEW),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
