"""The study of PFL-GAN and other personalised methods behind docs/results.md.

    FEDSYNTH_DATA=/path/to/data python benchmarks/pfl_gan.py --runs /tmp/pfl --jobs 2
    python benchmarks/pfl_gan.py --runs /tmp/pfl --table docs/results/pfl-gan.csv

Killed and started again it goes on where it was. `--only TEXT` runs the rows whose names contain TEXT; with
FEDSYNTH_TINY=1 in the environment every run is as small as can be, on the built-in digits, to see that all work.

Clients train their GANs once for each split, in the row "cluster_fedavg": the other rows take them from there.

Every number is on the client's own test part, which is the whole test set of its source, as in the paper. A row has
the mean over clients for each source, the share of clients that do worse than local-only, and the clients' mean on
their own validation parts, by which rows are chosen: balanced over the classes, as the test sets are and the parts are
not."""

from __future__ import annotations

import csv
import itertools
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness import BESIDE, Part, Table, main, save, spread

TINY = bool(os.environ.get("FEDSYNTH_TINY"))
SMALL = {"gan_steps": 10, "samples_per_class": 10, "encoder_steps": 10} if TINY else {}
PFL = {"name": "pfl_gan", **SMALL, **({"refined_steps": 10} if TINY else {})}
GROUPS = {"name": "cluster_fedavg", **SMALL}
MOMENT_GROUPS = {"name": "cluster_fedavg", "shared": "moments"}
CONTROLS = ("noise", "duplicates", "real")
MODEL = {"name": "pfl_cnn", "channels": [16, 32], "hidden": [64]}
"""The paper does not describe its classifier; half the usual width trains four times as fast."""

