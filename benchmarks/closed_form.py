"""The closed form (`analytic`) on Fashion-MNIST and CIFAR-10, Dirichlet 0.1: exact, and with ε at each client or once.

    FEDSYNTH_DATA=/path/to/data python benchmarks/closed_form.py --runs /tmp/closed-form --jobs 2
    python benchmarks/closed_form.py --runs /tmp/closed-form --table docs/results/closed-form.csv

The setting is that of the study of FedDPMS (benchmarks/feddpms.py). Settings are evaluated on validation data, with
one seed (`tried`); the defaults then on the test part with three. ε is per record (add or remove one), δ = 1e-5, of all
that the method sends; `once`: noise once in a secure sum, of which six of ten clients may be all that stay, so that
with ten it is there 1.3 times; `all stay`: all ten must, and it is there once.
"""

from __future__ import annotations

from functools import partial

from feddpms import setting
from harness import Part, Table, main

EXACT: Table = {"name": "analytic"}
EPSILONS = (8.0, 3.0, 1.0)
ROWS: dict[str, Table] = {"exact": EXACT}
ROWS |= {f"ε = {e:g}, each": {**EXACT, "epsilon": e} for e in EPSILONS}
ROWS |= {f"ε = {e:g}, once": {**EXACT, "epsilon": e} for e in EPSILONS}
SECURE: dict[str, Table] = {row: {"privacy": {"secure_aggregation": True}} for row in ROWS if row.endswith("once")}
ALL = "ε = 1, once, all stay"
ROWS[ALL] = ROWS["ε = 1, once"]
SECURE[ALL] = {"privacy": {"secure_aggregation": True, "secure_threshold": 1.0}}
CHANGED: dict[str, Table] = {
    "dimension 500": {"dimension": 500},
    "dimension 2000": {"dimension": 2000},
    "ridge 0.0003": {"ridge": 3e-4},
    "ridge 0.003": {"ridge": 3e-3},
    "random convolutions": {"features": "random_conv"},
    "pixels": {"features": "pixels"},
}
PRIVATE: dict[str, Table] = {
    "dimension 150": {"dimension": 150},
    "dimension 600": {"dimension": 600},
    "ridge 0.1": {"ridge": 0.1},
    "ridge 0.5": {"ridge": 0.5},
    "clip 0.15": {"clip": 0.15},
    "clip 0.6": {"clip": 0.6},
}
TRIED = {"exact": EXACT} | {f"exact, {name}": {**EXACT, **how} for name, how in CHANGED.items()}
TRIED |= {row: how for row, how in ROWS.items() if row.endswith("each")}
TRIED |= {
    f"{row}, {name}": {**ROWS[row], **how} for row in ("ε = 8, each", "ε = 1, each") for name, how in PRIVATE.items()
}

PARTS = [
    Part("evaluated", partial(setting, "fashion-mnist", 0.1, 6000, 20), ROWS, sections=SECURE),
    Part("tried", partial(setting, "fashion-mnist", 0.1, 8000, 15, 0.25), TRIED, 1),
    Part("cifar10", partial(setting, "cifar10", 0.1, 6000, 20), ROWS, 1, sections=SECURE),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
