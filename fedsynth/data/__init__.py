"""Data: where it comes from, how it is divided over clients, and what each client holds."""

from fedsynth.data.check import check_data
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.data.partition import PartitionConfig, partitioner

__all__ = ["DataConfig", "FederatedData", "PartitionConfig", "check_data", "load_federated", "partitioner"]
