"""Partitioners that draw no proportions of classes: iid, quantity, shards, unimodal, natural, counts."""

from typing import Any, Literal

import numpy as np
from pydantic import AliasChoices, Field, NonNegativeInt, model_validator

from fedsynth.data.partition.allocation import cut, deal, raise_to_minimum, split_by_proportions
from fedsynth.data.partition.registry import CLIENT_NAMES, Groups, MinSize, PartitionConfig, Parts, partitioner
from fedsynth.errors import DataError


class IidConfig(PartitionConfig):
    """Keys of `iid`."""

    name: Literal["iid"] = "iid"


@partitioner(IidConfig, aliases=("homo", "IidPartitioner", "uniform"))
def iid(labels: np.ndarray, config: IidConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Shuffle and cut into parts whose sizes differ by at most one."""
    return cut(rng.permutation(len(labels)), equal_sizes(len(labels), config.num_clients))


def equal_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes that add up to `total` and differ by at most one."""
    return total // parts + (np.arange(parts) < total % parts)


class QuantityConfig(PartitionConfig):
    """Keys of `quantity`."""

    name: Literal["quantity"] = "quantity"
    alpha: float = Field(
        0.5, gt=0, validation_alias=AliasChoices("alpha", "beta"), description="Small: very unequal sizes."
    )
    min_size: MinSize = 10


@partitioner(QuantityConfig, aliases=("iid-diff-quantity", "quantity_skew"))
def quantity(labels: np.ndarray, config: QuantityConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Sizes from a Dirichlet draw (NIID-Bench, iid-diff-quantity); classes are mixed evenly."""
    proportions = rng.dirichlet(np.full(config.num_clients, config.alpha))
    sizes = split_by_proportions(len(labels), proportions)
    sizes = raise_to_minimum(sizes[:, None], config.min_size, rng)[:, 0]
    return cut(rng.permutation(len(labels)), sizes)


class ShardsConfig(PartitionConfig):
    """Keys of `shards`."""

    name: Literal["shards"] = "shards"
    shards_per_client: int = Field(
        2,
        ge=1,
        validation_alias=AliasChoices("shards_per_client", "num_shards_per_partition"),
        description="How many runs of the sorted data each client gets.",
    )


@partitioner(ShardsConfig, aliases=("shard", "ShardPartitioner"))
def shards(labels: np.ndarray, config: ShardsConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """McMahan et al. 2017: sort by label, cut into equal shards, deal each client some of them."""
    return _deal_shards(labels, config, config.shards_per_client, rng)


class UnimodalConfig(PartitionConfig):
    """Keys of `unimodal`."""

    name: Literal["unimodal"] = "unimodal"


@partitioner(UnimodalConfig)
def unimodal(labels: np.ndarray, config: UnimodalConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Fed-ZDA's first split: `shards` with two shards per client."""
    return _deal_shards(labels, config, 2, rng)


def _deal_shards(labels: np.ndarray, config: PartitionConfig, each: int, rng: np.random.Generator) -> Parts:
    clients = config.num_clients
    if len(labels) < clients * each:
        raise DataError(
            f"{clients} clients with {each} shards each need {clients * each} examples and there are "
            f"{len(labels)}; lower partition.num_clients or partition.shards_per_client."
        )
    if len(labels) // (clients * each) * each < config.min_size:
        raise DataError(
            f"{clients} clients of equal shards get {len(labels) // (clients * each) * each} examples, "
            f"fewer than partition.min_size = {config.min_size}; lower one of the two."
        )
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = equal_sizes(len(labels), clients * each)
    order = rng.permutation(clients * each)  # shards in the order in which clients receive them
    first = np.cumsum(sizes) - sizes
    starts, lengths = first[order], sizes[order]
    offset = np.arange(len(labels)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = by_label[np.repeat(starts, lengths) + offset]
    return cut(rows, lengths.reshape(clients, each).sum(axis=1))


class NaturalConfig(PartitionConfig):
    """Keys of `natural`."""

    name: Literal["natural"] = "natural"
    num_clients: int | None = Field(  # type: ignore[assignment]
        default=None,
        ge=1,
        validation_alias=CLIENT_NAMES,
        description="Draw this many of the natural clients; all of them when absent.",
    )


@partitioner(NaturalConfig, aliases=("natural_id", "natural-id", "NaturalIdPartitioner", "real"))
def natural(labels: np.ndarray, config: NaturalConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """One client per natural id, in the order of the ids; those below `min_size` are left out."""
    if groups is None:
        raise DataError(
            "This data does not say which client an example belongs to; "
            "use clients:DIR, set data.client_column, or choose another partition.name."
        )
    names, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    keep = np.flatnonzero(sizes >= config.min_size)
    if config.num_clients is not None:
        if config.num_clients > len(keep):
            raise DataError(
                f"{config.num_clients} natural clients were asked for and {len(keep)} of {len(names)} have "
                f"at least {config.min_size} examples; lower partition.num_clients."
            )
        keep = np.sort(rng.choice(keep, config.num_clients, replace=False))
    if len(keep) == 0:
        raise DataError(
            f"None of the {len(names)} natural clients has {config.min_size} examples; lower partition.min_size."
        )
    parts = cut(np.argsort(owner, kind="stable"), sizes)
    return [parts[client] for client in keep]


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
    def _a_table(self) -> "CountsConfig":
        if self.num_clients != len(self.counts):
            raise ValueError(f"counts has {len(self.counts)} rows, and num_clients is {self.num_clients}")
        if len({len(row) for row in self.counts}) != 1:
            raise ValueError("all rows of counts must have the same length, a number for each class")
        if min(sum(row) for row in self.counts) < self.min_size:
            raise ValueError(f"every row of counts must come to at least {self.min_size}")
        return self


@partitioner(CountsConfig)
def by_counts(labels: np.ndarray, config: CountsConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
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
