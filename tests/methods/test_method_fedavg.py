"""FedAvg as it is written out is the shared loop, bit-identical; and no setting of the loop is lost on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from federations import SMALL, Finished, same_bits

from fedsynth.components.loop import federated_loop
from fedsynth.components.settings import TrainConfig
from fedsynth.data.federated import FederatedData
from fedsynth.engines.faults import FaultConfig
from fedsynth.federation import Federation, Outcome, Policy
from fedsynth.federation.methods import find_method
from fedsynth.privacy import PrivacyConfig

Program = Callable[[Federation, Any], Outcome]
PROGRAMS: dict[str, Program] = {"fedavg.train": find_method("fedavg").program, "local_training.train": federated_loop}
"""What is written out and the shared loop, by the task that each asks clients for."""


def both(federate: Callable[..., Federation], model: str, options: dict[str, Any], **train: Any) -> list[Federation]:
    """Run both on federations of their own, and see that they end with the same bits."""
    chosen = {"rounds": 3, "local_epochs": 1, "batch_size": 16, "momentum": 0.9} | train
    cfg = find_method("fedavg").config(train=TrainConfig(**chosen), model=SMALL[model])
    feds, models = [], []
    for task, program in PROGRAMS.items():
        fed = federate(**options)
        outcome = program(fed, cfg)
        assert (outcome.personal, outcome.no_global) == ("", "")
        assert set(fed.participation.bytes_up) <= {task}
        feds.append(fed)
        models.append(outcome.model)
    assert same_bits(*models)
    return feds


def answers(fed: Federation) -> tuple[Any, ...]:
    """Who was asked, who answered, who failed when and why, and what the ledger says of it."""
    seen = fed.participation
    failures = [(row["client"], row["kind"], row["round"]) for row in seen.failures]
    ledger = [row.model_dump(exclude={"release", "task"}) for row in seen.ledger.rows(1e-5)]
    return seen.asked, seen.answered, failures, seen.client_epochs, fed.engine.clock, ledger


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_it_is_the_loop_also_with_batch_norm_and_a_part_of_the_clients(federate, model: str, fraction: float) -> None:
    written, loop = both(federate, model, {}, fraction=fraction, schedule="step", lr_step=1)
    assert answers(written) == answers(loop)
    assert written.participation.asked.total() == 3 * round(fraction * len(written.clients))


@pytest.mark.parametrize("model", ["mlp", "zda_cnn"])
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_it_is_the_loop_where_clients_fail(federate, model: str, fraction: float) -> None:
    faults = FaultConfig(dropout=0.3, failure=0.2, delay=1.0)
    written, loop = both(federate, model, {"faults": faults, "policy": Policy(quorum=0.0)}, fraction=fraction, rounds=4)
    assert answers(written) == answers(loop)
    assert 0 < written.participation.failed < written.participation.asked.total()


def test_the_model_waits_where_nobody_can_be_reached(federate, digits: FederatedData) -> None:
    """Everybody is away for the first round, which takes a second, and there again for the second."""
    faults = FaultConfig(outages={client: [(0.0, 0.5)] for client in digits.clients}, delay=1.0)
    options = {"faults": faults, "policy": Policy(quorum=0.0)}
    for fed in both(federate, "zda_cnn", options, rounds=2):
        assert fed.participation.failed == len(digits.clients)
        assert fed.participation.answered.total() == len(digits.clients)


def test_a_stopped_run_goes_on_as_the_loop_does(federate) -> None:
    cfg = find_method("fedavg").config(
        train=TrainConfig(rounds=3, local_epochs=1, fraction=0.6), model=SMALL["zda_cnn"]
    )
    models = []
    for name, program in PROGRAMS.items():
        fed = federate(name)
        ask, asked = fed.engine.ask, []

        def cut(*request: Any, ask: Any = ask, asked: list[Any] = asked) -> Any:
            asked.append(request)
            if len(asked) == 3:
                raise ConnectionAbortedError
            return ask(*request)

        fed.engine.ask = cut
        with pytest.raises(ConnectionAbortedError):
            program(fed, cfg)
        again = federate(name)
        assert again.round == 2
        models.append(program(again, cfg).model)
    assert same_bits(*models)
    assert same_bits(models[0], federated_loop(federate(), cfg).model)


CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"privacy": PrivacyConfig(updates=kind)}, {}) for kind in ("dp_sgd", "clipped", "laplace", "gaussian")),
    ({"privacy": PrivacyConfig(secure_aggregation=True)}, {}),
    ({"objective": "proximal"}, {}),
    ({"aggregator": "median"}, {}),
    ({"server": "fedopt"}, {}),
    ({"post_aggregation": {"name": "interior_points", "steps": 1}}, {}),
    ({"local_data": "kept"}, {}),
    ({}, {"norm_buffers": "local"}),
    ({}, {"norm_buffers": "recalibrate"}),
]


@pytest.mark.parametrize(("settings", "train"), CHANGES, ids=[str(k) for k in range(len(CHANGES))])
def test_every_change_of_the_loop_runs_in_the_loop(
    settings: dict[str, Any], train: dict[str, Any], digits: FederatedData, run_method: Callable[..., Finished]
) -> None:
    done = run_method("fedavg", digits, model=SMALL["mlp"], settings=settings, rounds=1, **train)
    tasks = {ask.task for ask in done.asks}
    assert tasks & {"local_training.train", "secure_updates.train_masked"}
    assert "fedavg.train" not in tasks
