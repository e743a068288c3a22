"""Combinations that nobody has published, beside each method alone: Fashion-MNIST, Dirichlet 0.1.

    FEDSYNTH_DATA=/path/to/data python benchmarks/combining.py --runs /tmp/combinations --jobs 2
    python benchmarks/combining.py --runs /tmp/combinations --table docs/results/combinations.csv

The setting is that of the study of FedDPMS (benchmarks/feddpms.py), whose rows stand beside these. `tried` are judged
on validation data, with one seed; what is best there is then judged on the test part with three (`judged`).
"""

from __future__ import annotations

from functools import partial

from feddpms import OURS, setting
from harness import Part, Table, main

LA: Table = {"objective": {"name": "logit_adjusted"}}
POINTS: Table = {"after": "interior_points"}
DYN: Table = {"objective": "dynamic", "aggregator": "feddyn"}
GANDALF: Table = {"name": "gandalf"}
WITH_VAE: Table = {**GANDALF, "gan": "vae"}
EACH: Table = {"name": "sda_fl", "gan_steps": 400}

SINGLE: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "feddyn": {"name": "feddyn"},
    "interior points": {"name": "agg_enhance"},
    "GANDALF": GANDALF,
    "SDA-FL": EACH,
    "training in turn": {**GANDALF, "synthetic": "none", "static": False},
}
COMBINED: dict[str, Table] = {
    "FedDPMS + logit adjustment": {**OURS, **LA},
    "FedDPMS + interior points": {**OURS, **POINTS},
    "FedDPMS + logit adjustment + interior points": {**OURS, **LA, **POINTS},
    "FedDPMS + FedDyn": {**OURS, **DYN},
    "GANDALF + interior points": {**GANDALF, **POINTS},
    "GANDALF + logit adjustment": {**GANDALF, **LA},
    "GANDALF, one group": {**GANDALF, "mediators": 1},
    "SDA-FL, one group": {**EACH, "mediators": 1},
    "SDA-FL + interior points": {**EACH, **POINTS},
    "GANDALF with a VAE": WITH_VAE,
    "GANDALF with a VAE, one group": {**WITH_VAE, "mediators": 1},
}
"""Without a word: our form with its default settings."""

PARTS = [
    Part("tried", partial(setting, "fashion-mnist", 0.1, 8000, 15, 0.25), SINGLE | COMBINED, 1),
    Part("judged", partial(setting, "fashion-mnist", 0.1, 6000, 20), SINGLE | COMBINED),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
