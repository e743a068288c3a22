"""Who helps whom: algorithm 3 on worked examples, and what holds for any federation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.methods.feddpms.matching import match


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_client_with_most_of_what_is_lacking_is_chosen():
    abundant = {"a": [0, 1, 2], "b": [3, 4, 5], "c": [4, 5, 6]}
    assert match("a", [4, 5, 6], abundant, 1, rng()) == ["c"]
    assert match("c", [0, 3, 1], abundant, 1, rng()) == ["a"]


def test_several_senders_complete_each_other():
    abundant = {"b": [3, 4], "c": [4, 5], "d": [4, 3], "e": [6]}
    chosen = match("a", [3, 4, 5, 6], abundant, 3, rng())
    assert chosen[0] in ("b", "c", "d")
    assert {5, 6, 3} <= set().union(*(abundant[c] for c in chosen))


def test_one_sender_is_always_named_but_not_a_second_that_adds_nothing():
    abundant = {"b": [1], "c": [2]}
    assert len(match("a", [7], abundant, 3, rng())) == 1


def test_ties_fall_by_the_seed_and_both_ways():
    abundant = {"b": [1], "c": [1]}
    assert {match("a", [1], abundant, 1, rng(seed))[0] for seed in range(20)} == {"b", "c"}
    assert match("a", [1], abundant, 1, rng(3)) == match("a", [1], dict(reversed(abundant.items())), 1, rng(3))


def test_alone_there_is_nobody():
    assert match("a", [1], {"a": [1]}, 2, rng()) == []
    assert match("a", [1], {}, 1, rng()) == []


classes = st.lists(st.integers(0, 9), unique=True, max_size=5)


@given(abundant=st.dictionaries(st.sampled_from("abcdefgh"), classes), scarce=classes, senders=st.integers(1, 4))
def test_a_client_is_never_matched_with_itself_and_the_first_is_the_best(abundant, scarce, senders):
    chosen = match("a", scarce, abundant, senders, rng())
    assert "a" not in chosen
    assert len(set(chosen)) == len(chosen) <= senders
    others = [client for client in abundant if client != "a"]
    assert bool(chosen) == bool(others)
    if chosen:
        overlap = {client: len(set(scarce) & set(abundant[client])) for client in others}
        assert overlap[chosen[0]] == max(overlap.values())
