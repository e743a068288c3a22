"""A federation's data in memory: one pool of examples, and who holds which rows of it.

The rows of all clients lie in one array, so that 100,000 clients cost megabytes; a client's examples are copied out of
the pool only when they are asked for. Or data that stays where it is: what a network's server knows of it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from fedsynth.data import manifest as numbers
from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.mixture import Mixture, mix
from fedsynth.data.partition import PartitionConfig, divide, parse_partition
from fedsynth.data.partition.allocation import apportion
from fedsynth.data.sources import load_sources
from fedsynth.data.splits import assert_disjoint, split_clients
from fedsynth.errors import DataError, nearest
from fedsynth.seeding import generator

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class FederatedData(Mixture):
    """Clients with disjoint train, validation and test parts, and a global test set nobody trains on."""

    clients: list[str]
    rows: np.ndarray  # client after client; within a client train, validation, test
    bounds: np.ndarray  # (clients, 4): where each client's parts begin and end in `rows`
    client_sources: np.ndarray
    seed: int
    partition: PartitionConfig
    config: DataConfig = field(repr=False)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {client: position for position, client in enumerate(self.clients)}

    def position(self, client: str) -> int:
        """Where a client stands in `clients`; an unknown id is an error."""
        try:
            return self._position[client]
        except KeyError:
            raise DataError(f'There is no client "{client}".{nearest(client, self.clients[:1000])}') from None

    def client(self, client: str) -> ClientData:
        """The parts of one client, copied from the pool."""
        position = self.position(client)
        bounds = self.bounds[position]
        train, validation, test = (self.pool.subset(self.rows[a:b]) for a, b in pairwise(bounds))
        own = self.config.client_test == "own"
        return ClientData(train, validation, test if own else self._source_test(self.client_sources[position]))

    def _source_test(self, source: int) -> Dataset:
        """The part of the global test set that comes from one source."""
        rows = np.arange(len(self.test)) if self.test_sources is None else np.flatnonzero(self.test_sources == source)
        return self.test.subset(rows)

    def pooled(self, part: str = "train") -> Dataset:
        """The same part of all clients together, for baselines that pool the data."""
        return self.pool.subset(np.sort(self.rows[self._in_part(part)]))

    def train_size(self, client: str) -> int:
        """How many examples a client trains on, without touching them."""
        bounds = self.bounds[self.position(client)]
        return int(bounds[1] - bounds[0])

    def counts(self, part: str = "train") -> np.ndarray:
        """Examples per client and class in one part: "train", "validation" or "test"."""
        if part == "test" and self.config.client_test == "source":
            tests = [self._source_test(source).counts(self.schema.classes) for source in range(len(self.source_names))]
            return np.stack(tests)[self.client_sources]
        owner = np.repeat(np.arange(len(self.clients)), self.bounds[:, 3] - self.bounds[:, 0])
        chosen = self._in_part(part)
        cells = owner[chosen] * self.schema.classes + self.pool.y[self.rows[chosen]]
        table = np.bincount(cells, minlength=len(self.clients) * self.schema.classes)
        return table.reshape(len(self.clients), self.schema.classes)

    def _in_part(self, part: str) -> np.ndarray:
        kinds = np.tile(np.arange(len(PARTS)), len(self.clients))
        return np.repeat(kinds, np.diff(self.bounds, axis=1).ravel()) == PARTS.index(part)

    def split_fingerprint(self) -> str:
        """sha256 of the split: who has which example in which part."""
        return numbers.split_fingerprint(self.clients, self.rows, self.bounds, self.held_out)

    def manifest(self) -> numbers.Manifest:
        """Everything needed to recognise this split and to see how skewed it really is."""
        counts = {part: self.counts(part) for part in PARTS}
        sources = np.bincount(self.client_sources, minlength=len(self.source_names)).tolist()
        unused = len(self.pool) - len(self.rows) - len(self.held_out)
        return {
            "data": self.config.model_dump(mode="json"),
            "partition": self.partition.model_dump(mode="json"),
            "seed": self.seed,
            "fingerprint": {"data": self.fingerprint, "split": self.split_fingerprint()},
            "shape": list(self.schema.shape),
            "classes": list(self.schema.class_names),
            "clients": len(self.clients),
            "clients_per_source": dict(zip(self.source_names, sources, strict=True)),
            "examples": {
                **{part: int(table.sum()) for part, table in counts.items()},
                "global_test": len(self.test),
                "unused": int(unused),
            },
            "train_sizes": numbers.summarise_sizes(counts["train"].sum(axis=1)),
            "skew": numbers.measure_skew(sum(counts.values(), start=np.zeros_like(counts["train"]))),
            "counts": numbers.tabulate_counts(self.clients, counts),
        }


def load_federated(
    data: DataConfig, partition: Mapping[str, object] | PartitionConfig | None = None, seed: int = 0
) -> FederatedData:
    """Read the data, fix the global test set, divide the rest over the clients, and split each client.

    Without a partition name, data that knows its clients is divided naturally, other data by `dirichlet`.
    """
    mixture = mix(load_sources(data, seed), data, seed)
    config = _partition_config(partition, mixture)
    parts, owners = _divide_sources(mixture, data, config, seed)
    ids = _client_ids(parts, mixture, config)
    share = data.test if data.client_test == "own" else 0.0
    rows, bounds = split_clients(mixture.pool.y, parts, ids, data.validation, share, seed)
    assert_disjoint(rows, len(mixture.pool), mixture.held_out)
    train = np.concatenate([rows[first:last] for first, last in bounds[:, :2]])
    pool = corrupt_labels(mixture.pool, train, data.label_noise, mixture.schema.classes, seed)
    return FederatedData(
        **{**vars(mixture), "pool": pool},
        clients=ids,
        rows=rows.astype(np.int32) if len(pool) < 2**31 else rows,
        bounds=bounds,
        client_sources=owners,
        seed=seed,
        partition=config,
        config=data,
    )


def corrupt_labels(pool: Dataset, rows: np.ndarray, share: float, classes: int, seed: int) -> Dataset:
    """The same examples, but a share of those at `rows` has the label of another class, drawn at random."""
    if not share or classes < 2:
        return pool
    rng = generator(seed, "label noise")
    wrong = rng.choice(np.sort(rows), round(share * len(rows)), replace=False)
    labels = pool.y.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return Dataset(pool.x, labels)


def _partition_config(partition: Mapping[str, object] | PartitionConfig | None, mixture: Mixture) -> PartitionConfig:
    if isinstance(partition, PartitionConfig):
        return partition
    table = dict(partition or {})
    if "name" not in table and mixture.groups is not None:
        table["name"] = "natural"
    return parse_partition(table)


def _divide_sources(
    mixture: Mixture, data: DataConfig, config: PartitionConfig, seed: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Rows of each client, and the source that each client belongs to."""
    free = mixture.free_rows()
    if config.name == "natural" or len(mixture.source_names) == 1:
        groups = mixture.groups[free] if mixture.groups is not None else None
        parts = divide(mixture.pool.y[free], config, generator(seed, "partition", config.name), groups)
        parts = [free[part] for part in parts]
        return parts, np.array([mixture.sources[part[0]] for part in parts], dtype=np.int64)
    shares = np.array(data.shares or [1] * len(mixture.source_names), dtype=float)
    if config.num_clients < len(shares):
        raise DataError(
            f"{len(shares)} sources need at least {len(shares)} clients and partition.num_clients is "
            f"{config.num_clients}; raise it."
        )
    per_source = apportion(config.num_clients, shares, least=0)
    if per_source.min() == 0:
        per_source = apportion(config.num_clients, shares, least=1)
    parts = []
    for position, clients in enumerate(per_source):
        rows = free[mixture.sources[free] == position]
        own = config.model_copy(update={"num_clients": int(clients)})
        rng = generator(seed, "partition", config.name, position)
        parts += [rows[part] for part in divide(mixture.pool.y[rows], own, rng)]
    return parts, np.repeat(np.arange(len(per_source)), per_source)


