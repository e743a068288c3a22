"""What a finished run leaves beside its metrics: tables and pictures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data.run_data import RunData
from fedsynth.federation.participation import Participation
from fedsynth.federation.records import Matrix, read_record
from fedsynth.federation.store import write_json
from fedsynth.report.csv_files import read_rows, write_csv
from fedsynth.report.plots import plot_clients, plot_curves, plot_matrix, plot_split, plot_timeline

SPLIT_PICTURE_CLIENTS = 100
TIMELINE_BARS = 20_000  # in the picture of who worked when


def write_record(
    folder: Path,
    summary: dict[str, Any],
    rows: list[dict[str, Any]],
    judged: dict[str, Any],
    participation: Participation,
    data: RunData,
) -> None:
    """metrics.csv, clients.csv, participation.json, ledger.csv, TensorBoard events, and pictures: of the split if it is
    known, the curves, the clients, each matrix that the method recorded and, where time is simulated, who worked when.
    """
    write_csv(folder / "metrics.csv", [flat(row) for row in rows])
    write_csv(folder / "clients.csv", _client_rows(judged["per_client"], data))
    write_json(folder / "participation.json", participation.as_dict())
    write_csv(folder / "ledger.csv", _ledger_rows(summary["privacy"]))
    write_events(folder / "tensorboard", rows)
    counts = data.counts()
    if counts is not None:
        shown = data.clients[:SPLIT_PICTURE_CLIENTS]
        plot_split(folder / "split.png", counts[:SPLIT_PICTURE_CLIENTS], shown, data.schema)
    if any("validation" in row for row in rows):
        plot_curves(folder / "curves.png", {summary["method"]: rows})
    own = judged["per_client"].get(f"{summary['clients'].get('view')}/test", {})
    if own and len(own) <= SPLIT_PICTURE_CLIENTS:
        accuracy = {client: values["accuracy"] for client, values in own.items()}
        plot_clients(folder / "clients.png", {summary["method"]: accuracy})
    if summary["simulated_seconds"]:
        with (folder / "timeline.csv").open(newline="", encoding="utf-8") as file:
            when = [row for row in read_rows(file) if float(row["simulated_end"]) > float(row["simulated_start"])]
        plot_timeline(folder / "timeline.png", when[:TIMELINE_BARS])
    for name, kept in participation.records.items():
        _picture_of(folder, name, kept)


def _picture_of(folder: Path, name: str, kept: dict[str, Any]) -> None:
    """A matrix that a method recorded, as records/<name>.png."""
    record = read_record(kept)
    if isinstance(record, Matrix) and record.rows:
        (folder / "records").mkdir(exist_ok=True)
        path = folder / "records" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.png"
        values = np.array(record.values, dtype=float)
        plot_matrix(path, values, record.rows, record.columns or record.rows, record.marks, name)


def write_events(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The metrics as TensorBoard events, written anew from the whole record, so that a resume leaves no doubles."""
    from torch.utils.tensorboard import SummaryWriter  # slow to import, needed once

    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:
        for row in rows:
            for name, value in numbers_of(row).items():
                writer.add_scalar(name, value, row["round"])


def numbers_of(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row of metrics by their flat names, but for the round."""
    return {
        key: float(value)
        for key, value in flat(row).items()
        if key not in ("round", "phase") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by a slash: validation/accuracy."""
    result: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}/")
        else:
            result[f"{prefix}{key}"] = value
    return result


def _client_rows(per_client: dict[str, dict[str, Any]], data: RunData) -> list[dict[str, Any]]:
    clients: dict[str, dict[str, Any]] = {}
    for view, by_client in per_client.items():
        for client, values in by_client.items():
            row = clients.setdefault(client, {"client": client, "train_examples": data.train_size(client)})
            row |= {f"{view}/{key}": value for key, value in values.items()}
    if all(row["train_examples"] is None for row in clients.values()):  # nobody told
        for row in clients.values():
            del row["train_examples"]
    return [clients[client] for client in sorted(clients)]


def _ledger_rows(privacy: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per client and release, and one per client for the total."""
    rows = [{"client": client, **row} for row in privacy for client in row["clients"]]
    for row in rows:
        del row["clients"]
    return sorted(rows, key=lambda row: (len(row["client"]), row["client"]))
