"""A budget is kept at the client, foreseen at the server, and survives a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsynth.federation import Client, Federation, Policy, Reply, State, leaves, task
from fedsynth.federation.client import SPENT
from fedsynth.federation.payload import decode
from fedsynth.federation.store import StateStore
from fedsynth.privacy import Budget, BudgetError, GaussianEvent, Guarantee, LaplaceEvent, gaussian_epsilon

DELTA = 1e-5
ENGINES = [{"workers": 0}, {"workers": 2}, {"wire": True}]


class Noisy(Reply):
    number: float = leaves("a noisy number")
    other: float | None = leaves("another number", default=None)


def gaussian(mu: float) -> Guarantee:
    return Guarantee(mechanism=f"μ = {mu}", events=(GaussianEvent(mu=mu),), covered="the number")


@task
def pb_noisy(client: Client, mu: float = 0.5) -> Noisy:
    client.state.keep_public("count", client.state.get("count", 0) + 1)
    return client.release(Noisy(number=float(client.noise_rng("noise").normal())), number=gaussian(mu))


@task
def pb_twice(client: Client, mu: float) -> Noisy:
    """Changes its mind: what is sent is the second reply alone."""
    client.release(Noisy(number=0.0), number=gaussian(mu))
    return client.release(Noisy(number=1.0), number=gaussian(mu))


@task
def pb_bare(client: Client) -> Noisy:
    return client.release(Noisy(number=1.0))


@task
def pb_declared(client: Client, guarantees: dict[str, Any]) -> Noisy:
    made = {name: Guarantee.model_validate(values) for name, values in guarantees.items()}
    return client.release(Noisy(number=1.0), **made)


@task
def pb_lie(client: Client) -> Noisy:
    reply = client.release(Noisy(number=1.0), number=gaussian(1.0))
    client.guarantees = {"nmber": gaussian(1.0)}
    return reply


def budget_for(mu: float) -> Policy:
    return Policy(budget=Budget(gaussian_epsilon(mu, DELTA), DELTA))


def spent(fed: Federation, folder: Path, client: str = "0") -> Any:
    return StateStore(folder / "state").read(client, fed._versions[client])


@pytest.mark.parametrize("where", ENGINES, ids=["here", "workers", "wire"])
def test_overspending_is_refused_and_nothing_of_it_is_kept(federate, tmp_path, where):
    fed = federate("run", policy=budget_for(1.0), **where)
    for _ in range(4):  # μ = 0.5 four times is μ = 1, exactly the budget
        fed.broadcast(pb_noisy)
    before, row = spent(fed, tmp_path / "run"), fed.participation.ledger.as_dict()
    with pytest.raises(BudgetError) as refused:
        fed.broadcast(pb_noisy)
    assert str(refused.value) == (
        "Client 0 refused to send number: it would reach ε = 4.983 per record (add or remove one, δ = 1e-05), "
        "past privacy.budget = 4.37718."
    )
    assert spent(fed, tmp_path / "run") == before
    assert before["count"] == 4
    assert fed.participation.ledger.as_dict() == row


def test_a_refusal_is_not_a_matter_of_quorum(federate):
    lenient = Policy(quorum=0.0, budget=Budget(1.0, DELTA))
    with pytest.raises(BudgetError, match="Client 1 refused"):
        federate(policy=lenient).scatter(pb_noisy, {"0": {"mu": 0.1}, "1": {"mu": 0.9}})
    with pytest.raises(BudgetError, match="Client 2 refused"):
        federate(policy=lenient).relay(pb_noisy, {"mu": 0.9}, [["2", "3"]])


def test_nothing_of_a_refused_reply_crosses_the_line(federate):
    fed = federate(policy=Policy(budget=Budget(1.0, DELTA)))
    body = fed._request(pb_noisy, ["0"], {"mu": 0.9})
    answer = decode(fed.engine.ask("pb_noisy", {"0": body}, None).replies["0"].read())
    assert answer["error"] == "BudgetError"
    assert set(answer) == {"ok", "error", "message", "traceback"}


def test_unprotected_releases_are_not_what_a_budget_is_about(federate):
    fed = federate(policy=Policy(budget=Budget(0.001, DELTA)))
    assert len(fed.broadcast(pb_bare)) == 4


def test_without_a_budget_a_client_keeps_no_record(federate, tmp_path):
    fed = federate("run")
    fed.broadcast(pb_noisy)
    assert SPENT not in spent(fed, tmp_path / "run")


def test_only_what_is_sent_is_charged(federate):
    fed = federate(policy=budget_for(1.0))
    assert len(fed.broadcast(pb_twice, mu=0.99)) == 4


def test_a_failed_reply_of_another_client_changes_nothing(federate, tmp_path):
    fed = federate("run", policy=budget_for(1.0))
    fed.broadcast(pb_noisy, to=["0"])
    assert len(spent(fed, tmp_path / "run")[SPENT]) == 1
    assert set(fed._versions) == {"0"}


def test_a_guarantee_for_a_field_that_was_not_sent_makes_a_reply_unusable(federate):
    fed = federate(policy=Policy(quorum=0.0))
    assert "nmber" in fed.broadcast(pb_lie, to=["0"]).failures["0"].message
    assert fed.participation.ledger.rows(DELTA) == []


# -- rounds -----------------------------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """The run stops here."""


def program(fed: Federation, ask: Callable[[Federation], Any], rounds: int = 9, cut: int = 0) -> list[int]:
    state = State(done=[])
    for index in fed.rounds("noisy", rounds, state):
        ask(fed)
        if index == cut:
            raise PowerCutError
        state.done = [*state.done, index]
    fed.once("end", lambda: 1)
    return state.done


def test_rounds_stop_before_a_client_overspends(federate):
    fed = federate(policy=budget_for(1.0))
    done = program(fed, lambda fed: fed.scatter(pb_noisy, {"1": {"mu": 0.1}, "3": {"mu": 0.5}}))
    assert done == [1, 2, 3, 4]
    assert fed.participation.notes == [
        "Stopped after round 4: one more like it would bring client 3 to ε = 4.983 per record (add or remove one, "
        "δ = 1e-05), past privacy.budget = 4.37718."
    ]
    assert fed.participation.failed == 0


def test_a_budget_that_is_enough_changes_nothing(federate):
    fed = federate(policy=budget_for(1.5))
    assert program(fed, lambda fed: fed.broadcast(pb_noisy)) == [*range(1, 10)]
    assert fed.participation.notes == []


def test_a_client_that_was_not_asked_in_the_last_round_counts_too(federate):
    fed = federate(policy=budget_for(0.5))
    done = program(fed, lambda fed: fed.broadcast(pb_noisy, to=[str(fed.round % 4)]))
    assert done == [1]


def test_a_phase_that_costs_nothing_runs_on_a_spent_budget(federate):
    fed = federate(policy=budget_for(0.5))
    assert program(fed, lambda fed: fed.broadcast(pb_noisy)) == [1]
    state = State(model=0)
    assert list(fed.rounds("free", 3, state)) == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_resumed_run_keeps_its_ledger_and_stops_at_the_same_round(federate, tmp_path, cut):
    def ask(fed: Federation) -> Any:
        return fed.broadcast(pb_noisy, to=[str(fed.round % 2)], mu=0.6)

    whole = federate("whole", policy=budget_for(1.0))
    assert program(whole, ask) == [1, 2, 3]
    with pytest.raises(PowerCutError):
        program(federate("run", policy=budget_for(1.0)), ask, cut=min(cut, 3))
    fed = federate("run", policy=budget_for(1.0))
    assert program(fed, ask) == [1, 2, 3]
    assert fed.participation.ledger.as_dict() == whole.participation.ledger.as_dict()
    assert fed.participation.notes == whole.participation.notes
    assert fed.participation.ledger.spent("0", "record", DELTA) == gaussian_epsilon(0.6, DELTA)
    assert spent(fed, tmp_path / "run", "1") == spent(whole, tmp_path / "whole", "1")
    again = federate("run", policy=budget_for(1.0))
    assert program(again, ask) == [1, 2, 3]
    assert again.participation.ledger.rows(DELTA) == whole.participation.ledger.rows(DELTA)


# -- what is declared is what is recorded -----------------------------------------------------------------------------

events = st.builds(GaussianEvent, mu=st.floats(0, 3)) | st.builds(LaplaceEvent, scale=st.floats(0.5, 5))
declarations = st.dictionaries(
    st.sampled_from(["number", "other"]),
    st.builds(
        Guarantee,
        mechanism=st.sampled_from(["noise", "other noise"]),
        events=st.lists(events, min_size=1, max_size=2).map(tuple),
        unit=st.sampled_from(["record", "client"]),
        adjacency=st.sampled_from(["add or remove one", "replace one"]),
        claimed=st.text(max_size=5),
    )
    | st.builds(Guarantee.none, st.just("noise"), st.text(max_size=5)),
    max_size=2,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("0123"), declarations, min_size=1))
def test_what_a_client_declares_reaches_the_ledger_of_the_server(federate, told):
    fed = federate(wire=True)
    requests = {c: {"guarantees": {name: g.as_dict() for name, g in given.items()}} for c, given in told.items()}
    fed.scatter(pb_declared, requests)
    ledger = fed.participation.ledger
    for client, given_ in told.items():
        [(parcel, times)] = ledger.histories[client].items()
        name, fields = ledger.parcels[parcel]
        recorded = {field: None if number is None else ledger.guarantees[number] for field, number in fields}
        assert (name, times) == ("test_privacy_budget.pb_declared", 1)
        # "other" is empty in this reply: it counts when a mechanism made it so, and "number" always does.
        # The noise of this federation comes from its seed, and the ledger says so.
        assert recorded == {"number": None} | {name: guarantee.seeded() for name, guarantee in given_.items()}
