"""Every place data can come from, behind one call: `load_source`.

A source is a train part, perhaps a test part of its own, and perhaps the natural client of each example.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsynth.data.config import ClassList, DataConfig
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.data.partition.allocation import apportion
from fedsynth.data.readers.arrays import read_idx_folder, read_npz
from fedsynth.data.readers.folders import read_clients, read_image_folder
from fedsynth.data.readers.public_sets import KNOWN, find_known, read_known
from fedsynth.data.readers.raw import Part, Raw, describe_shape, number_labels, resize_images
from fedsynth.data.readers.tables import read_csv, read_parquet
from fedsynth.errors import ConfigError, DataError, nearest
from fedsynth.seeding import generator

READERS: dict[str, Callable[[Path, DataConfig], Raw]] = {
    "idx": read_idx_folder,
    "npz": read_npz,
    "images": read_image_folder,
    "csv": read_csv,
    "parquet": read_parquet,
    "clients": read_clients,
}


@dataclass(frozen=True)
class Source:
    """A data set ready to be divided. `groups`: the natural client of each training example; `columns`: of a table."""

    name: str
    train: Dataset
    test: Dataset | None
    schema: Schema
    groups: np.ndarray | None
    fingerprint: str
    columns: tuple[str, ...] = ()


def load_source(config: DataConfig, seed: int = 0) -> Source:
    """Read the one source that `data.name` (or a single entry of `data.sources`) names."""
    names = config.sources or (config.name,)
    if len(names) != 1:
        raise ConfigError(f"data.sources names {len(names)} sources; use load_sources or load_federated for several.")
    return load_sources(config, seed)[0]


def load_sources(config: DataConfig, seed: int = 0) -> list[Source]:
    """Every source of the federation, in order; their shapes must agree when there are several."""
    names = config.sources or (config.name,)
    sources = []
    for position, name in enumerate(names):
        # The position, not the name, goes into the seed: a path may be spelt differently on each machine.
        rng, kept = generator(seed, "data", "limit", position), config.classes_of(position, len(names))
        known = find_known(name)  # however its name was spelt
        sources.append(_prepare(known.name if known else name, read_raw(name, config), config, kept, rng))
    for source in sources[1:]:
        if source.schema.shape != sources[0].schema.shape:
            raise DataError(
                f"{source.name} has examples of {describe_shape(source.train.x)} but {sources[0].name} of "
                f"{describe_shape(sources[0].train.x)}; sources must agree (data.image_size resizes images)."
            )
    return sources


def read_raw(name: str, config: DataConfig) -> Raw:
    """Read one source by its name, before labels are numbered."""
    kind, colon, path = name.partition(":")
    if colon and kind in READERS:
        place = Path(path).expanduser()
        if not path or not place.exists():
            raise DataError(f"{path or 'Nothing'} does not exist; check the path after {kind}: in the data's name.")
        return READERS[kind](place, config)
    if name == "digits":
        return _digits()
    known = find_known(name)
    if known is not None:
        return read_known(known, config)
    if Path(name).expanduser().exists():
        guess = Path(name).suffix.lower().removeprefix(".")
        kinds = guess if guess in READERS else " or ".join(READERS)
        raise ConfigError(f'"{name}" is a path; say what it holds, as in "{kinds}:{name}".')
    options = ["digits", *KNOWN, *(f"{reader}:PATH" for reader in READERS)]
    raise ConfigError(f'There is no data set "{name}".{nearest(name, options)}')


def _digits() -> Raw:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    return Raw(Part(x, digits.target.astype(np.int64)))


def _prepare(name: str, raw: Raw, config: DataConfig, classes: ClassList | None, rng: np.random.Generator) -> Source:
    """Number the labels, resize, keep the wanted classes and the wanted amount, and take the fingerprint."""
    raw = resize_images(raw, config.size, name)
    shapes = {part.x.shape[1:] for part in raw.parts()}
    if len(shapes) > 1:
        raise DataError(f"{name}: train and test examples differ in shape ({' and '.join(map(str, shapes))}).")
    numbers, names = number_labels([part.y for part in raw.parts()], name)
    names = raw.class_names or names
    train = Dataset(raw.train.x, numbers[0])
    test = Dataset(raw.test.x, numbers[1]) if raw.test is not None else None
    groups = raw.groups
    if classes is not None:
        kept = _class_numbers(classes, names, name)
        train, rows = _keep_classes(train, kept, name)
        groups = groups[rows] if groups is not None else None
        test = _keep_classes(test, kept, name)[0] if test is not None else None
        names = tuple(names[label] for label in kept)
    if config.limit is not None and config.limit < len(train):
        rows = sample_stratified(train.y, config.limit, rng)
        train, groups = train.subset(rows), groups[rows] if groups is not None else None
    schema = Schema(train.x.shape[1:], len(names), names)
    return Source(name, train, test, schema, groups, fingerprint(train, test, groups), raw.columns)


def _class_numbers(classes: ClassList, names: tuple[str, ...], source: str) -> list[int]:
    numbers = []
    for wanted in classes:
        if isinstance(wanted, str) and wanted in names:
            numbers.append(names.index(wanted))
        elif isinstance(wanted, int) and 0 <= wanted < len(names):
            numbers.append(wanted)
        else:
            hint = nearest(str(wanted), names) if isinstance(wanted, str) else ""
            raise DataError(f"data.classes: {source} has no class {wanted!r}; it has {len(names)} classes.{hint}")
    if len(set(numbers)) != len(numbers) or not numbers:
        raise DataError("data.classes must name at least one class, and none twice.")
    return numbers


def _keep_classes(data: Dataset, kept: list[int], source: str) -> tuple[Dataset, np.ndarray]:
    """The examples of some classes, renumbered in their order; and the rows at which they were."""
    rows = np.flatnonzero(np.isin(data.y, kept))
    if len(rows) == 0:
        raise DataError(f"{source} has no examples of the classes in data.classes; choose others.")
    number = np.full(max(kept) + 1, -1, np.int64)
    number[kept] = np.arange(len(kept))
    return Dataset(data.x[rows], number[data.y[rows]]), rows


def sample_stratified(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` rows whose class counts are proportional to the whole (largest remainder), in order."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels)
    take = apportion(size, counts)
    first = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(first, counts)
    return np.sort(by_class[rank < np.repeat(take, counts)])


def fingerprint(train: Dataset, test: Dataset | None, groups: np.ndarray | None) -> str:
    """sha256 of what the data is: types, shapes and bytes of every array."""
    digest = hashlib.sha256()
    arrays = [train.x, train.y] + ([test.x, test.y] if test is not None else [])
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    if groups is not None:
        digest.update("\n".join(groups.tolist()).encode())
    return digest.hexdigest()
