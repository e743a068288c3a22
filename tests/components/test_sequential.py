"""Who trains next: all equally often without faults; those who were missed come first, within bounds, with them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fedsynth.components.sequential import OrderSettings
from fedsynth.federation import Relayed


def walk(settings: OrderSettings, members: list[str], visits: int, completed=None, down=()) -> Relayed:
    """Follow a route; those who are down fail, always or (client, attempt) by attempt."""
    route = settings.route(members, visits, completed or {})
    bag = Relayed(fields={})
    stops = iter(route) if isinstance(route, list) else None
    for _ in range(10_000):
        client = next(stops, None) if stops else route(bag)
        if client is None:
            return bag
        attempt = bag.tried.count(client)
        bag.tried.append(client)
        if client not in down and (client, attempt) not in down:
            bag.visited.append(client)
    raise AssertionError("the route has no end")


def test_without_faults_everybody_trains_once_a_turn_in_either_order():
    for order in ("least_completed", "fixed"):
        bag = walk(OrderSettings(order=order), ["a", "b", "c"], 6)
        assert bag.visited == bag.tried
        assert Counter(bag.visited) == {"a": 2, "b": 2, "c": 2}


def test_those_who_completed_least_come_first():
    bag = walk(OrderSettings(), ["a", "b", "c"], 3, completed={"a": 5, "b": 1, "c": 3})
    assert bag.visited[0] == "b"


def test_who_was_missed_is_tried_again_after_the_others():
    bag = walk(OrderSettings(interval=2), ["a", "b", "c", "d"], 4, down={("a", 0)})
    assert bag.tried == ["a", "b", "c", "d", "a"]
    assert Counter(bag.visited) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_others_make_up_for_one_that_is_gone_within_the_cap():
    bag = walk(OrderSettings(cap=2, interval=1), ["a", "b", "c"], 3, down={"a"})
    assert len(bag.visited) == 3
    assert set(bag.visited) == {"b", "c"}
    assert bag.tried.count("a") == 2


def test_a_fixed_order_skips_and_never_makes_up():
    bag = walk(OrderSettings(order="fixed"), ["a", "b", "c"], 3, down={"a"})
    assert bag.tried == ["a", "b", "c"]
    assert bag.visited == ["b", "c"]


def test_a_group_of_one_and_a_group_of_none_end():
    assert walk(OrderSettings(), ["a"], 3).visited == ["a"] * 3
    assert len(walk(OrderSettings(cap=2), ["a"], 3, down={"a"}).tried) == 6
    assert walk(OrderSettings(), [], 0).tried == []


@given(
    size=st.integers(1, 7),
    turns=st.integers(1, 3),
    cap=st.integers(1, 3),
    interval=st.integers(0, 5),
    down=st.sets(st.tuples(st.integers(0, 6).map(str), st.integers(0, 8))),
)
def test_every_walk_ends_within_its_cap(size, turns, cap, interval, down):
    members = [str(number) for number in range(size)]
    bag = walk(OrderSettings(cap=cap, interval=interval), members, size * turns, down=down)
    assert len(bag.visited) <= size * turns
    assert max(Counter(bag.tried).values()) <= cap * turns
    if len(bag.visited) < size * turns:  # it gave up only when nobody was left to ask
        assert all(count == cap * turns for count in Counter(dict.fromkeys(members, 0) | Counter(bag.tried)).values())
