"""How the examples are divided over the clients. Importing this module registers every partitioner."""

from __future__ import annotations

from fedsynth.data.partition_basic import (
    IidConfig,
    NaturalConfig,
    QuantityConfig,
    ShardsConfig,
    UnimodalConfig,
)
from fedsynth.data.partition_counts import CountsConfig
from fedsynth.data.partition_registry import (
    PARTITIONERS,
    PartitionConfig,
    divide,
    parse_partition,
    partitioner,
)
from fedsynth.data.partition_skew import (
    DirichletConfig,
    FewSampleConfig,
    LognormalConfig,
    MajorMinorConfig,
    MultimodalConfig,
    NClassConfig,
)

__all__ = [
    "PARTITIONERS",
    "CountsConfig",
    "DirichletConfig",
    "FewSampleConfig",
    "IidConfig",
    "LognormalConfig",
    "MajorMinorConfig",
    "MultimodalConfig",
    "NClassConfig",
    "NaturalConfig",
    "PartitionConfig",
    "QuantityConfig",
    "ShardsConfig",
    "UnimodalConfig",
    "divide",
    "parse_partition",
    "partitioner",
]
