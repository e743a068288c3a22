"""What one ask costs over a real network: a SuperLink and three SuperNodes on this machine, with TLS and keys.

    python benchmarks/network_overhead.py                 # a few minutes on an idle machine
    python benchmarks/network_overhead.py --sizes 1 --repeats 2 --out /tmp/network.csv

Writes docs/results/network.csv (seconds of an ask by size, the payload going to every site and back) and
docs/results/network-asks.csv (how many asks each method makes, counted in small runs on one machine). The tables of
docs/network.md are made from both: `python docs/tables.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import run_experiment
from fedsynth.network.deploy import Federation, write_federation
from fedsynth.network.loopback import Loopback

Table = dict[str, Any]
RESULTS = Path(__file__).parent.parent / "docs" / "results"
PLUGIN = Path(__file__).with_name("network_echo.py").resolve()
SITES = ("berlin", "paris", "rome")
WAIT = 600  # seconds for the sites to come, and for one ask
PARTITION: Table = {"name": "dirichlet", "num_clients": len(SITES), "alpha": 1.0}
COMMON: Table = {"data": {"name": "digits", "limit": 240}, "partition": PARTITION}

GAN: Table = {"gan_steps": 2, "gan_channels": 2, "gan_latent": 3}
NORMED: Table = {"name": "zda_cnn", "channels": [4, 6]}
COUNTED: dict[str, Table] = {
    "fedavg": {},
    "fedavg, secure aggregation": {"method": {"name": "fedavg"}, "privacy": {"secure_aggregation": True}},
    "feddpms": {"model": {"name": "cnn", "channels": [4, 6], "hidden": [8]}, "method": {"filter": "none"}},
    "fed_zdac": {"model": NORMED, "method": {"steps": 2, "per_class": 2}},
    "fed_zdas": {"model": NORMED, "method": {"steps": 2, "per_class": 2}},
    "agg_enhance": {"model": NORMED, "method": {"steps": 2, "tune_epochs": 1}},
    "gandalf": {"method": {**GAN, "visit_steps": 2}},
    "pfl_gan": {
        "method": {
            **GAN,
            "use": "refined",
            "refined_steps": 2,
            "samples_per_class": 4,
            "encoder_steps": 2,
            "encoder_latent": 8,
        }
    },
}
"""Small settings that leave the number of asks as it is."""


def measured(folder: Path, sizes: Sequence[int], repeats: int) -> list[Table]:
    """Seconds of an ask for each size; the first one of a size warms up and is left out."""
    write_federation(folder / "fed", Federation(SITES, (1, 8, 8), tuple(map(str, range(10)))))
    for number, site in enumerate(SITES):
        rehearse(folder / "fed" / "sites" / site / "site.toml", number)
    plan = [size for size in sizes for _ in range(repeats + 1)]
    with Loopback(folder / "fed") as network:
        engine = {"name": "flower", "superlink": network.superlink, "sites": list(SITES), "wait": WAIT}
        experiment = make_experiment(
            {
                **COMMON,
                "name": "echo",
                "runs": str(folder / "runs"),
                "plugins": [str(PLUGIN)],
                "method": {"name": "network_echo", "megabytes": plan},
                "train": {"deadline": WAIT},
                "evaluation": {"every": 0},
                "engine": {**engine, "certificate": str(folder / "fed" / "server" / "ca.crt")},
            }
        )
        run_experiment(experiment, progress=False)
    asks = [end - start for task, _, start, end in asked(folder / "runs" / "echo") if task == "network_echo.send_back"]
    rows = []
    for place, size in enumerate(sizes):
        seconds = asks[place * (repeats + 1) + 1 : (place + 1) * (repeats + 1)]
        middle = statistics.median(seconds)
        rows.append(
            {
                "megabytes": size,
                "seconds": round(middle, 2),
                "fastest": round(min(seconds), 2),
                "slowest": round(max(seconds), 2),
                "megabytes_per_second": round(2 * size * len(SITES) / middle, 1),
                "sites": len(SITES),
                "n": repeats,
            }
        )
    return rows


def rehearse(file: Path, client: int) -> None:
    """Let a site play a client of the digits, and trust the plugin."""
    text = file.read_text(encoding="utf-8").replace('name = "npz:data.npz"', 'name = "digits"\nlimit = 240')
    partition = ", ".join(f"{key} = {json.dumps(value)}" for key, value in PARTITION.items())
    head = f"plugins = [{json.dumps(str(PLUGIN))}]\n"
    file.write_text(f'{head}{text}\n[rehearsal]\nclient = "{client}"\npartition = {{ {partition} }}\n', "utf-8")


def asked(run: Path) -> list[tuple[str, int, float, float]]:
    """Task, round, start and end of every ask of a run."""
    with (run / "timeline.csv").open(newline="", encoding="utf-8") as lines:
        rows = [(r["task"], int(r["round"]), float(r["start"]), float(r["end"])) for r in csv.DictReader(lines)]
    return list(dict.fromkeys(rows))


def counted(folder: Path) -> list[Table]:
    """The asks of each method: once, and in every round, validation included."""
    rows = []
    for label, sections in COUNTED.items():
        lengths = {}
        for rounds in (2, 4):
            method = {"name": label, **sections.get("method", {})}
            own = {"name": f"{label.replace(', ', '-').replace(' ', '-')}-{rounds}", "runs": str(folder)}
            train = {"rounds": rounds, "local_epochs": 1}
            tables = {"model": {"name": "mlp", "hidden": [8]}, **COMMON, **sections, **own, "method": method}
            result = run_experiment(
                make_experiment({**tables, "train": train, "engine": {"workers": 1}}), progress=False
            )
            lengths[rounds] = len(asked(result.path))
        per_round = (lengths[4] - lengths[2]) / 2
        rows.append({"method": label, "once": lengths[2] - 2 * per_round, "per_round": per_round})
    return rows


def write(file: Path, rows: list[Table]) -> None:
    """One CSV file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{file}: {len(rows)} rows")


def main() -> None:
    """Measure, count, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 20, 50], help="megabytes of a payload")
    parser.add_argument("--repeats", type=int, default=5, help="measured asks of each size")
    parser.add_argument("--out", type=Path, default=RESULTS / "network.csv", help="the file of the seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsynth-overhead-") as folder:
        write(given.out.with_name(f"{given.out.stem}-asks.csv"), counted(Path(folder) / "counted"))
        write(given.out, measured(Path(folder), given.sizes, given.repeats))


if __name__ == "__main__":
    main()
