"""How the examples are divided over the clients. Importing this package registers every partitioner."""

# ruff: noqa: F401  (what is imported here is offered here)

from fedsynth.data.partition import basic, label_skew
from fedsynth.data.partition.registry import PARTITIONERS, PartitionConfig, divide, parse_partition, partitioner
