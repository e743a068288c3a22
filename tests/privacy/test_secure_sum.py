"""The secure sum by itself: whole numbers that cannot overflow, masks that cancel, secrets that a client keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import UserError
from fedsynth.privacy import secure_sum
from fedsynth.privacy.secure_sum import (
    LARGEST,
    ONE,
    PublicKeys,
    Secrets,
    SecureSumError,
    check_keys,
    disclose,
    enough,
    from_words,
    heaviest,
    mask,
    shares_for,
    to_words,
    unmask,
)

NAMES = ["ann", "bob", "eve", "ida", "joe"]
THRESHOLD = 3


class Session:
    """Five clients that have made keys and shared their secrets."""

    def __init__(self, names: Sequence[str] = NAMES, threshold: int = THRESHOLD) -> None:
        self.names, self.threshold = names, threshold
        self.secrets = {name: Secrets.new() for name in names}
        self.keys: dict[str, PublicKeys] = {name: secrets.public() for name, secrets in self.secrets.items()}
        made = {name: shares_for(name, self.secrets[name], self.keys, threshold) for name in names}
        self.sealed = {name: sealed for name, (sealed, _) in made.items()}
        self.own = {name: own for name, (_, own) in made.items()}

    def masked(self, name: str, plain: np.ndarray) -> np.ndarray:
        return mask(name, self.secrets[name], self.keys, self.names, plain)

    def disclosed(self, name: str, stayed: Sequence[str], left: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        sealed = {sender: box[name] for sender, box in self.sealed.items() if sender != name}
        return disclose(name, self.secrets[name], self.keys, self.own[name], sealed, stayed, left)

    def opened(self, sent: dict[str, np.ndarray], helpers: Sequence[str]) -> np.ndarray:
        stayed, left = list(sent), [name for name in self.names if name not in sent]
        said = [self.disclosed(name, stayed, left) for name in helpers]
        seeds = {name: [part[0][name] for part in said] for name in stayed}
        masks = {name: [part[1][name] for part in said] for name in left}
        total = np.sum(list(sent.values()), axis=0, dtype=np.uint64)
        return unmask(total, self.keys, stayed, seeds, masks, self.threshold)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


def numbers(seed: int, size: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(10**9), 10**9, size).view(np.uint64)


# -- whole numbers --------------------------------------------------------------------------------------------------

CLIENT = st.tuples(
    st.lists(st.floats(-LARGEST, LARGEST, allow_subnormal=False), min_size=3, max_size=3), st.integers(0, heaviest(20))
)


@settings(max_examples=300, deadline=None)
@given(clients=st.lists(CLIENT, min_size=1, max_size=20))
def test_the_sum_of_words_is_the_weighted_sum_to_a_step(clients: list[tuple[list[float], int]]) -> None:
    words = [to_words(np.array(values), weight, 20) for values, weight in clients]
    total = np.sum(words, axis=0, dtype=np.uint64)
    weights = sum(weight for _, weight in clients)
    exact = [sum(weight * int(np.trunc(values[i] * ONE)) for values, weight in clients) for i in range(3)]
    assert [int(number) for number in total.view(np.int64)] == [weights, *exact]  # no wrap, whatever the numbers
    if weights:
        mean = from_words(total)[1]
        true = [sum(values[i] * (weight / weights) for values, weight in clients) for i in range(3)]
        assert np.abs(mean - true).max() <= 1 / ONE + 1e-9


def test_the_largest_numbers_of_the_heaviest_clients_do_not_overflow() -> None:
    for clients in (3, 100, 10_000):
        edge = to_words(np.array([LARGEST, -LARGEST]), heaviest(clients), clients)
        total = np.uint64(clients) * edge
        weight, mean = from_words(total)
        assert weight == clients * heaviest(clients)
        assert mean.tolist() == [LARGEST, -LARGEST]


def test_numbers_are_cut_towards_zero() -> None:
    values = np.array([0.9, -0.9, 1e-9, -1e-9, 0.1])
    back = from_words(to_words(values, 7, 3))[1]
    assert (np.abs(back) <= np.abs(values)).all()
    assert np.abs(back - values).max() < 1 / ONE


@pytest.mark.parametrize(
    ("values", "weight", "sentence"),
    [
        ([np.nan], 1, "not finite"),
        ([np.inf], 1, "not finite"),
        ([-LARGEST * 1.01], 1, "changes a weight by more than 1024"),
        ([0.0], heaviest(3) + 1, "may weigh 178956970 examples at most"),
        ([0.0], -1, "may weigh"),
    ],
)
def test_what_could_not_be_summed_is_refused(values: list[float], weight: int, sentence: str) -> None:
    with pytest.raises(SecureSumError, match=sentence):
        to_words(np.array(values), weight, 3)


def test_a_sum_that_makes_no_sense_is_not_used() -> None:
    with pytest.raises(SecureSumError, match="makes no sense"):
        from_words(np.array([2, 2**62], np.uint64))
    with pytest.raises(SecureSumError, match="makes no sense"):
        from_words(np.array([2**64 - 1, 0], np.uint64))
    with pytest.raises(UserError, match="nothing to average"):
        from_words(np.zeros(3, np.uint64))


@pytest.mark.parametrize(
    ("share", "clients", "least"), [(0.6, 3, 2), (0.6, 5, 3), (0.6, 10, 6), (0.51, 4, 3), (1.0, 7, 7), (0.6, 100, 60)]
)
def test_more_than_half_must_stay(share: float, clients: int, least: int) -> None:
    assert enough(share, clients) == least
    assert 2 * least > clients


# -- masks ----------------------------------------------------------------------------------------------------------


def test_masks_cancel_in_the_sum(session: Session) -> None:
    plain = {name: numbers(place) for place, name in enumerate(NAMES)}
    sent = {name: session.masked(name, words) for name, words in plain.items()}
    assert (session.opened(sent, NAMES[:THRESHOLD]) == np.sum(list(plain.values()), axis=0, dtype=np.uint64)).all()


@pytest.mark.parametrize("left", [["ann"], ["joe"], ["bob", "ida"]])
def test_those_who_left_are_taken_out_by_any_three_of_those_who_stayed(left: list[str], session: Session) -> None:
    plain = {name: numbers(place) for place, name in enumerate(NAMES) if name not in left}
    sent = {name: session.masked(name, words) for name, words in plain.items()}
    expected = np.sum(list(plain.values()), axis=0, dtype=np.uint64)
    for helpers in (list(plain)[:THRESHOLD], list(plain)[-THRESHOLD:]):
        assert (session.opened(sent, helpers) == expected).all()


def test_fewer_than_the_threshold_cannot_open_the_sum(session: Session) -> None:
    plain = {name: numbers(place) for place, name in enumerate(NAMES)}
    sent = {name: session.masked(name, words) for name, words in plain.items()}
    truth = np.sum(list(plain.values()), axis=0, dtype=np.uint64)
    try:
        opened = session.opened(sent, NAMES[: THRESHOLD - 1])
    except (SecureSumError, ValueError):
        return
    assert (opened != truth).mean() > 0.9


def test_masked_numbers_look_uniform_and_are_never_the_same(session: Session) -> None:
    plain = np.zeros(40_000, np.uint64)
    first, second = session.masked("ann", plain), Session().masked("ann", plain)
    for sent in (first, second, first - second):
        counts = np.bincount(sent.view(np.uint8), minlength=256)
        expected = len(sent) * 8 / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400  # χ² of 255 degrees: the chance is 1e-8
    assert Counter(np.concatenate([first, second]).tolist()).most_common(1)[0][1] <= 2


def test_a_mask_depends_on_every_bit_of_its_key() -> None:
    """Flower's own generator uses 32 bits of a seed: keys that differ in pairs of equal bits gave the same mask."""
    zero = secure_sum._stream(bytes(32), 4)
    twice = secure_sum._stream(bytes([1, 0, 0, 0, 1, 0, 0, 0, *bytes(24)]), 4)
    assert (zero != twice).all()


