"""Look at a data set before anything is trained on it: what it holds, and what is wrong with it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsynth.data.columns import find_column_problems
from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import Dataset
from fedsynth.data.readers.folders import client_paths, find_differences, read_client, unify_channels
from fedsynth.data.readers.raw import Raw, describe_shape, number_labels, resize_images
from fedsynth.data.sources import Source, load_sources
from fedsynth.errors import DataError

SEVERE = 20  # the largest class has so many times the examples of the smallest
FEW = 0.01  # copies of up to this share of the examples happen: no problem


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
    """What was found: summaries, and a sentence per problem (`ok` when there is none) and per thing to know."""

    sources: list[SourceSummary] = field(default_factory=list)
    silos: list[SiloSummary] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


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
    problems = [problem for source in sources for problem in find_problems(source)]
    problems += [
        f'Client "{silo.client}" has no examples of {_listed(silo.missing)}.' for silo in silos if silo.missing
    ]
    notes = [note for source in sources for note in _copies(source.name, _row_hashes(source.train.x), few=True)]
    return Check([_summary(source) for source in sources], silos, problems, notes)


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
    def summarise(data: Dataset) -> PartSummary:
        counts = data.counts(source.schema.classes).tolist()
        return PartSummary(len(data), counts, float(data.x.min()), float(data.x.max()))

    return SourceSummary(
        name=source.name,
        shape=source.schema.shape,
        class_names=source.schema.class_names,
        train=summarise(source.train),
        test=summarise(source.test) if source.test is not None else None,
        clients=len(np.unique(source.groups)) if source.groups is not None else None,
        fingerprint=source.fingerprint,
    )


def find_problems(source: Source) -> list[str]:
    """Sentences about duplicates, constant examples, missing labels, imbalance and odd values."""
    hashes = _row_hashes(source.train.x)
    of_test = _row_hashes(source.test.x) if source.test is not None else []
    found = {
        "training examples are constant (every value is the same).": _constant_images(source.train.x),
        "training examples occur with different labels.": _count_conflicts(hashes, source.train.y),
        "training examples are held by more than one client.": _count_conflicts(hashes, source.groups),
        "examples are in both train and test; remove them from one.": len(set(hashes) & set(of_test)),
    }
    problems = _label_problems(source) + find_column_problems(source) + _copies(source.name, hashes, few=False)
    problems += [f"{source.name}: {count} {words}" for words, count in found.items() if count]
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


def _copies(name: str, hashes: list[bytes], few: bool) -> list[str]:
    """A sentence about copies, where there are a few of them, or where there are more."""
    copies = len(hashes) - len(set(hashes))
    if not copies or (copies <= FEW * len(hashes)) != few:
        return []
    return [f"{name}: {copies} training examples are copies of another one."]


def _constant_images(x: np.ndarray) -> int:
    flat = x.reshape(len(x), -1)
    return int((flat == flat[:, :1]).all(axis=1).sum()) if x.ndim == 4 else 0


def _row_hashes(x: np.ndarray) -> list[bytes]:
    flat = np.ascontiguousarray(x.reshape(len(x), -1))
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat]


def _count_conflicts(hashes: list[bytes], values: np.ndarray | None) -> int:
    """How many examples occur with more than one value (label or client)."""
    if values is None:
        return 0
    first: dict[bytes, object] = {}
    pairs = zip(hashes, values.tolist(), strict=True)
    return len({example for example, value in pairs if first.setdefault(example, value) != value})


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
