"""Faults: a schedule on a virtual clock, the same in every run, that no run breaks down under."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from fedsynth.components.settings import TrainConfig
from fedsynth.engines.faults import FaultConfig
from fedsynth.federation import Client, Policy, QuorumError, Reply, State, leaves, task
from fedsynth.federation.methods import find_method
from fedsynth.learning.models import ModelSpec
from fedsynth.methods.fedavg import train

LENIENT = Policy(quorum=0.0)


class Times(Reply):
    times: int = leaves("how often the client took part")


@task
def fs_visit(client: Client) -> Times:
    client.state["times"] = client.state.get("times", 0) + 1
    return client.release(Times(times=client.state["times"]))


@task
def fs_visit_again(client: Client) -> Times:
    return client.release(Times(times=0))


def failures_of(fed, rounds: int) -> list[dict[str, str]]:
    """Per round, who failed and how."""
    return [
        {client: f.kind for client, f in fed.broadcast(fs_visit).failures.items()}
        for _ in fed.rounds("faulty", rounds, State())
    ]


def test_the_schedule_is_the_same_in_every_run_and_another_for_another_seed(federate):
    faults = FaultConfig(dropout=0.3, failure=0.2, delay=1.0, seconds_per_example=0.1, spread=0.5)

    def run(**where):
        fed = federate(policy=LENIENT, faults=faults, **where)
        return failures_of(fed, 10), fed.engine.clock

    assert run() == run() == run(workers=2) == run(wire=True)
    assert run(seed=1) != run()
    assert {kind for row in run()[0] for kind in row.values()} == {"unavailable", "crashed"}


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_about_the_right_share_drops_out_and_not_always_the_same(federate, delay):
    rows = failures_of(federate(policy=LENIENT, faults=FaultConfig(dropout=0.3, delay=delay)), 60)
    assert 0.2 < sum(map(len, rows)) / 240 < 0.4
    for client in "0123":
        assert 0.1 < sum(client in row for row in rows) / 60 < 0.55, client


def test_two_asks_in_one_round_meet_different_faults(federate):
    fed = federate(policy=LENIENT, faults=FaultConfig(dropout=0.5))
    pairs = []
    for _ in fed.rounds("faulty", 15, State()):
        pairs.append([frozenset(fed.broadcast(fs_visit_again).failures) for _ in range(2)])
    assert any(first != second for first, second in pairs)


def test_a_client_that_failed_keeps_its_state(federate):
    fed = federate(policy=LENIENT, faults=FaultConfig(dropout=0.3, failure=0.3, delay=1.0))
    took_part = dict.fromkeys("0123", 0)
    for _ in fed.rounds("faulty", 10, State()):
        for client, reply in fed.broadcast(fs_visit).items():
            took_part[client] += 1
            assert reply.times == took_part[client]


def test_a_client_is_away_in_its_outages_and_only_then(federate):
    faults = FaultConfig(delay=10.0, outages={"1": [(10.0, 30.0)], "3": [(0.0, 5.0), (35.0, 1000.0)]})
    rows = failures_of(federate(policy=LENIENT, faults=faults), 5)  # at 0, 10, 20, 30 and 40 seconds
    assert [sorted(row) for row in rows] == [["3"], ["1"], ["1"], [], ["3"]]
    assert {kind for row in rows for kind in row.values()} == {"unavailable"}


def test_the_clock_advances_by_the_slowest(federate, digits):
    fed = federate(faults=FaultConfig(delay=2.0, seconds_per_example=0.5))
    fed.broadcast(fs_visit)
    slowest = 2.0 + 0.5 * max(map(digits.train_size, digits.clients))
    assert fed.engine.clock == pytest.approx(slowest)
    fed.broadcast(fs_visit, to=["0"])
    assert fed.engine.clock == pytest.approx(slowest + 2.0 + 0.5 * digits.train_size("0"))


def test_the_routes_of_a_relay_run_side_by_side_each_at_its_own_pace(federate, digits):
    def hop(client: str) -> float:
        return 2.0 + 0.5 * digits.train_size(client)

    fed = federate(faults=FaultConfig(delay=2.0, seconds_per_example=0.5))
    routes = [["0", "1"], ["2", "3"]]
    slowest = max(sum(map(hop, route)) for route in routes)
    for times in (1, 2):  # the next relay begins when the slowest route of the last has ended
        fed.relay(fs_visit, {}, routes)
        assert fed.engine.clock == pytest.approx(times * slowest)
    fed.broadcast(fs_visit, to=["0"])
    assert fed.engine.clock == pytest.approx(2 * slowest + hop("0"))


def test_a_silent_client_costs_the_deadline_or_a_heartbeat(federate):
    def waited(**config) -> float:
        fed = federate(policy=LENIENT, faults=FaultConfig(dropout=1.0, delay=1.0, **config))
        fed.broadcast(fs_visit)
        return fed.engine.clock

    assert waited() == 1.0
    assert waited(deadline=60.0) == 60.0
    assert waited(deadline=60.0, heartbeat=5.0) == 5.0
    assert waited(deadline=4.0, heartbeat=5.0) == 4.0


def test_a_client_that_breaks_down_is_missed_a_heartbeat_later(federate):
    def waited(**config) -> float:
        faults = FaultConfig(failure=1.0, delay=1.0, seconds_per_example=1.0, **config)
        fed = federate(policy=LENIENT, faults=faults)
        fed.broadcast(fs_visit, to=["0"])
        return fed.engine.clock

    noticed_at_once = waited()
    assert waited(heartbeat=5.0) == pytest.approx(noticed_at_once + 5.0)
    assert waited(deadline=1000.0) == 1000.0


def test_every_task_is_delayed_anew_and_who_is_slow_still_sends_its_heartbeat(federate):
    """The share that exceeds the deadline is exp(−(D − s) / mean), and each of them costs the deadline."""

    def waits(**config) -> tuple[list[bool], list[float]]:
        fed = federate(policy=LENIENT, faults=FaultConfig(delay=1.0, random_delay=4.0, **config))
        failed, seconds = [], []
        for _ in fed.rounds("delayed", 120, State()):
            before = fed.engine.clock
            failed.append(bool(fed.broadcast(fs_visit, to=["0"]).failures))
            seconds.append(fed.engine.clock - before)
        return failed, seconds

    _, free = waits()
    assert min(free) >= 1.0
    assert len(set(free)) == 120
    assert 3.8 < sum(free) / 120 < 6.3  # 1 + 4
    failed, seconds = waits(deadline=5.0, heartbeat=2.0)
    assert failed == [span > 5.0 for span in free]
    assert 0.25 < sum(failed) / 120 < 0.5  # exp(−1) = 0.37
    assert seconds == pytest.approx([min(span, 5.0) for span in free])


def test_random_delays_leave_the_rest_of_the_schedule_as_it_was(federate):
    def run(**config) -> list[dict[str, str]]:
        return failures_of(federate(policy=LENIENT, faults=FaultConfig(dropout=0.3, failure=0.2, **config)), 10)

    assert run() == run(random_delay=3.0)


def test_those_slower_than_the_deadline_time_out_and_are_not_waited_for(federate, digits):
    sizes = sorted(map(digits.train_size, digits.clients))
    limit = (sizes[1] + sizes[2]) / 2
    fed = federate(policy=LENIENT, faults=FaultConfig(seconds_per_example=1.0, deadline=limit))
    replies = fed.broadcast(fs_visit)
    assert {digits.train_size(client) for client in replies} == set(sizes[:2])
    assert {failure.kind for failure in replies.failures.values()} == {"timeout"}
    assert fed.engine.clock == pytest.approx(limit)


def test_speeds_are_spread_over_the_clients_and_stay_with_them(federate):
    fed = federate(faults=FaultConfig(seconds_per_example=1.0, spread=1.0))
    seconds: list[list[float]] = []
    for _ in range(2):
        row = []
        for client in "0123":
            before = fed.engine.clock
            fed.broadcast(fs_visit, to=[client])
            row.append(fed.engine.clock - before)
        seconds.append(row)
    assert seconds[0] == pytest.approx(seconds[1])


def test_a_resume_restores_the_clock_and_the_schedule(federate):
    faults = FaultConfig(dropout=0.4, delay=3.0, outages={"2": [(9.0, 14.0)]})
    whole = federate("whole", policy=LENIENT, faults=faults)
    expected = failures_of(whole, 8)

    part, seen = federate("part", policy=LENIENT, faults=faults), []
    for index in part.rounds("faulty", 8, State()):
        replies = part.broadcast(fs_visit)
        if index == 5:
            break  # cut off in the middle of a round
        seen.append({client: f.kind for client, f in replies.failures.items()})
    again = federate("part", policy=LENIENT, faults=faults)
    assert again.engine.clock == 12.0
    assert seen + failures_of(again, 8) == expected
    assert again.engine.clock == whole.engine.clock
    assert again.participation.failures == whole.participation.failures


def trained(federate, rounds: int, **options):
    method = find_method("fedavg")
    fed = federate(**options)
    spec = ModelSpec(name="mlp", hidden=(6,))
    config = method.config(train=TrainConfig(rounds=rounds, local_epochs=1), model=spec)
    return fed, method.program(fed, config).model, fed.initial_weights(spec)


def test_a_method_under_faults_finishes_and_lists_who_failed(federate):
    fed, model, _ = trained(federate, 6, policy=LENIENT, faults=FaultConfig(dropout=0.3, failure=0.2, delay=1.0))
    assert fed.round == 6
    assert fed.participation.failed == len(fed.participation.failures) > 0
    assert {row["kind"] for row in fed.participation.failures} == {"unavailable", "crashed"}
    assert all(torch.isfinite(tensor).all() for tensor in model.values())


def test_when_nobody_can_be_reached_the_model_waits(federate):
    fed, model, start = trained(federate, 3, policy=LENIENT, faults=FaultConfig(dropout=1.0))
    assert fed.participation.failed == 12
    assert all(torch.equal(model[name], start[name]) for name in start)


def test_faults_and_a_quorum_stop_the_run(federate):
    with pytest.raises(QuorumError, match="unavailable"):
        trained(federate, 1, policy=Policy(quorum=0.5), faults=FaultConfig(dropout=1.0))


@pytest.mark.parametrize("wrong", [{"dropout": 1.5}, {"delay": -1}, {"deadline": 0}, {"dropuot": 0.1}])
def test_an_impossible_schedule_is_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        FaultConfig(**wrong)


def test_the_late_are_an_exact_share_and_always_the_same(federate):
    rows = failures_of(federate(policy=LENIENT, faults=FaultConfig(late=0.5, deadline=9.0)), 4)
    assert {frozenset(row) for row in rows} == {frozenset(rows[0])}
    assert len(rows[0]) == 2
    assert set(rows[0].values()) == {"timeout"}
    more = failures_of(federate(policy=LENIENT, faults=FaultConfig(late=0.75)), 1)
    assert set(rows[0]) < set(more[0])


class Numbers(Reply):
    weights: dict[str, torch.Tensor] = leaves("some weights")
    count: int = leaves("a number")


@task
def fs_numbers(client: Client) -> Numbers:
    return client.release(Numbers(weights={"w": torch.full((50,), 3.0), "n": torch.tensor(7)}, count=4))


@pytest.mark.parametrize("attack", ["noise", "negated"])
def test_byzantine_clients_send_other_numbers_and_the_honest_do_not(federate, attack):
    fed = federate(faults=FaultConfig(byzantine=0.25, attack=attack))
    replies = fed.broadcast(fs_numbers)
    lies = {client for client, reply in replies.items() if not torch.equal(reply.weights["w"], torch.full((50,), 3.0))}
    assert len(lies) == 1
    reply = replies[next(iter(lies))]
    assert reply.count == 4
    assert reply.weights["n"] == 7
    if attack == "negated":
        assert torch.equal(reply.weights["w"], torch.full((50,), -3.0))
    else:
        assert 2 < reply.weights["w"].std() < 4
    again = federate(faults=FaultConfig(byzantine=0.25, attack=attack)).broadcast(fs_numbers)
    assert all(torch.equal(again[c].weights["w"], replies[c].weights["w"]) for c in replies)


@pytest.mark.parametrize("where", [{}, {"workers": 2}, {"wire": True}])
def test_a_liar_sends_noise_of_the_right_shapes_and_the_others_the_truth(federate, where):
    method, spec = find_method("fedavg"), ModelSpec(name="mlp", hidden=(4,))
    cfg = method.config(train=TrainConfig(rounds=1, local_epochs=1), model=spec)
    request = {"model": federate().initial_weights(spec), "spec": spec, "training": cfg.train.local(1)}
    true = federate().broadcast(train, **request)
    attacked = federate(faults=FaultConfig(malicious=["1"]), **where).broadcast(train, **request)
    for client in "023":
        assert all(torch.equal(entry, true[client].model[name]) for name, entry in attacked[client].model.items())
    assert attacked["1"].examples == true["1"].examples
    noise = torch.cat([entry.flatten() for entry in attacked["1"].model.values()])
    assert {n: e.shape for n, e in attacked["1"].model.items()} == {n: e.shape for n, e in true["1"].model.items()}
    truth = torch.cat([entry.flatten() for entry in true["1"].model.values()])
    assert 0.5 < noise.std() / truth.std() < 2
    assert abs(torch.corrcoef(torch.stack([noise, truth]))[0, 1]) < 0.3


def test_robust_rules_stand_a_liar_that_ruins_the_mean(federate):
    spec = ModelSpec(name="mlp", hidden=(4,))
    away = {}
    for name in ("fedavg", "median"):
        method = find_method(name)
        cfg = method.config(train=TrainConfig(rounds=1, local_epochs=1), model=spec)
        models = [method.program(federate(faults=FaultConfig(malicious=names)), cfg).model for names in ([], ["1"])]
        away[name] = max(float((models[0][entry] - models[1][entry]).abs().max()) for entry in models[0])
    assert away["median"] < 0.7 * away["fedavg"], away
