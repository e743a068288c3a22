"""The registry of partitioners: each has a name, a config class with its own keys, and a function.

A partitioner is `(labels, config, rng, groups) -> list of index arrays`: disjoint, never empty, in bounded
work. It repairs a draw that leaves a client too small by moving examples; it never draws again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AliasChoices, BaseModel, Field

from fedsynth.data.config import parse_table
from fedsynth.errors import ConfigError, DataError, nearest

Parts = list[np.ndarray]
Groups = np.ndarray | None
Partitioner = Callable[[np.ndarray, Any, np.random.Generator, Groups], Parts]

CLIENT_NAMES = AliasChoices("num_clients", "num_partitions", "n_parties")
MinSize = Annotated[
    int,
    Field(
        ge=1,
        validation_alias=AliasChoices("min_size", "min_partition_size"),
        description="Fewest examples a client may have.",
    ),
]


class PartitionConfig(BaseModel, frozen=True, extra="forbid", populate_by_name=True):
    """The keys of every partitioner; each has a class of its own with its further keys."""

    name: str = Field(description="Which partitioner.")
    num_clients: int = Field(
        10, ge=1, validation_alias=CLIENT_NAMES, description="How many clients the data is divided over."
    )
    min_size: MinSize = 1


@dataclass(frozen=True)
class Registered:
    """A partitioner with its config class."""

    config: type[PartitionConfig]
    divide: Partitioner


PARTITIONERS: dict[str, Registered] = {}
ALIASES: dict[str, str] = {}
Divide = TypeVar("Divide", bound=Callable[..., Parts])


def partitioner(config: type[PartitionConfig], aliases: tuple[str, ...] = ()) -> Callable[[Divide], Divide]:
    """Register a partitioner under its config's name and under other tools' names for it."""
    name = str(config.model_fields["name"].default)

    def register(divide: Divide) -> Divide:
        PARTITIONERS[name] = Registered(config, divide)
        ALIASES.update(dict.fromkeys((name, *aliases), name))
        return divide

    return register


def parse_partition(table: Mapping[str, object]) -> PartitionConfig:
    """The config of a partitioner from a plain table; without a name it is `dirichlet`.

    An unknown name or key is a `ConfigError` that names the partitioner and the nearest known word.
    """
    given = dict(table)
    wanted = str(given.pop("name", "dirichlet"))
    if counted := re.fullmatch(r"noniid-#label(\d+)", wanted):  # NIID-Bench writes the number of classes into the name
        wanted, given = "n_class", {"n": int(counted[1]), **given}
    name = ALIASES.get(wanted) or ALIASES.get(wanted.lower())
    if name is None:
        raise ConfigError(f'There is no partitioner "{wanted}".{nearest(wanted, PARTITIONERS)}')
    return parse_table(PARTITIONERS[name].config, given, f'partition "{name}"')


def divide(labels: np.ndarray, config: PartitionConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Run the partitioner that the config belongs to; refuses more clients than examples."""
    clients, examples = config.num_clients, len(labels)
    # Natural clients are as many as there are, where no number is given.
    if clients is not None and clients * config.min_size > examples:
        least = f" of at least {config.min_size} examples" if config.min_size > 1 else ""
        fix = " or partition.min_size" if config.min_size > 1 else ""
        raise DataError(
            f"{clients} clients{least} cannot be made from {examples} examples; lower partition.num_clients{fix}."
        )
    return PARTITIONERS[config.name].divide(labels, config, rng, groups)
