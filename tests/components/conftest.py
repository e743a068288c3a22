"""Fixtures of the tests of components."""

from __future__ import annotations

import pytest
from federations import five_clients

from fedsynth.data.federated import FederatedData


@pytest.fixture(scope="session")
def digits() -> FederatedData:
    """A few hundred digits, unevenly over five clients."""
    return five_clients()
