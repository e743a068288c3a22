"""Look at a data set before anything is trained on it: what it holds, and what is wrong with it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import Dataset
from fedsynth.data.readers.client_folders import client_paths, find_differences, read_client, unify_channels
from fedsynth.data.readers.raw import Raw, describe_shape, number_labels, resize_images
from fedsynth.data.sources import Source, load_sources
from fedsynth.errors import DataError

SEVERE = 20  # the largest class has so many times the examples of the smallest


@dataclass(frozen=True)
class PartSummary:
    """One part of a source in numbers."""

    examples: int
    per_class: list[int]
    lowest: float
    highest: float


@dataclass(frozen=True)
class SourceSummary:
    """One source in numbers; `clients` counts its natural clients."""

    name: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    train: PartSummary
    test: PartSummary | None
    clients: int | None
    fingerprint: str


@dataclass(frozen=True)
class SiloSummary:
    """One client of `clients:` data: what it holds and which classes it lacks."""

    client: str
    shape: str
    examples: int
    per_class: dict[str, int]
    missing: list[str]


@dataclass(frozen=True)
class Check:
    """What was found: summaries, and one sentence per problem. `ok` when there is none."""

    sources: list[SourceSummary] = field(default_factory=list)
    silos: list[SiloSummary] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return asdict(self)


def check_data(config: DataConfig, seed: int = 0) -> Check:
    """Summarise the data and list its problems.

    A source that cannot be read raises its `DataError`; for `clients:` data every client's differences are
    collected instead, so that one pass shows all that must be mended.
    """
    silos: list[SiloSummary] = []
    problems: list[str] = []
    for name in config.sources or (config.name,):
        if name.startswith("clients:"):
            found, wrong = _check_silos(Path(name.removeprefix("clients:")).expanduser(), config)
            silos += found
            problems += wrong
    if problems:
        return Check(silos=silos, problems=problems)
    sources = load_sources(config, seed)
    for source in sources:
        problems += find_problems(source)
    for silo in silos:
        if silo.missing:
            problems.append(f'Client "{silo.client}" has no examples of {_listed(silo.missing)}.')
    return Check([_summary(source) for source in sources], silos, problems)


def _check_silos(folder: Path, config: DataConfig) -> tuple[list[SiloSummary], list[str]]:
    clients: dict[str, Raw] = {}
    problems = []
    inner = config.model_copy(update={"client_column": None})
    for client, path in client_paths(folder).items():
        try:
            clients[client] = resize_images(read_client(path, inner), config.size, client)
        except DataError as error:
            problems.append(f'Client "{client}" cannot be read: {error}')
    if not clients:
        return [], problems
    clients = unify_channels(clients)
    differences = find_differences(clients)
    try:
        numbers, names = number_labels([raw.train.y for raw in clients.values()], str(folder))
    except DataError:  # text and numbers mixed, which the differences already say
        return [], problems + differences
    silos = []
    for (client, raw), labels in zip(clients.items(), numbers, strict=True):
        counts = np.bincount(labels, minlength=len(names)).tolist()
        missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
        per_class = dict(zip(names, counts, strict=True))
        silos.append(SiloSummary(client, describe_shape(raw.train.x), len(labels), per_class, missing))
    return silos, problems + differences


def _summary(source: Source) -> SourceSummary:
    classes = source.schema.classes
    return SourceSummary(
        name=source.name,
        shape=source.schema.shape,
        class_names=source.schema.class_names,
        train=_part_summary(source.train, classes),
        test=_part_summary(source.test, classes) if source.test is not None else None,
        clients=len(np.unique(source.groups)) if source.groups is not None else None,
        fingerprint=source.fingerprint,
    )


def _part_summary(data: Dataset, classes: int) -> PartSummary:
    return PartSummary(len(data), data.counts(classes).tolist(), float(data.x.min()), float(data.x.max()))


def find_problems(source: Source) -> list[str]:
    """Sentences about duplicates, constant examples, missing labels, imbalance and odd values."""
    problems = _label_problems(source)
    constant = _constant_examples(source.train.x)
    if constant:
        problems.append(f"{source.name}: {constant} training examples are constant (every value is the same).")
    hashes = _row_hashes(source.train.x)
    repeats = len(hashes) - len(set(hashes))
    if repeats:
        problems.append(f"{source.name}: {repeats} training examples are copies of another one.")
    contradictions = _contradictions(hashes, source.train.y)
    if contradictions:
        problems.append(f"{source.name}: {contradictions} training examples occur with different labels.")
    shared = _shared_by_clients(hashes, source.groups)
    if shared:
        problems.append(f"{source.name}: {shared} training examples are held by more than one client.")
    if source.test is not None:
        leaked = len(set(hashes) & set(_row_hashes(source.test.x)))
        if leaked:
            problems.append(f"{source.name}: {leaked} examples are in both train and test; remove them from one.")
    if source.train.x.ndim == 4 and source.train.x.dtype.kind == "f" and source.train.x.max() > 1.5:
        problems.append(
            f"{source.name}: pixels are fractions up to {source.train.x.max():g}; scale them to 0..1 or store bytes."
        )
    return problems


def _label_problems(source: Source) -> list[str]:
    problems = []
    names = source.schema.class_names
    counts = source.train.counts(source.schema.classes)
    absent = [names[label] for label in np.flatnonzero(counts == 0)]
    if absent:
        problems.append(f"{source.name}: no training examples of class {_listed(absent)}.")
    if source.test is not None:
        untested = source.test.counts(source.schema.classes) == 0
        absent = [names[label] for label in np.flatnonzero(untested & (counts > 0))]
        if absent:
            problems.append(f"{source.name}: no test examples of class {_listed(absent)}.")
    present = counts[counts > 0]
    if len(present) < 2:
        problems.append(f"{source.name}: only one class has examples; there is nothing to tell apart.")
    elif present.max() >= SEVERE * present.min():
        largest = int(np.argmax(counts))
        smallest = int(np.argmin(np.where(counts > 0, counts, counts.max() + 1)))
        problems.append(
            f"{source.name}: class {names[largest]} has {counts[largest]} examples and class "
            f"{names[smallest]} only {counts[smallest]}; this is a severe imbalance."
        )
    return problems


def _constant_examples(x: np.ndarray) -> int:
    flat = x.reshape(len(x), -1)
    return int((flat == flat[:, :1]).all(axis=1).sum()) if flat.shape[1] > 1 else 0


def _row_hashes(x: np.ndarray) -> list[bytes]:
    flat = np.ascontiguousarray(x.reshape(len(x), -1))
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat]


def _contradictions(hashes: list[bytes], labels: np.ndarray) -> int:
    first: dict[bytes, int] = {}
    pairs = zip(hashes, labels.tolist(), strict=True)
    return len({example for example, label in pairs if first.setdefault(example, label) != label})


def _shared_by_clients(hashes: list[bytes], groups: np.ndarray | None) -> int:
    if groups is None:
        return 0
    first: dict[bytes, str] = {}
    pairs = zip(hashes, groups.tolist(), strict=True)
    return len({example for example, client in pairs if first.setdefault(example, client) != client})


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