ROWS: dict[str, Table] = {
    "local": {"name": "local"},
    "local, balanced": {"name": "local", "resample": "balanced"},
    "local, balanced, BatchNorm": {"name": "local", "resample": "balanced"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": 0.01},
    "fedopt": {"name": "fedopt"},
    "fedbn": {"name": "fedbn"},
    "fedavg, BatchNorm": {"name": "fedavg"},
    "finetune": {"name": "finetune"},
    "ditto": {"name": "ditto"},
    "fedrep": {"name": "fedrep"},
    "faug": {"name": "faug", **({"gan_steps": 10} if TINY else {})},
    "rfa_rfd": {"name": "rfa_rfd", **SMALL},
    "cluster_fedavg": GROUPS,
    "cluster_fedavg, 2-means": {**GROUPS, "threshold": "2-means"},
    "cluster_fedavg, logit adjustment": {**GROUPS, "objective": "logit_adjusted"},
    "cluster_fedavg, synthetic samples": {**GROUPS, "top_up": True},
    "cluster_fedavg, synthetic samples, BatchNorm": {**GROUPS, "top_up": True},
    **{f"cluster_fedavg, {kind}": {**GROUPS, "top_up": True, "synthetic": kind} for kind in CONTROLS},
    "ifca": {"name": "ifca", "groups": 2},
    "cfl": {"name": "cfl"},
    "cluster_fedavg, moments": MOMENT_GROUPS,
    "cluster_fedavg, moments, synthetic samples": {**MOMENT_GROUPS, "top_up": True},
    **BESIDE,
    "pfl_gan": {**PFL, "use": "refined", "refine": "group"},
    "pfl_gan, as published": {**PFL, "form": "published"},
    "pfl_gan, T_i directly": {**PFL, "use": "direct"},
    "pfl_gan, T_i directly, BatchNorm": {**PFL, "use": "direct"},
    "pfl_gan, untrained encoder": {**PFL, "use": "direct", "autoencoder": "untrained"},
    "pfl_gan, noise": {**PFL, "use": "refined", "refine": "group", "synthetic": "noise", "refined_steps": 0},
    "pfl_gan, real samples": {**PFL, "synthetic": "real"},
    "pfl_gan, K-means": {**PFL, "threshold": "k-means", "clusters": 2},
    "pfl_gan, spectral": {**PFL, "threshold": "spectral", "clusters": 2},
}
"""With BatchNorm: the network has BatchNorm layers, which FedBN needs; the others tell what the layers alone bring."""
DONOR = "cluster_fedavg"
MAIN = (
    *("local", "local, balanced", "fedavg", "fedprox", "fedopt", "fedbn", "finetune", "faug", "rfa_rfd"),
    *(DONOR, "cluster_fedavg, synthetic samples", "cluster_fedavg, moments, synthetic samples", *BESIDE),
    *("pfl_gan", "pfl_gan, as published"),
)
"""Rows with three seeds; the others have one."""
FEW = tuple(row for row in ROWS if row not in MAIN)
LONG = (DONOR, "cluster_fedavg, synthetic samples", "pfl_gan, T_i directly, BatchNorm")
LONGER = {"local": ROWS["local"], **{row: {**ROWS[row], "gan_steps": 3000} | SMALL for row in LONG}}
"""Clients' GANs of three times the steps: is it their quality that keeps accuracy below the printed one?"""
LATE = {
    row: ROWS[row]
    for row in (
        *("local", "local, balanced", "fedavg", "fedbn", "finetune", DONOR),
        *("cluster_fedavg, synthetic samples", "pfl_gan", "pfl_gan, T_i directly"),
        *(f"cluster_fedavg, {kind}" for kind in CONTROLS),
    )
}
"""With three times the epochs: is it training that has not come to its end?"""
ROBUST = {
    "local": ROWS["local"],
    "fedavg": ROWS["fedavg"],
    "cluster_fedavg": {**GROUPS, "gan_steps": 500} | SMALL,
    "pfl_gan, T_i directly": {**ROWS["pfl_gan, T_i directly"], "gan_steps": 500} | SMALL,
    "trimmed mean": {"name": "trimmed_mean", "trim": 0.25},
    "median": {"name": "median"},
    "krum": {"name": "krum", "byzantine": 2, "keep": 6},
}
"""Against two of ten clients whose data is another set's under the same labels, or that send noise; shorter GANs."""

PUBLISHED = {
    "label skew": {
        "mnist": {"fedavg": 91.06, "fedprox": 90.89, "fedopt": 91.93, "fedbn": 97.01, "rfa_rfd": 89.0, "faug": 88.0}
        | {"pfl_gan, as published": 97.11}
    },
    "two data sets": {
        "mnist": {"fedavg": 75.80, "fedprox": 70.02, "fedopt": 81.96, "fedbn": 75.46, "pfl_gan, as published": 96.91},
        "fashion-mnist": {"fedavg": 30.28, "fedprox": 31.90, "fedopt": 69.38, "fedbn": 67.13}
        | {"pfl_gan, as published": 84.34},
    },
}
"""The paper's tables 1 and 3."""


def setting(
    sources: Sequence[str], clients: int, shares: Sequence[int] = (), malicious: Sequence[str] = (), rounds: int = 10
) -> Table:
    """The paper's sizes: 300 images of a class for training, 15 of three; a tenth more for validation."""
    sources = ["digits"] * len(sources) if TINY else sources
    several = {"sources": list(sources), "shares": list(shares)} if len(sources) > 1 else {"name": sources[0]}
    sizes = {"samples_per_class": 20, "few_samples": 4} if TINY else {"samples_per_class": 333, "few_samples": 17}
    return {
        "data": {**several, "client_test": "source"},
        "partition": {"name": "few_sample", "num_clients": min(clients, 8) if TINY else clients, **sizes},
        "model": MODEL,
        "faults": {"malicious": list(malicious)},
        "train": {
            "rounds": 1 if TINY else rounds,
            "local_epochs": 1,
            "batch_size": 64,
            "optimizer": "adam",
            "lr": 0.001,
        },
    }


@dataclass(frozen=True)
class Shared(Part):
    """A part whose rows share the clients' GANs, and some of whose rows have a network with normalisation layers.

    `gans_of` is the part where the GANs are trained, if it is another: one with the same clients.
    """

    gans_of: Part | None = None

    def experiment(self, row: str, seed: int, runs: Path) -> Table:
        """One run: a row with a seed."""
        table = super().experiment(row, seed, runs)
        if row == "fedbn" or row.endswith(", BatchNorm"):
            table |= {"model": MODEL | {"norm": "batch"}}
        trains = table["method"]["name"] in ("pfl_gan", "cluster_fedavg", "rfa_rfd") and ", moments" not in row
        if trains and row not in self.first:
            donor = runs / (self.gans_of or self).folder(DONOR, seed)
            return table | {"method": {**table["method"], "gans_from": str(donor)}}
        return table


ONE = partial(setting, ["mnist"])
TWO = partial(setting, ["mnist", "fashion-mnist"])
LABEL_SKEW = Shared("label skew", partial(ONE, 20), ROWS, few=FEW, first=[DONOR], told=["fedavg"])
TWO_SETS = Shared("two data sets", partial(TWO, 20), ROWS, few=FEW, first=[DONOR], told=["fedavg"])
PARTS = [
    LABEL_SKEW,
    TWO_SETS,
    Shared("label skew, longer GANs", partial(ONE, 20), LONGER, 1, first=[DONOR]),
    Shared("label skew, 30 rounds", partial(ONE, 20, rounds=30), LATE, 1, told=["fedavg"], gans_of=LABEL_SKEW),
    Shared(
        "two data sets, 30 rounds",
        partial(TWO, 20, rounds=30),
        LATE,
        few=["local", "local, balanced", "pfl_gan, T_i directly"],
        told=["fedavg"],
        gans_of=TWO_SETS,
    ),
    Shared("out-of-distribution", partial(TWO, 10, [8, 2]), ROBUST, 1, first=[DONOR]),
    Shared("malicious", partial(ONE, 10, malicious=["0", "1"]), ROBUST, 1, first=[DONOR]),
]


def by_client(path: Path, number: str = "test/accuracy", view: str = "") -> dict[str, float] | None:
    """A number of every honest client, in a run that is complete; by the view that it is evaluated by."""
    if not (path / "summary.json").is_file():
        return None
    view = view or read(path / "summary.json")["clients"]["view"]
    malicious = read(path / "config.json")["faults"]["malicious"]
    with (path / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["client"] not in malicious]
    return {row["client"]: float(row[f"{view}/{number}"]) for row in rows}


def by_source(path: Path, accuracy: dict[str, float]) -> dict[str, float]:
    """The clients' mean accuracy in %, for each source; clients come in the order of the sources."""
    manifest = read(path / "manifest.json")
    clients, means = iter(manifest["counts"]["per_client"]), {}
    for name, number in manifest["clients_per_source"].items():
        of_source = [accuracy[client] for client in itertools.islice(clients, number) if client in accuracy]
        means[name] = 100 * statistics.mean(of_source)
    return means


def read(path: Path) -> Table:
    """A JSON file."""
    found: Table = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(parts: Sequence[Part], runs: Path, target: Path) -> None:
    """What is complete, as CSV: a line per part, row and source. Fine-tuning's runs evaluate FedAvg's model too."""
    lines = []
    for part in parts:
        for row in part.rows:
            of, view = ("finetune", "global") if row in part.told else (row, "")
            done = [
                (seed, path, found)
                for seed in part.seeds_of(row)
                if (found := by_client(path := runs / part.folder(of, seed), view=view))
            ]
            worse = [
                100 * statistics.mean(found[client] < value for client, value in alone.items())
                for seed, _, found in done
                if row != "local" and (alone := by_client(runs / part.folder("local", seed)))
            ]
            means = [by_source(path, found) for _, path, found in done]
            balanced = "validation/balanced_accuracy"
            chosen_by = [by_source(path, by_client(path, balanced, view) or {}) for _, path, _ in done]
            for source in means[0] if means else ():
                values = [mean[source] for mean in means]
                lines.append(
                    {
                        "part": part.name,
                        "row": row,
                        "source": source,
                        **spread("accuracy", values),
                        "seeds": " ".join(f"{value:.2f}" for value in values),
                        "validation": statistics.mean(mean[source] for mean in chosen_by),
                        "worse": statistics.mean(worse) if worse else "",
                        "published": PUBLISHED.get(part.name, {}).get(source, {}).get(row, ""),
                        "n": len(values),
                    }
                )
    save(parts, lines, target)


if __name__ == "__main__":
    main(PARTS, __doc__, write=write)