def test_secrets_come_from_the_operating_system() -> None:
    np.random.seed(0)
    one = Secrets.new()
    np.random.seed(0)
    assert one != Secrets.new()


# -- what a client refuses ------------------------------------------------------------------------------------------


def test_a_client_does_not_give_both_secrets_of_another(session: Session) -> None:
    with pytest.raises(SecureSumError, match=r"Both secrets of \['eve'\].*unmask"):
        session.disclosed("ann", stayed=NAMES, left=["eve"])


def test_a_share_that_was_made_up_or_swapped_is_noticed() -> None:
    session = Session()
    session.sealed["bob"]["ann"] = session.sealed["bob"]["eve"]
    with pytest.raises(SecureSumError, match='"bob" is said to have sent was damaged or made up'):
        session.disclosed("ann", NAMES, [])


def test_shares_that_do_not_make_the_key_open_nothing(session: Session) -> None:
    other = Session()
    sent = {name: session.masked(name, numbers(0)) for name in NAMES[1:]}
    session_keys = session.keys
    said = [session.disclosed(name, NAMES[1:], NAMES[:1]) for name in NAMES[1:]]
    wrong = [other.disclosed(name, NAMES[1:], NAMES[:1]) for name in NAMES[1:]]
    seeds = {name: [part[0][name] for part in said] for name in NAMES[1:]}
    masks = {"ann": [part[1]["ann"] for part in wrong]}
    total = np.sum(list(sent.values()), axis=0, dtype=np.uint64)
    with pytest.raises(SecureSumError, match='key of "ann" do not make that key'):
        unmask(total, session_keys, NAMES[1:], seeds, masks, THRESHOLD)


@pytest.mark.parametrize(
    ("change", "threshold", "sentence"),
    [
        ({}, 2, "2 of 5 is no safe threshold"),
        ({}, 6, "6 of 5 is no safe threshold"),
        ({"ann": "bob"}, 3, "does not have this client's own"),
        ({"eve": "bob"}, 3, "names the same key twice"),
        (None, 2, "needs 3 clients at least, and 2 were named"),
    ],
)
def test_a_list_of_keys_that_could_single_a_client_out_is_refused(
    change: dict[str, str] | None, threshold: int, sentence: str, session: Session
) -> None:
    keys = dict(session.keys)
    if change is None:
        keys = {name: keys[name] for name in NAMES[:2]}
    else:
        keys |= {name: session.keys[source] for name, source in change.items()}
    with pytest.raises(SecureSumError, match=sentence):
        check_keys("ann", session.keys["ann"], keys, threshold)


def test_what_is_no_key_is_noticed(session: Session) -> None:
    cipher, masks = session.keys["ann"]
    assert secure_sum.are_keys((cipher, masks))
    for wrong in ("", "AAAA", cipher[:-4], "not base64 %%%", "A" * 66):
        assert not secure_sum.are_keys((cipher, wrong))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_sum, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedsynth\[flower\]', here and at every site"):
        secure_sum.require_primitives()
