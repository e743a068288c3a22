"""What a finished run leaves beside its metrics: tables and pictures."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsynth.data.federated import RunData
from fedsynth.evaluation.results import MetricsRow, RunSummary
from fedsynth.evaluation.scores import ClientScore, Evaluation
from fedsynth.federation.participation import Participation
from fedsynth.federation.records import Matrix, read_record
from fedsynth.federation.store import write_json
from fedsynth.privacy import LedgerRow
from fedsynth.report.csv_files import read_rows, write_csv
from fedsynth.report.plots import plot_clients, plot_curves, plot_matrix, plot_split, plot_timeline


def write_record(
    folder: Path,
    summary: RunSummary,
    rows: list[MetricsRow],
    evaluation: Evaluation,
    participation: Participation,
    data: RunData,
) -> None:
    """metrics.csv, clients.csv, participation.json, ledger.csv, TensorBoard events, and pictures: of the split if it is
    known, the curves, the clients, each matrix that the method recorded and, where time is simulated, who worked when.
    """
    write_csv(folder / "metrics.csv", [flatten(row.as_dict()) for row in rows])
    write_csv(folder / "clients.csv", _client_rows(evaluation.per_client, data))
    write_json(folder / "participation.json", participation.as_dict())
    write_csv(folder / "ledger.csv", _ledger_rows(summary.privacy))
    write_events(folder / "tensorboard", rows)
    counts = data.counts()
    if counts is not None:
        plot_split(folder / "split.png", counts, data.clients, data.schema)
    plot_curves(folder / "curves.png", {summary.method: rows}, metric=summary.metric)
    own = evaluation.per_client.get(f"{summary.clients.view}/test", {})
    scores = {c: value for c, score in own.items() if (value := getattr(score, summary.metric)) is not None}
    plot_clients(folder / "clients.png", {summary.method: scores}, metric=summary.metric)
    if summary.simulated_seconds:
        with (folder / "timeline.csv").open(newline="", encoding="utf-8") as file:
            plot_timeline(folder / "timeline.png", read_rows(file))
    for name, kept in participation.records.items():
        _picture_of(folder, name, kept)


def _picture_of(folder: Path, name: str, kept: Mapping[str, object]) -> None:
    """A matrix that a method recorded, as records/<name>.png."""
    record = read_record(kept)
    if isinstance(record, Matrix) and record.rows:
        (folder / "records").mkdir(exist_ok=True)
        path = folder / "records" / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.png"
        values = np.array(record.values, dtype=float)
        plot_matrix(path, values, record.rows, record.columns or record.rows, record.marks, name)


def write_events(folder: Path, rows: Sequence[MetricsRow]) -> None:
    """The metrics as TensorBoard events, written anew from the whole record, so that a resume leaves no doubles."""
    from torch.utils.tensorboard import SummaryWriter  # slow to import, needed once

    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:
        for row in rows:
            for name, value in numbers_of(row.as_dict()).items():
                writer.add_scalar(name, value, row.round)


def flatten(row: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested names joined by a slash: validation/accuracy."""
    result: dict[str, object] = {}
    for key, value in row.items():
        result |= flatten(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result


def numbers_of(row: Mapping[str, object]) -> dict[str, float]:
    """What can be drawn over the rounds, by its name in `flatten`."""
    return {
        key: value
        for key, value in flatten(row).items()
        if key != "round" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _client_rows(per_client: dict[str, dict[str, ClientScore]], data: RunData) -> list[dict[str, object]]:
    clients: dict[str, dict[str, object]] = {}
    for view, by_client in per_client.items():
        for client, score in by_client.items():
            row = clients.setdefault(client, {"client": client, "train_examples": data.train_size(client)})
            row |= {f"{view}/{key}": value for key, value in _cells(score).items()}
    if all(row["train_examples"] is None for row in clients.values()):  # nobody told
        for row in clients.values():
            del row["train_examples"]
    return [clients[client] for client in sorted(clients)]


def _cells(score: ClientScore) -> dict[str, object]:
    """A client's numbers; of two classes, sensitivity and specificity are those of the second, of more they are left
    out."""
    cells = score.as_dict()
    for name in ("sensitivity", "specificity"):
        by_class = cells.pop(name, [])
        cells |= {name: by_class[1]} if len(by_class) == 2 else {}
    return cells


def _ledger_rows(privacy: Sequence[LedgerRow]) -> list[dict[str, object]]:
    """A row per client and release, and one per client for the total."""
    rows = [(client, row.model_dump(exclude={"clients"})) for row in privacy for client in row.clients]
    rows.sort(key=lambda entry: (len(entry[0]), entry[0]))
    return [{"client": client, **cells} for client, cells in rows]
