"""Run folders written by hand, as large and as strange as a test wants them, without training anything."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedsynth.federation.timeline import COLUMNS

LEDGER = {
    "kind": "release",
    "release": "train.model",
    "task": "train",
    "what": "weights of the model after local training",
    "evaluation": False,
    "times": 3,
    "mechanism": "none",
    "unit": "",
    "adjacency": "",
    "epsilon": None,
    "delta": None,
    "proven": "none",
    "covered": "",
    "not_covered": "",
    "claimed": "",
}


def write_run(
    path: Path,
    clients: int = 4,
    rounds: int = 3,
    classes: int = 10,
    method: str = "fedavg",
    seed: int = 0,
    accuracy: float = 0.8,
    split: str = "ab12",
    pictures: int = 0,
) -> Path:
    """A finished run; every seventh request fails."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    names = [str(k) for k in range(clients)]
    config = {"seed": seed, "method": {"name": method}, "data": {"name": "digits"}, "train": {"rounds": rounds}}
    put(path / "config.json", config)
    put(path / "versions.json", {"fedsynth": "0.1.0", "code": "c0de" * 16, "torch": "2"})
    counts = rng.integers(0, 40, (clients, classes)) * rng.integers(0, 2, (clients, classes))
    put(
        path / "manifest.json",
        {
            "classes": [f"class {k}" for k in range(classes)],
            "clients": clients,
            "fingerprint": {"data": "d" * 64, "split": split},
            "skew": {"kl_mean": 1.5, "hellinger_mean": 0.5},
            "counts": {
                "per_class": {"train": counts.sum(0).tolist()},
                "per_client": {name: {"train": counts[k].tolist()} for k, name in enumerate(names)},
            },
        },
    )
    lines = [
        {
            "round": r,
            "seconds": float(r),
            "bytes_up": r * 1000,
            "bytes_down": r * 1000,
            "failed": 0,
            "validation": {"accuracy": accuracy * r / rounds, "worst": 0.5 * accuracy * r / rounds},
            "test": {"accuracy": accuracy * r / rounds - 0.01},
        }
        for r in range(1, rounds + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (path / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "train_examples", "global/test/accuracy", "global/test/examples"])
        writer.writerows([name, 20, accuracy * (0.9 + 0.1 * rng.random()), 8] for name in names)
    failures = _write_timeline(path, names, rounds)
    put(path / "participation.json", {"client_seconds": 3.0, "failures": failures})
    put(path / "summary.json", summary(method, seed, accuracy, split, names, rounds, failures, classes))
    if pictures:
        (path / "samples").mkdir()
        for r in np.linspace(1, rounds, pictures).astype(int):
            images = rng.random((10 * classes, 1, 28, 28)).astype(np.float32)
            labels = np.arange(10 * classes) % classes
            save_file({"images": images, "labels": labels}, path / "samples" / f"made-round-{r:04d}.safetensors")
    return path


def _write_timeline(path: Path, names: list[str], rounds: int) -> list[dict[str, Any]]:
    failures, number = [], 0
    with (path / "timeline.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for r in range(1, rounds + 1):
            for name in names:
                number += 1
                outcome = "timeout" if number % 7 == 0 else "answered"
                writer.writerow([name, "train", r, r, r + 0.9, 0.0, 0.0, outcome])
                if outcome == "timeout":
                    failures.append({"client": name, "round": r, "task": "train", "kind": outcome, "message": "late"})
    return failures


def summary(
    method: str,
    seed: int,
    accuracy: float,
    split: str,
    names: list[str],
    rounds: int,
    failures: list[dict[str, Any]],
    classes: int,
) -> dict[str, Any]:
    """As a run writes it."""
    moved = {"up": 10**6, "down": 2 * 10**6}
    return {
        "method": method,
        "seed": seed,
        "test": {
            "accuracy": accuracy,
            "class_variance": 12.0,
            "worst_class": accuracy / 2,
            "class_accuracy": [accuracy] * classes,
        },
        "clients": {
            "view": "global",
            "n": len(names),
            "mean": accuracy,
            "worst": accuracy / 2,
            "worst_client": names[0],
            "variance": 9.0,
        },
        "validation": {"pooled": accuracy},
        "best": {"round": rounds, "score": accuracy},
        "rounds": rounds,
        "bytes": {**moved, "evaluation": moved, "by_task": {"train": moved, "score": moved}},
        "client_epochs": 12.0,
        "server_seconds": 0.0,
        "seconds": 30.0,
        "simulated_seconds": None,
        "failures": failures[:1000],
        "failed": len(failures),
        "notes": [],
        "privacy": [{**LEDGER, "clients": names}],
        "data": {"name": "digits", "clients": len(names), "split": split},
    }


def put(path: Path, value: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(value))


def add_additions(path: Path, failed: bool = False) -> Path:
    """Let a run have added what its clients lack up to 20 of each class, and have checked that."""
    manifest = json.loads((path / "manifest.json").read_text())
    held = {client: parts["train"] for client, parts in manifest["counts"]["per_client"].items()}
    record = {"kind": "additions", "what": "synthetic samples", "basis": "exact", "clients": list(held)}
    record["added"] = [[max(0, 20 - count) for count in counts] for counts in held.values()]
    kept = json.loads((path / "records.json").read_text()) if (path / "records.json").exists() else {}
    put(path / "records.json", {**kept, "what was added": record})
    checks = [
        {"check": "classes covered", "mark": "good", "words": "10 of 10", "value": 1.0},
        {"check": "recognised", "mark": "failed" if failed else "good", "words": "8% by the nearest", "value": 0.08},
    ]
    put(path / "summary.json", json.loads((path / "summary.json").read_text()) | {"synthesis": checks})
    return path


def write_comparison(folder: Path, failed: bool = False) -> Path:
    """FedAvg, a method that adds data with its controls, and a variant of it, with two seeds each."""
    rows = [
        ("fedavg", "fedavg", "", 0.60),
        ("gandalf", "gandalf", "", 0.70),
        ("gandalf: noise", "gandalf", "noise", 0.62),
        ("nothing", "gandalf", "without synthesis", 0.64),
        ("gandalf: real samples", "gandalf", "real samples", 0.72),
        ("half as many", "gandalf", "", 0.68),
    ]
    planned = []
    for place, (label, method, control, accuracy) in enumerate(rows):
        for seed in range(2):
            name = f"row-{place}-s{seed}"
            path = write_run(folder / name, seed=seed, method=method, accuracy=accuracy + 0.01 * seed, pictures=1)
            if method == "gandalf" and control != "without synthesis":
                add_additions(path, failed and not control)
            of = {"base": "gandalf", "control": control} if control else {}
            planned.append({"label": label, "experiment": {"name": name, "method": {"name": method}}, **of})
    put(folder / "comparison.json", {"planned": planned})
    return folder
