"""The ledger: what is recorded is what is shown, sums are right, and nothing is called private that is not."""

from __future__ import annotations

import json
import math
import re

import pytest
from guarantees import gaussians, guarantees
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy import (
    Budget,
    GaussianEvent,
    Guarantee,
    LaplaceEvent,
    Ledger,
    PureEvent,
    SampledGaussianEvent,
    Spending,
    epsilon,
    gaussian_epsilon,
)

DELTA = 1e-5
WHAT = {"sums": "noisy class sums", "model": "weights", "means": "noisy means", "scores": "right answers"}


def noisy(mu: float = 0.5, **values) -> Guarantee:
    return Guarantee(mechanism=f"Gaussian noise, μ = {mu}", events=(GaussianEvent(mu=mu),), covered="sums", **values)


def totals(ledger: Ledger) -> list[dict]:
    return [row for row in ledger.rows(DELTA) if row.kind == "total"]


def releases(ledger: Ledger) -> list[dict]:
    return [row for row in ledger.rows(DELTA) if row.kind == "release"]


def test_clients_with_the_same_history_share_a_row():
    ledger = Ledger()
    for client in ("0", "1", "2", "10"):
        for _ in range(2 if client == "2" else 1):
            ledger.record(client, "share", {"sums": noisy()}, WHAT)
    one, two = sorted(releases(ledger), key=lambda row: row.times)
    assert (one.clients, one.times) == (["0", "1", "10"], 1)
    assert (two.clients, two.times) == (["2"], 2)
    assert one.epsilon == pytest.approx(1.9931, abs=6e-5)
    assert one.proven == "ε = 1.993 (record level, add or remove one, δ = 1e-05, against everybody)"
    assert two.epsilon == pytest.approx(gaussian_epsilon(0.5 * math.sqrt(2), DELTA))
    assert [row.clients for row in totals(ledger)] == [["2"], ["0", "1", "10"]]


def test_a_total_names_what_it_leaves_out():
    ledger = Ledger()
    ledger.record("0", "share", {"sums": noisy()}, WHAT)
    ledger.record("0", "train", {"model": None, "means": Guarantee.none("noise", "the filter")}, WHAT)
    ledger.record("0", "share", {"sums": noisy(unit="client")}, WHAT)
    client, record = totals(ledger)
    assert (record.unit, record.epsilon) == ("record", pytest.approx(1.9931, abs=6e-5))
    assert record.covered == "share.sums"
    assert record.not_covered == (
        "train.model; train.means; share.sums (protected per client, add or remove one: not part of this sum)"
    )
    assert record.proven.endswith("for the protected releases alone")
    assert client.unit == "client"


def test_guarantees_of_one_release_that_differ_are_added_up():
    ledger = Ledger()
    for mu in (0.3, 0.4):
        ledger.record("0", "share", {"sums": noisy(mu)}, WHAT)
    [row] = releases(ledger)
    assert row.times == 2
    assert row.epsilon == pytest.approx(1.9931, abs=6e-5)
    assert row.mechanism == "Gaussian noise, μ = 0.3; Gaussian noise, μ = 0.4"


def test_a_release_that_was_protected_once_and_once_not_has_two_rows():
    ledger = Ledger()
    ledger.record("0", "share", {"sums": noisy()}, WHAT)
    ledger.record("0", "share", {"sums": None}, WHAT)
    assert {row.proven for row in releases(ledger)} == {
        "none",
        "ε = 1.993 (record level, add or remove one, δ = 1e-05, against everybody)",
    }
    assert totals(ledger)[0].not_covered == "share.sums"


def test_different_mechanisms_compose_in_the_total():
    ledger = Ledger()
    laplace = Guarantee(mechanism="Laplace", events=(LaplaceEvent(scale=2.0),))
    steps = Guarantee(mechanism="DP-SGD", events=(SampledGaussianEvent(rate=0.1, noise=1.0, steps=10),))
    for _ in range(3):
        ledger.record("0", "train", {"model": steps}, WHAT)
    ledger.record("0", "share", {"sums": laplace}, WHAT)
    expected = epsilon({laplace.events[0]: 1, steps.events[0]: 3}, DELTA)
    assert totals(ledger)[0].epsilon == expected
    assert ledger.spent("0", "record", DELTA) == expected
    assert ledger.spent("0", "client", DELTA) == 0
    assert ledger.spent("nobody", "record", DELTA) == 0


