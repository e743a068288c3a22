"""Moments of features (`ccvr`, `fedpft`) on Fashion-MNIST, Dirichlet 0.1.

    FEDSYNTH_DATA=/path/to/data python benchmarks/features.py --runs /tmp/features --jobs 2
    python benchmarks/features.py --runs /tmp/features --table docs/results/features.csv

The setting is that of the study of FedDPMS (benchmarks/feddpms.py). Settings are evaluated on validation data, with two
seeds (`tried`); the defaults then on the test part. ε is per record (add or remove one), δ = 1e-5, of what is released
of the moments: FedAvg's rounds before it are not protected.
"""

from __future__ import annotations

from functools import partial

from feddpms import setting
from harness import Part, Table, main

CCVR: Table = {"name": "ccvr"}
FEDPFT: Table = {"name": "fedpft"}
ROWS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "ccvr": CCVR,
    "ccvr, after each round": {**CCVR, "each_round": True},
    "ccvr, ε = 8": {**CCVR, "epsilon": 8.0},
    "ccvr, ε = 1": {**CCVR, "epsilon": 1.0},
    "ccvr, ε = 8, once": {**CCVR, "epsilon": 8.0},
    "fedpft": FEDPFT,
    "fedpft, ε = 8": {**FEDPFT, "epsilon": 8.0},
}
SECURE: dict[str, Table] = {row: {"privacy": {"secure_aggregation": True}} for row in ROWS if row.endswith("once")}
"""Noise once, in a secure sum, of which six of ten clients may be all that stay."""
CHANGED: dict[str, tuple[Table, ...]] = {
    "ccvr": (
        *({"draws": 200}, {"draws": 2000}, {"head_epochs": 5}, {"covariance": "shared"}),
        *({"head_lr": 0.0003}, {"head_lr": 0.003}, {"head_lr": 0.01}),
    ),
    "ccvr, ε = 8": ({"clip": 5.0}, {"clip": 10.0}, {"clip": 40.0}, {"covariance": "class"}),
    "fedpft": (
        *({"dimension": 150}, {"dimension": 600}, {"components": 3}, {"components": 10}, {"covariance": "shared"}),
        *({"head_lr": 0.001}, {"head_lr": 0.003}, {"head_epochs": 30}),
    ),
    "fedpft, ε = 8": ({"clip": 0.15}, {"clip": 0.6}, {"dimension": 100}),
}
TRIED = {"fedavg": ROWS["fedavg"]} | {
    f"{row}, {name} = {value}": {**ROWS[row], name: value}
    for row, changes in CHANGED.items()
    for change in ({}, *changes)
    for name, value in (change or {"name": ROWS[row]["name"]}).items()
}

PARTS = [
    Part("tried", partial(setting, "fashion-mnist", 0.1, 8000, 15, 0.25), TRIED, 2),
    Part("evaluated", partial(setting, "fashion-mnist", 0.1, 6000, 20), ROWS, 1, sections=SECURE),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
