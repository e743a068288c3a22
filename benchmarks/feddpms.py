"""The study of FedDPMS behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/feddpms.py --runs /tmp/feddpms --jobs 2
    python benchmarks/feddpms.py --runs /tmp/feddpms --table docs/results/feddpms.csv

Killed and started again it goes on where it was. `--only TEXT` runs the parts whose names contain TEXT.
"""

from __future__ import annotations

from functools import partial

from harness import BESIDE, Part, Table, main

PUBLISHED = {"name": "feddpms", "form": "published"}
OURS = {"name": "feddpms"}
ROWS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "moon": {"name": "moon"},
    "fedmix": {"name": "fedmix"},
    "fedvae": {"name": "fedvae"},
    "logit adjustment": {"name": "logit_adjustment"},
    "published": PUBLISHED,
    "published, without synthesis": {**PUBLISHED, "synthetic": "none"},
    "published, noise": {**PUBLISHED, "synthetic": "noise"},
    "published, no filter": {**PUBLISHED, "filter": "none"},
    "published, real samples": {**PUBLISHED, "synthetic": "real"},
    "ours, ε = 8": OURS,
    "ours, ε = 1": {**OURS, "epsilon": 1.0},
    "ours, noise": {**OURS, "synthetic": "noise"},
    "ours, no filter": {**OURS, "filter": "none"},
    "ours, real samples": {**OURS, "synthetic": "real"},
    **BESIDE,
}
"""Rows at β = 0.1. Ours without synthesis is FedAvg to the last bit. The other parts run those that matter most."""
THREE = {name: ROWS[name] for name in ("fedavg", "published", "ours, ε = 8", *BESIDE)}
ABLATION: dict[str, Table] = {
    "fedavg": ROWS["fedavg"],
    "logit adjustment": ROWS["logit adjustment"],
    "ours": OURS,
    "recognised with 70 % or more": {**OURS, "filter": 0.7},
    "hard labels": {**OURS, "hardness": 1.0},
    "with logit adjustment": {**OURS, "objective": {"name": "logit_adjusted"}},
}
STRICT: dict[str, Table] = {"recognised with 90 % or more": {**OURS, "filter": 0.9}}
"""Forms of ours, evaluated on validation data alone."""
LARGER = {name: ROWS[name] for name in ("fedavg", "ours, ε = 8", *BESIDE)}
FULL = {name: ROWS[name] for name in ("fedavg", "published", "analytic")}
CIFAR = THREE | {"published": {**PUBLISHED, "sigma": 4.0, "quota": 200}}  # the paper's numbers for CIFAR10


def setting(data: str, beta: float, limit: int | None, rounds: int, validation: float = 0.1) -> Table:
    """The paper's training settings on some data; with a large validation part the test part is not looked at."""
    held = {"limit": limit, "validation": validation} if limit else {"validation": 0.0}
    return {
        "data": {"name": data, "test": 0.0, **held},
        "partition": {"name": "dirichlet", "num_clients": 10, "alpha": beta},
        "model": {"name": "cnn"},
        "train": {
            "rounds": rounds,
            "local_epochs": 5,
            "batch_size": 64,
            "optimizer": "adam",
            "lr": 0.001,
            "schedule": "step",
        },
        "evaluation": {"test_curve": validation <= 0.1},
    }


PARTS = [
    Part("fashion-0.1", partial(setting, "fashion-mnist", 0.1, 6000, 20), ROWS),
    Part("fashion-0.5", partial(setting, "fashion-mnist", 0.5, 6000, 20), THREE),
    Part("cifar10-0.5", partial(setting, "cifar10", 0.5, 3000, 15), CIFAR),
    Part("larger", partial(setting, "fashion-mnist", 0.1, 20000, 20), LARGER, 1),
    Part("full", partial(setting, "fashion-mnist", 0.5, None, 50), FULL, 1),
    *(
        Part(f"ablation {data}-{beta}", partial(setting, data, beta, limit, 15, 0.25), ABLATION | more, 1)
        for data, beta, limit, more in (
            ("fashion-mnist", 0.1, 8000, STRICT),
            ("fashion-mnist", 0.5, 8000, {}),
            ("cifar10", 0.1, 4000, {}),
            ("cifar10", 0.5, 4000, {}),
        )
    ),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