declared = st.lists(
    st.tuples(
        st.sampled_from(["0", "1", "10", "*"]),
        st.sampled_from(["share", "train"]),
        st.dictionaries(st.sampled_from(list(WHAT)), st.none() | guarantees(gaussians), max_size=3),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(declared)
def test_what_is_declared_is_what_is_recorded(history):
    """Nothing is lost, invented or improved: times, proofs and sums follow from the list of what was declared."""
    ledger = Ledger()
    for client, task, fields in history:
        ledger.record(client, task, fields, WHAT)
    told: dict[tuple[str, str, object], list] = {}
    for client, task, fields in history:
        for name, guarantee in fields.items():
            scope = None if guarantee is None else guarantee.scope if guarantee.proven else "unproven"
            told.setdefault((client, f"{task}.{name}", scope), []).append(guarantee)
    shown = {}
    for row in releases(ledger):
        for client in row.clients:
            scope = (row.unit, row.adjacency) if row.unit else "unproven" if row.mechanism != "none" else None
            assert (client, row.release, scope) not in shown
            shown[client, row.release, scope] = row
    assert set(shown) == set(told)
    for key, given_ in told.items():
        assert shown[key].times == len(given_)
        proofs = [event for g in given_ if g is not None for event in g.events]
        assert shown[key].epsilon == (pytest.approx(epsilon(proofs, DELTA), rel=1e-9) if proofs else None)
    summed = {(c, row.unit, row.adjacency): row for row in totals(ledger) for c in row.clients}
    scopes = {(client, *scope) for client, _, scope in told if isinstance(scope, tuple)}
    assert set(summed) == scopes
    for client, *scope in scopes:
        inside = [g for (c, _, s), gs in told.items() if c == client and s == tuple(scope) for g in gs]
        expected = epsilon([event for g in inside for event in g.events], DELTA)
        row = summed[client, *scope]
        assert row.epsilon == pytest.approx(expected, rel=1e-9)
        outside = {release for (c, release, s) in told if c == client and s != tuple(scope)}
        assert {part.split(" (")[0] for part in row.not_covered.split("; ") if part} == outside


@settings(deadline=None)
@given(declared, st.integers(0, 12))
def test_a_ledger_that_was_kept_and_read_goes_on_as_if_nothing_had_happened(history, cut):
    whole, kept = Ledger(), Ledger()
    for place, (client, task, fields) in enumerate(history):
        if place == cut:
            kept = Ledger.from_dict(json.loads(json.dumps(kept.as_dict())))
        for ledger in (whole, kept):
            ledger.begin_round()
            ledger.record(client, task, fields, WHAT, evaluation=task == "share")
            ledger.end_round()
    assert kept.as_dict() == whole.as_dict()
    assert kept.rows(DELTA) == whole.rows(DELTA)


def test_a_ledger_of_many_clients_is_small():
    ledger = Ledger()
    for client in range(2000):
        for _ in range(5):
            ledger.record(str(client), "train", {"model": noisy(), "sums": None}, WHAT)
    content = json.dumps(ledger.as_dict())
    assert len(content) < 2000 * 10 + 1000
    assert len(ledger.rows(DELTA)) == 3


# -- words ------------------------------------------------------------------------------------------------------------


def test_words_for_nothing_protected():
    ledger = Ledger()
    assert ledger.words(DELTA) == ["Nothing left the clients."]
    ledger.record("0", "train", {"model": None, "sums": None}, WHAT)
    ledger.record("0", "score", {"scores": None}, WHAT, evaluation=True)
    assert ledger.words(DELTA) == [
        "No differential privacy: weights; noisy class sums left the clients without a guarantee.",
        "Evaluation sent right answers, without a guarantee.",
        "All that left a client together: no finite ε, because some of it has no guarantee.",
    ]
    assert [row.evaluation for row in ledger.rows(DELTA)] == [False, False, True]


def test_words_for_all_protected():
    ledger = Ledger()
    for client in ("0", "3"):
        for _ in range(1 + (client == "3")):
            ledger.record(client, "share", {"sums": noisy(not_covered="the number of examples")}, WHAT)
    assert ledger.words(DELTA) == [
        "Protected: noisy class sums — ε = 2.943 per record (add or remove one, δ = 1e-05) "
        "against everybody, worst client 3; "
        "composed over 2 releases.",
        "All that left a client together: ε = 2.943 per record (add or remove one, δ = 1e-05) "
        "against everybody, worst client 3; "
        "not covered: the number of examples.",
    ]


def test_constants_are_not_spelled_out_and_gaps_are_said_where_there_is_no_sum():
    ledger = Ledger()
    constant = Guarantee(mechanism="a constant", events=(PureEvent(epsilon=0),))
    ledger.record("0", "share", {"sums": noisy(not_covered="the server"), "model": constant}, WHAT)
    assert [line.split(" — ")[0] for line in ledger.words(DELTA)[:-1]] == ["Protected: noisy class sums"]
    ledger.record("0", "score", {"scores": None}, WHAT, evaluation=True)
    assert ledger.words(DELTA)[0].endswith("composed over 1 release; not covered: the server.")
    only = Ledger()
    only.record("0", "share", {"model": constant}, WHAT)
    assert only.words(DELTA)[0].startswith("Protected: weights — ε = 0.000 per record")


def test_words_for_noise_that_proves_nothing():
    ledger = Ledger()
    ledger.record("0", "train", {"means": Guarantee.none("noise of std 4", "the filter", "claimed: ε = 0.9")}, WHAT)
    first, second, last = ledger.words(DELTA)
    assert first == (
        "Noise without a proof: noisy means (noise of std 4, which leaves out the filter); claimed: ε = 0.9."
    )
    assert second.startswith("No differential privacy")
    assert "no finite ε" in last


def test_two_units_are_not_added_up():
    ledger = Ledger()
    ledger.record("0", "share", {"sums": noisy(), "model": noisy(unit="client")}, WHAT)
    assert "no single ε" in ledger.words(DELTA)[-1]


@settings(deadline=None, max_examples=50)
@given(declared)
def test_no_epsilon_is_said_without_unit_adjacency_and_delta(history):
    ledger = Ledger()
    for client, task, fields in history:
        proven = {name: g for name, g in fields.items() if g is None or not g.claimed}
        ledger.record(client, task, proven, WHAT)
    words = ledger.words(DELTA)
    assert 1 <= len(words) <= 6
    said = re.findall(
        r"ε = \S+ per (?:record|client) \((?:add or remove one|replace one), δ = 1e-05\)", " ".join(words)
    )
    assert len(said) == " ".join(words).count("ε =")


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_a_budget_is_exceeded_only_past_its_end():
    spending = Spending()
    spending.add(noisy(), times=4)
    assert Budget(gaussian_epsilon(1.0, DELTA), DELTA).exceeded(spending) is None
    scope, reached = Budget(4.37, DELTA).exceeded(spending)
    assert scope == ("record", "add or remove one")
    assert reached == pytest.approx(4.3772, abs=6e-5)


def test_units_and_neighbours_share_one_budget():
    """What hides a client hides its records: μ of both together, and doubled where a client comes or goes."""
    spending = Spending()
    spending.add(noisy(1.0))
    assert Budget(4.4, DELTA).exceeded(spending) is None
    spending.add(noisy(1.0, unit="client", adjacency="replace one"))
    scope, epsilon = Budget(4.4, DELTA).exceeded(spending)
    assert scope == ("record", "add or remove one")
    assert epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2), DELTA))
    spending.add(noisy(1.0, unit="client"))
    _, epsilon = Budget(4.4, DELTA).exceeded(spending)
    assert epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 + 4), DELTA))


@given(st.lists(guarantees(), max_size=5))
def test_spending_survives_json(given_):
    spending = Spending().plus(given_)
    again = Spending.from_list(json.loads(json.dumps(spending.as_list())))
    assert again.events == spending.events


def test_one_more_round_like_the_last_is_foreseen():
    ledger, budget = Ledger(), Budget(4.4, DELTA)
    for _ in range(4):  # μ = 0.5 four times is μ = 1
        assert ledger.would_overspend(budget) is None
        ledger.begin_round()
        ledger.record("3", "share", {"sums": noisy()}, WHAT)
        ledger.record("4", "share", {"sums": noisy(0.1)}, WHAT)
        ledger.record("5", "share", {"sums": None}, WHAT)
        ledger.end_round()
    client, scope, reached = ledger.would_overspend(budget)
    assert (client, scope) == ("3", ("record", "add or remove one"))
    assert reached == pytest.approx(gaussian_epsilon(math.sqrt(5) / 2, DELTA))
    ledger.begin_phase()
    assert ledger.would_overspend(budget) is None
