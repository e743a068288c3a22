"""Data that stays where it is: what a network's server knows of it, and what every run needs to know of its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedsynth.data import manifest as numbers
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.data.federated import PARTS
from fedsynth.errors import DataError


class RunData(Protocol):
    """What a run must know of its federation's data, wherever that is. Without a `test`, there is no global test."""

    @property
    def clients(self) -> list[str]: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def test(self) -> Dataset | None: ...

    @property
    def test_sources(self) -> np.ndarray | None: ...

    @property
    def source_names(self) -> tuple[str, ...]: ...

    def train_size(self, client: str) -> int: ...

    def counts(self, part: str = "train") -> np.ndarray: ...

    def split_fingerprint(self) -> str: ...

    def manifest(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class DescribedData:
    """Sites as they described themselves: shape, classes, and examples per part and class. The server has no test."""

    sites: Mapping[str, Mapping[str, Any]]
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
            if sum(about["counts"]["train"]) == 0:
                raise DataError(f'Site "{name}" has no examples to train on.')

    def train_size(self, client: str) -> int:
        """How many examples a site trains on."""
        return int(sum(self.sites[client]["counts"]["train"]))

    def counts(self, part: str = "train") -> np.ndarray:
        """Examples per site and class in one part."""
        return np.array([about["counts"][part] for about in self.sites.values()], dtype=np.int64)

    def split_fingerprint(self) -> str:
        """sha256 over what the sites say of their data; it changes when a site's data does."""
        known = [[name, about["fingerprint"], about["counts"]] for name, about in self.sites.items()]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The same table as a simulated split's, as far as the server knows."""
        counts = {part: self.counts(part) for part in PARTS}
        return {
            "sites": {name: dict(about) for name, about in self.sites.items()},
            "fingerprint": {"split": self.split_fingerprint()},
            "shape": list(self.schema.shape),
            "classes": list(self.schema.class_names),
            "clients": len(self.sites),
            "examples": {**{part: int(table.sum()) for part, table in counts.items()}, "global_test": 0},
            "train_sizes": numbers.size_summary(counts["train"].sum(axis=1)),
            "skew": numbers.realised_skew(sum(counts.values(), start=np.zeros_like(counts["train"]))),
            "counts": numbers.count_table(self.clients, counts),
        }
