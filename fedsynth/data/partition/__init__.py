"""How the examples are divided over the clients. Importing this package registers every partitioner."""

from fedsynth.data.partition import basic, label_skew
from fedsynth.data.partition.registry import PARTITIONERS, PartitionConfig, divide, parse_partition, partitioner

__all__ = ["PARTITIONERS", "PartitionConfig", "basic", "divide", "label_skew", "parse_partition", "partitioner"]
