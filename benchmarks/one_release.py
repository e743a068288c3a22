"""Class moments and the closed form together: what each adds to the other, under one budget.

    FEDSYNTH_DATA=/path/to/data python benchmarks/one_release.py --runs /tmp/one-release --jobs 2
    python benchmarks/one_release.py --runs /tmp/one-release --table docs/results/one-release.csv

Both models answer; their probabilities are averaged. How sharp the closed form's are was set before the first run. In
`private` all that leaves a client has ε = 8 in total (per record, add or remove one, δ = 1e-5): alone
each method has all of it, together each has half of μ².
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from closed_form import EXACT
from combining import LIMIT, protected
from feddpms import setting
from harness import BESIDE, Part, Table, main, save, spread
from safetensors.torch import load_file
from torch import Tensor

from fedsynth import make_experiment
from fedsynth.experiment.runner import built, load_data

HALF = 5.3
"""About half of the μ² of ε = 8."""
HIDDEN: Table = {"name": "moments", "per_class": 40}
ALONE: Table = {"moments": {**HIDDEN, "epsilon": 3.0}, "analytic": {**EXACT, "epsilon": 8.0}}
HALVES: Table = {"moments, half": {**HIDDEN, "epsilon": 2.0}, "analytic, half": {**EXACT, "epsilon": HALF}}
REST: dict[str, Table] = {
    "moments": {"privacy": LIMIT | {"target": 7.0}},
    "moments, half": {"privacy": LIMIT | {"target": 4.7, "budget": HALF}},
    "analytic": {"privacy": {"budget": 8.0}},
    "analytic, half": {"privacy": {"budget": 5.4}},
}
PLAIN: dict[str, Table] = {"fedavg": {"name": "fedavg"}, **BESIDE}
PARTS = [
    Part("evaluated", partial(setting, "fashion-mnist", 0.1, 6000, 20), PLAIN),
    Part("private", protected, ALONE | HALVES, sections=REST),
]
PAIRS = {
    "evaluated": (("fedavg", "analytic"), ("moments", "analytic")),
    "private": (("moments, half", "analytic, half"),),
}
SHARPNESS = 10.0
"""Answers of the closed form are near 0 or 1: so many times that are its logits."""


def opinions(table: Table) -> tuple[Tensor, Tensor] | None:
    """The logits of a complete run on the global test part, and the labels."""
    path = Path(table["runs"]) / table["name"]
    if not (path / "summary.json").is_file():
        return None
    experiment = make_experiment(table)
    data = load_data(experiment)
    model = built(experiment, data.schema, load_file(path / "model.safetensors"))
    assert model is not None
    x, y = data.test.tensors()
    with torch.no_grad():
        return torch.cat([model(batch) for batch in x.split(1000)]).double(), y


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of right answers, in %."""
    return 100 * (logits.argmax(1) == y).double().mean().item()


def write(parts: Sequence[Part], runs: Path, target: Path) -> None:
    """Each model alone, and the mean of both opinions."""
    lines = []
    for part in parts:
        seeds = range(part.seeds)
        told = {(row, seed): opinions(part.experiment(row, seed, runs)) for row in part.rows for seed in seeds}
        found: dict[str, list[float]] = {}
        for (row, _), answer in told.items():
            if answer:
                found.setdefault(row, []).append(accuracy(*answer))
        for first, second in PAIRS[part.name]:
            for seed in seeds:
                one, two = told[first, seed], told[second, seed]
                if one and two:
                    mean = (one[0].softmax(1) + (SHARPNESS * two[0]).softmax(1)) / 2
                    found.setdefault(f"{first} + {second}", []).append(accuracy(mean, one[1]))
        for row, values in found.items():
            each = " ".join(f"{value:.2f}" for value in values)
            lines.append({"part": part.name, "row": row, **spread("final", values), "seeds": each, "n": len(values)})
    whole = [
        Part(part.name, part.tables, {line["row"]: {} for line in lines if line["part"] == part.name}) for part in parts
    ]
    save(whole, lines, target)


if __name__ == "__main__":
    main(PARTS, __doc__, write=write)