def _client_ids(parts: list[np.ndarray], mixture: Mixture, config: PartitionConfig) -> list[str]:
    """Natural ids, or numbers padded with zeros so that they sort."""
    if config.name == "natural" and mixture.groups is not None:
        return [str(mixture.groups[part[0]]) for part in parts]
    width = len(str(len(parts) - 1))
    return [str(number).zfill(width) for number in range(len(parts))]


@dataclass(frozen=True)
class DescribedData:
    """Sites as they described themselves: shape and classes. The server has no test.

    `class_counts` has the training examples per class of those sites that released them.
    """

    sites: Mapping[str, Mapping[str, Any]]
    class_counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    test: Dataset | None = None
    test_sources: np.ndarray | None = None
    source_names: tuple[str, ...] = ("sites",)

    @property
    def clients(self) -> list[str]:
        """The sites, in the order of the experiment."""
        return list(self.sites)

    @property
    def schema(self) -> Schema:
        """What all sites agree on."""
        first = next(iter(self.sites.values()))
        return Schema(tuple(first["shape"]), len(first["classes"]), tuple(first["classes"]))

    def check(self) -> None:
        """Refuse sites that do not agree, by name."""
        first_name, first = next(iter(self.sites.items()))
        for name, about in self.sites.items():
            for key in ("shape", "classes"):
                if about[key] != first[key]:
                    raise DataError(
                        f'Site "{name}" has another {key} ({about[key]}) than site "{first_name}" ({first[key]}): '
                        "give all sites the same [schema]."
                    )

    def with_counts(self, class_counts: Mapping[str, Sequence[int]]) -> "DescribedData":
        """The same sites, and what some of them released of their training examples, class by class."""
        return replace(self, class_counts=dict(class_counts))

    def train_size(self, client: str) -> int | None:
        """How many examples a site trains on, if it released that."""
        return sum(self.class_counts[client]) if client in self.class_counts else None

    def counts(self, part: str = "train") -> np.ndarray | None:
        """Examples per site and class in one part, if all sites released them; they release "train" alone."""
        if part != "train" or not all(site in self.class_counts for site in self.sites):
            return None
        return np.array([self.class_counts[site] for site in self.sites], dtype=np.int64)

    def split_fingerprint(self) -> str:
        """sha256 over what the sites say of their data; it changes when a site's data does."""
        known = [[name, about["fingerprint"]] for name, about in self.sites.items()]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def manifest(self) -> numbers.Manifest:
        """The same table as a simulated split's, without what the server does not know."""
        table: numbers.Manifest = {
            "sites": {name: dict(about) for name, about in self.sites.items()},
            "fingerprint": {"split": self.split_fingerprint()},
            "shape": list(self.schema.shape),
            "classes": list(self.schema.class_names),
            "clients": len(self.sites),
        }
        counts = self.counts()
        if counts is not None:
            table["examples"] = {"train": int(counts.sum())}
            table["train_sizes"] = numbers.summarise_sizes(counts.sum(axis=1))
            table["skew"] = numbers.measure_skew(counts)
            table["counts"] = numbers.tabulate_counts(self.clients, {"train": counts})
        elif self.class_counts:
            known = {site: {"train": list(self.class_counts[site])} for site in self.sites if site in self.class_counts}
            table["counts"] = {"per_client": known}
        return table


RunData = FederatedData | DescribedData
"""What a run knows of its federation's data, wherever that is. Without a `test`, there is no global test.

How many examples clients have is None where it is not known: sites of a network release it only on request.
"""
