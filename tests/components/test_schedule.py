"""When slot values act: burn-in, every so many rounds, and clients and server in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from federations import SMALL, Finished
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.components.schedule import NEVER, Scheduled
from fedsynth.data.federated import FederatedData

RunMethod = Callable[..., Finished]
QUICK = {"steps": 1, "per_class": 1}
TINY = {"model": SMALL["zda_cnn"], "local_epochs": 1, "batch_size": 64}


def acting(done: Finished) -> tuple[list[int], list[int]]:
    """The rounds in which clients make images, and those in which the server tunes."""
    clients = [ask.round for ask in done.rounds() if ask.fields["request"]["local_data"]["name"] != "own"]
    return clients, [ask.round for ask in done.asks if ask.name == "tune_model"]


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 9), st.integers(1, 60))
def test_a_schedule_is_the_list_of_its_rounds(start: int, every: int, offset: int, last: int) -> None:
    schedule = Scheduled(start_round=start, every=every, offset=offset)
    rounds = [index for index in range(1, last + 1) if schedule.active(index)]
    assert rounds == list(range(start + offset, last + 1, every))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 4))
def test_two_that_take_turns_never_meet_and_leave_no_gap(start: int, every: int, offset: int) -> None:
    both = Scheduled(start_round=start, every=every, offset=offset)
    one = Scheduled(start_round=start, every=2 * every, offset=offset)
    other = Scheduled(start_round=start, every=2 * every, offset=offset + every)
    for index in range(1, 50):
        assert not (one.active(index) and other.active(index))
        assert both.active(index) == (one.active(index) or other.active(index))


@given(st.floats(0.01, 0.99), st.integers(1, 200))
def test_a_start_given_as_a_share_comes_after_that_share(share: float, rounds: int) -> None:
    start = Scheduled(start_round=share).scheduled(rounds).start_round
    assert start - 1 == pytest.approx(share * rounds, abs=1)
    assert 1 <= start <= rounds
    assert start - 1 <= share * rounds + 1e-6


def test_three_quarters_of_sixty_rounds_are_over_after_the_45th() -> None:
    assert Scheduled(start_round=0.75).scheduled(60).start_round == 46
    assert Scheduled(start_round=0.3).scheduled(10).start_round == 4, "0.3 · 10 is below 3 by rounding"
    assert Scheduled(start_round=7).scheduled(60).start_round == 7
    with pytest.raises(ValueError, match="whole number of rounds"):
        Scheduled(start_round=2.5)


def test_never_is_never() -> None:
    assert not any(Scheduled(start_round=NEVER).active(index) for index in range(1, 1000))


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("fed_zdac", {"start_round": 3}, ([3, 4, 5], [])),
        ("fed_zdac", {"start_round": 2, "every": 2}, ([2, 4], [])),
        ("fed_zdas", {"start_round": 4}, ([], [4, 5])),
        ("fed_zdas", {"start_round": 0.6}, ([], [4, 5])),
        ("fed_zdac", {"start_round": 0.2, "every": 2}, ([2, 4], [])),
        ("fed_zda", {"start_round": 4}, ([4, 5], [4, 5])),
        ("fed_zda", {"turns": "alternate", "start_round": 1}, ([1, 3, 5], [2, 4])),
        ("fed_zda", {"turns": "alternate", "start_round": 2}, ([2, 4], [3, 5])),
        ("fed_zda", {"turns": "alternate", "every": 2, "start_round": 1}, ([1, 5], [3])),
    ],
)
def test_clients_and_server_act_in_their_rounds(
    method: str,
    settings: dict[str, object],
    expected: tuple[list[int], list[int]],
    digits: FederatedData,
    run_method: RunMethod,
) -> None:
    done = run_method(method, digits, settings=QUICK | settings, rounds=5, fraction=0.4, **TINY)
    assert acting(done) == expected
    made = [ask.round for ask in done.asks if ask.name == "invert_model"]
    assert made == expected[1], "the server makes images only when it tunes"


def test_interior_points_wait_for_their_round_too(digits: FederatedData, run_method: RunMethod) -> None:
    settings = {"steps": 1, "tune_epochs": 1, "start_round": 2, "every": 2, "secure": True}
    done = run_method("agg_enhance", digits, model=SMALL["mlp"], settings=settings, rounds=5, fraction=0.4)
    assert acting(done) == ([], [2, 4])
    assert [ask.round for ask in done.rounds() if ask.fields["request"]["remember"]] == [2, 4]
