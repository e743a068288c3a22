"""One or several sources as one pool of examples, with the global test set fixed before any partition."""

import hashlib
from dataclasses import dataclass

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.data.sources import Source
from fedsynth.data.splits import hold_out
from fedsynth.errors import DataError
from fedsynth.seeding import generator


@dataclass(frozen=True)
class Mixture:
    """The pool, the source of each of its rows, and the global test set."""

    pool: Dataset
    sources: np.ndarray
    groups: np.ndarray | None
    held_out: np.ndarray
    test: Dataset
    test_sources: np.ndarray | None
    schema: Schema
    source_names: tuple[str, ...]
    fingerprint: str

    def free_rows(self) -> np.ndarray:
        """The rows that clients may have."""
        free = np.ones(len(self.pool), dtype=bool)
        free[self.held_out] = False
        return np.flatnonzero(free)


def mix(sources: list[Source], config: DataConfig, seed: int) -> Mixture:
    """Join the sources under one label map; a source without a test part has one held out here."""
    names = unique_names([source.name for source in sources])
    offsets, schema = _label_map(sources, config.labels, names)
    as_float = len({source.train.x.dtype for source in sources}) > 1
    pools, tests, held = [], [], []
    start = 0
    for position, (source, offset) in enumerate(zip(sources, offsets, strict=True)):
        train = _shifted(source.train, offset, as_float)
        if source.test is not None:
            test = _shifted(source.test, offset, as_float)
        else:
            rng = generator(seed, "data", "global-test", position)
            rows = hold_out(train.y, config.global_test, rng, source.groups)
            test = train.subset(rows)
            held.append(rows + start)
        pools.append(train)
        tests.append(test)
        start += len(train)
    several = len(sources) > 1
    return Mixture(
        pool=_join(pools),
        sources=np.repeat(np.arange(len(pools), dtype=np.int16), [len(pool) for pool in pools]),
        groups=_groups(sources, names),
        held_out=np.concatenate(held) if held else np.zeros(0, dtype=np.int64),
        test=_join(tests),
        test_sources=np.repeat(np.arange(len(tests)), [len(test) for test in tests]) if several else None,
        schema=schema,
        source_names=names,
        fingerprint=_fingerprint(sources),
    )


def unique_names(names: list[str]) -> tuple[str, ...]:
    """Names that tell the sources apart even when one is used twice (with other classes each time)."""
    return tuple(
        f"{name}#{names[: position + 1].count(name)}" if names.count(name) > 1 else name
        for position, name in enumerate(names)
    )


def _label_map(sources: list[Source], rule: str, names: tuple[str, ...]) -> tuple[list[int], Schema]:
    """What is added to each source's labels, and the schema of the whole."""
    shape = sources[0].schema.shape
    sizes = [source.schema.classes for source in sources]
    if len(sources) == 1:
        return [0], sources[0].schema
    if rule == "separate":
        offsets = [sum(sizes[:position]) for position in range(len(sizes))]
        pairs = zip(names, sources, strict=True)
        labels = tuple(f"{name}: {label}" for name, source in pairs for label in source.schema.class_names)
        return offsets, Schema(shape, sum(sizes), labels)
    _refuse_shuffled_names(sources)
    shared = []
    for number in range(max(sizes)):
        labels_here = [source.schema.class_names[number] for source in sources if number < source.schema.classes]
        shared.append(" / ".join(dict.fromkeys(labels_here)))
    return [0] * len(sources), Schema(shape, max(sizes), tuple(shared))


def _refuse_shuffled_names(sources: list[Source]) -> None:
    """Shared labels go by number; a name with two numbers shows that this would mix up classes."""
    number: dict[str, tuple[int, str]] = {}
    for source in sources:
        for position, label in enumerate(source.schema.class_names):
            known, other = number.setdefault(label, (position, source.name))
            if known != position:
                raise DataError(
                    f'Class "{label}" is number {known} in {other} but {position} in {source.name}; '
                    'list the same classes in data.classes for each, or set data.labels = "separate".'
                )


def _shifted(data: Dataset, offset: int, as_float: bool) -> Dataset:
    x = data.x
    if as_float:
        x = x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)
    return Dataset(x, data.y + offset if offset else data.y)


def _join(parts: list[Dataset]) -> Dataset:
    if len(parts) == 1:
        return parts[0]
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _groups(sources: list[Source], names: tuple[str, ...]) -> np.ndarray | None:
    """Natural ids; with several sources the id starts with the source, so that they cannot collide."""
    if len(sources) == 1:
        return sources[0].groups
    groups = [source.groups for source in sources if source.groups is not None]
    if len(groups) < len(sources):
        return None
    return np.concatenate([np.char.add(f"{name}/", own.astype(str)) for name, own in zip(names, groups, strict=True)])


def _fingerprint(sources: list[Source]) -> str:
    if len(sources) == 1:
        return sources[0].fingerprint
    return hashlib.sha256("\n".join(source.fingerprint for source in sources).encode()).hexdigest()
