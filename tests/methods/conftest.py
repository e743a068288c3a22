"""Fixtures of the method tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from federations import Finished, run

from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated


@pytest.fixture
def run_method(tmp_path: Path) -> Callable[..., Finished]:
    """Run a method: `run_method("fedprox", data, model="cnn", settings={"mu": 0.1}, rounds=2)`."""
    return functools.partial(run, folder=tmp_path)


@pytest.fixture(scope="session")
def digits() -> FederatedData:
    """A few hundred digits, unevenly over five clients."""
    partition = {"name": "dirichlet", "num_clients": 5, "alpha": 0.5}
    return load_federated(DataConfig(name="digits", limit=250), partition, seed=3)
