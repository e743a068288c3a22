"""How many examples of each class each client has: read from a file or asked of clients, with noise where it is wanted,
and scaled down to what a small public data set can play.
"""

import csv
import io
import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator, PlainSerializer

from fedsynth.components.class_counts import class_counts, counts_guarantee, noise_of_counts
from fedsynth.data.federated import FederatedData
from fedsynth.data.partition.allocation import apportion
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import Experiment
from fedsynth.experiment.runner import load_data
from fedsynth.federation import Federation
from fedsynth.federation.host import TaskHost
from fedsynth.federation.store import StateStore, kept_secret
from fedsynth.privacy import Ledger, LedgerRow
from fedsynth.privacy.discrete import discrete_gaussian_histogram

LEAST = 8  # examples of a client: some to train on, some to evaluate on
DOUBT = 2.0  # noisy counts below so many standard deviations are taken for none


Counts = Annotated[np.ndarray, BeforeValidator(partial(np.array, dtype=np.int64)), PlainSerializer(np.ndarray.tolist)]


class Histograms(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """Counts by client and class, and the ledger of what that cost."""

    clients: list[str]
    counts: Counts
    ledger: list[LedgerRow]


def read_histograms(file: Path, epsilon: float | None, delta: float) -> Histograms:
    """From a CSV file (a header, then client, count, count …) or JSON ({"client": [count, count, …], …}).

    With ε every client's counts get the noise that it would have added itself; exact counts stay in the file.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from None
    try:
        table = _from_csv(text) if file.suffix.lower() == ".csv" else _from_json(text)
        counts = np.array(list(table.values()), dtype=np.float64)
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
        raise ConfigError(f"{file} holds no histograms: {error}. Give a row of counts for each client.") from None
    if counts.ndim != 2 or not counts.size:
        raise ConfigError(f"{file} holds no histograms: every client needs a count for each class.")
    if not np.isfinite(counts).all() or (counts < 0).any() or (counts != np.round(counts)).any():
        raise ConfigError(f"{file}: counts must be whole numbers of 0 or more.")
    return _with_noise(list(table), counts.astype(np.int64), epsilon, delta)


def _from_csv(text: str) -> dict[str, list[float]]:
    _, *rows = [row for row in csv.reader(io.StringIO(text)) if row]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows}


def _from_json(text: str) -> dict[str, list[float]]:
    given = json.loads(text)
    named = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    classes = list(dict.fromkeys(label for row in named.values() for label in row))
    return {str(k): [row.get(label, 0) for label in classes] if k in named else row for k, row in given.items()}


def _with_noise(clients: list[str], counts: np.ndarray, epsilon: float | None, delta: float) -> Histograms:
    ledger, what = Ledger(), {"counts": "number of training examples of each class"}
    for place, client in enumerate(clients):
        guarantee = None
        if epsilon is not None:
            # Secret, not from a seed: who knew the seed could take the noise away again.
            counts[place], event = discrete_gaussian_histogram(counts[place], epsilon, delta, np.random.default_rng())
            guarantee = counts_guarantee(event)
        ledger.record(client, "count_classes", {"counts": guarantee}, what)
    return Histograms(clients=clients, counts=drop_noise(counts, epsilon, delta), ledger=ledger.rows(delta))


def request_histograms(experiment: Experiment, epsilon: float | None) -> Histograms:
    """Ask the clients of an experiment, exact or with secret noise for (ε, privacy.delta)."""
    if experiment.engine.name == "flower":
        raise ConfigError("advise asks clients on one machine: collect the sites' counts in a file for --histograms.")
    data, delta = load_data(experiment), experiment.privacy.delta
    with tempfile.TemporaryDirectory() as scratch:
        host = TaskHost(data, StateStore(Path(scratch)), secret=partial(kept_secret, Path(scratch) / "noise.key"))
        fed = Federation(LocalEngine(host), data.clients, data.schema, experiment.seed)
        released = class_counts(fed, epsilon, delta)
    counts = drop_noise(np.stack([released[client] for client in data.clients]), epsilon, delta)
    return Histograms(clients=list(data.clients), counts=counts, ledger=fed.participation.ledger.rows(delta))


def drop_noise(counts: np.ndarray, epsilon: float | None, delta: float) -> np.ndarray:
    """Counts that noise alone would give are none; a client keeps at least its largest. Post-processing."""
    least = DOUBT * noise_of_counts(epsilon, delta)
    kept = np.where(counts > least, counts, 0)
    largest = counts.argmax(axis=1)
    rows = np.arange(len(counts))
    kept[rows, largest] = np.maximum(counts[rows, largest], 1)
    return np.asarray(kept, dtype=np.int64)


def scale_counts(counts: np.ndarray, supply: np.ndarray, most: int) -> np.ndarray:
    """Whole numbers with the same skew: no client above `most` nor below a few, no class above what there is of it."""
    sizes = np.clip(counts.sum(axis=1), LEAST, max(most, LEAST)).astype(np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    while True:
        whole = np.stack([apportion(round(size), share) for size, share in zip(sizes, shares, strict=True)])
        crowded = (whole.sum(axis=0) / np.maximum(supply, 1e-9)).max()
        if crowded <= 1:
            return whole
        if sizes.max() <= LEAST:
            raise ConfigError(
                f"{len(counts)} clients of {LEAST} examples or more are too many for this data: choose a larger --data."
            )
        sizes = np.maximum(LEAST, np.floor(sizes * min(0.95, 1 / crowded)))


def count_supply(data: FederatedData) -> np.ndarray:
    """How many examples of each class the clients may have together."""
    return np.asarray(sum(data.counts(part).sum(axis=0) for part in ("train", "validation", "test")))
