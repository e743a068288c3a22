"""The partitioner that is told everything: how many examples of each class each client has."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from fedsynth.data.dealing import deal
from fedsynth.data.partition_registry import PartitionConfig, Parts, partitioner
from fedsynth.errors import DataError


class CountsConfig(PartitionConfig):
    """Keys of `counts`."""

    name: Literal["counts"] = "counts"
    counts: tuple[tuple[NonNegativeInt, ...], ...] = Field(
        min_length=1, description="For each client, how many examples of each class it gets."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_many_clients_as_rows(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("counts"), list | tuple):
            return {"num_clients": len(values["counts"]), **values}
        return values

    @model_validator(mode="after")
    def _a_table(self) -> CountsConfig:
        if self.num_clients != len(self.counts):
            raise ValueError(f"counts has {len(self.counts)} rows, and num_clients is {self.num_clients}")
        if len({len(row) for row in self.counts}) != 1:
            raise ValueError("all rows of counts must have the same length, a number for each class")
        if min(sum(row) for row in self.counts) < self.min_size:
            raise ValueError(f"every row of counts must come to at least {self.min_size}")
        return self


@partitioner(CountsConfig)
def by_counts(
    labels: np.ndarray, config: CountsConfig, rng: np.random.Generator, groups: np.ndarray | None = None
) -> Parts:
    """As the table says, chosen at random; refused where a class has not enough."""
    wanted = np.array(config.counts, dtype=np.int64)
    supply = np.bincount(labels, minlength=wanted.shape[1])[: wanted.shape[1]]
    short = np.flatnonzero(wanted.sum(axis=0) > supply)
    if len(short):
        label = int(short[0])
        raise DataError(
            f"partition.counts asks for {int(wanted[:, label].sum())} examples of class {label}, and there are "
            f"{int(supply[label])}; lower them."
        )
    return deal(wanted, labels, rng)
