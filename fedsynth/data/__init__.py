"""Data: where it comes from, how it is divided over clients, and what each client holds."""

from fedsynth.data.check import Check, check_data
from fedsynth.data.config import DataConfig, parse_data
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.data.partition import PartitionConfig, divide, parse_partition, partitioner
from fedsynth.data.sources import Source, load_source, load_sources

__all__ = [
    "Check",
    "ClientData",
    "DataConfig",
    "Dataset",
    "FederatedData",
    "PartitionConfig",
    "Schema",
    "Source",
    "check_data",
    "divide",
    "load_federated",
    "load_source",
    "load_sources",
    "parse_data",
    "parse_partition",
    "partitioner",
]
