"""Fixtures of the tests of methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from federations import Weights, five_clients

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.data.federated import FederatedData
from fedsynth.federation import Federation


@pytest.fixture(scope="session")
def digits() -> FederatedData:
    """A few hundred digits, unevenly over five clients."""
    return five_clients()


@pytest.fixture
def whole_and_resumed(federate: Callable[..., Federation]) -> Callable[[LoopConfig, str, int], tuple[Weights, Weights]]:
    """The models of a run of the loop, and of one that was cut off where it asks for a task in a round."""

    class CutOffError(Exception):
        pass

    def carried_out(cfg: LoopConfig, task: str, round: int) -> tuple[Weights, Weights]:
        whole, broken = federated_loop(federate("whole"), cfg).model, federate("cut")
        ask = broken.engine.ask

        def stop(name: str, *rest: Any) -> Any:
            if name.endswith(task) and broken.round == round:
                raise CutOffError
            return ask(name, *rest)

        broken.engine.ask = stop  # type: ignore[method-assign]
        with pytest.raises(CutOffError):
            federated_loop(broken, cfg)
        resumed = federated_loop(federate("cut"), cfg).model
        assert whole is not None
        assert resumed is not None
        return whole, resumed

    return carried_out
