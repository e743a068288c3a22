"""Data that stays where it is: what a network's server knows of it, and what every run needs to know of its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fedsynth.data import manifest as numbers
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.errors import DataError


class RunData(Protocol):
    """What a run must know of its federation's data, wherever that is. Without a `test`, there is no global test.

    How many examples clients have is None where it is not known: sites of a network release it only on request.
    """

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

    def train_size(self, client: str) -> int | None: ...

    def counts(self, part: str = "train") -> np.ndarray | None: ...

    def split_fingerprint(self) -> str: ...

    def manifest(self) -> numbers.Manifest: ...


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

    def with_counts(self, class_counts: Mapping[str, Sequence[int]]) -> DescribedData:
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
