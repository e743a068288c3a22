"""Data: where it comes from, how it is divided over clients, and what each client holds."""

# ruff: noqa: F401  (what is imported here is offered here)

from fedsynth.data.check import check_data
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.data.partition import PartitionConfig, partitioner
