"""Aggregators against numpy, their invariants, and malicious clients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsynth.errors import UserError
from fedsynth.learning.aggregators import Weighted, clamped_mean, krum, krum_scores, median, trimmed_mean, weighted_mean

floats = st.floats(-100, 100, width=32).map(lambda value: value if abs(value) > 1e-3 else 0.0)
Numbers = tuple[np.ndarray, np.ndarray]


@st.composite
def updates(draw: st.DrawFn, least: int = 1, most: int = 9) -> Numbers:
    """Rows of numbers, one per client, and the clients' numbers of examples."""
    clients = draw(st.integers(least, most))
    rows = draw(hnp.arrays(np.float32, (clients, 6), elements=floats))
    sizes = draw(hnp.arrays(np.int64, clients, elements=st.integers(1, 1000)))
    return rows, sizes


def as_updates(rows: np.ndarray, sizes: np.ndarray) -> list[Weighted]:
    """Each row as a model of a matrix, a vector and BatchNorm's counter."""
    return [
        (
            {
                "layer.weight": torch.tensor(row[:4]).reshape(2, 2),
                "norm.running_mean": torch.tensor(row[4:]),
                "norm.num_batches_tracked": torch.tensor(int(size)),
            },
            int(size),
        )
        for row, size in zip(rows, sizes, strict=True)
    ]


def flat(weights: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([weights["layer.weight"].numpy().ravel(), weights["norm.running_mean"].numpy()])


# -- the weighted mean ----------------------------------------------------------------------------------------------


@given(updates())
def test_weighted_mean_is_numpys_and_lies_between_the_extremes(numbers: Numbers) -> None:
    rows, sizes = numbers
    got = flat(weighted_mean(as_updates(rows, sizes)))
    expected = np.average(rows.astype(np.float64), axis=0, weights=sizes)
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-6)
    assert (got >= rows.min(0)).all()
    assert (got <= rows.max(0)).all()


@given(updates())
def test_a_stream_and_a_list_give_the_same_bits(numbers: Numbers) -> None:
    many = as_updates(*numbers)
    assert np.array_equal(flat(weighted_mean(many)), flat(weighted_mean(update for update in many)))


@given(updates(), st.randoms())
def test_order_changes_the_mean_by_rounding_only(numbers: Numbers, random: object) -> None:
    many = as_updates(*numbers)
    mixed = many.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert np.allclose(flat(weighted_mean(many)), flat(weighted_mean(mixed)), rtol=1e-6, atol=1e-6)


@given(updates(most=1), st.integers(1, 10**6))
def test_the_mean_of_one_is_itself_to_the_last_bit(numbers: Numbers, examples: int) -> None:
    ((weights, _),) = as_updates(*numbers)
    assert np.array_equal(flat(weighted_mean([(weights, examples)])), numbers[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_inputs_are_left_alone_and_types_kept(dtype: torch.dtype) -> None:
    one, other = {"w": torch.ones(3, dtype=dtype)}, {"w": torch.full((3,), 3.0, dtype=dtype)}
    mean = weighted_mean([(one, 3), (other, 1)])
    assert mean["w"].dtype == dtype
    assert mean["w"].tolist() == [1.5, 1.5, 1.5]
    assert one["w"].tolist() == [1, 1, 1]
    assert other["w"].tolist() == [3, 3, 3]


def test_sums_are_in_double_precision() -> None:
    values = [1e8, 1.0, -1e8]
    assert float(weighted_mean([({"w": torch.tensor(v)}, 1) for v in values])["w"]) == pytest.approx(1 / 3)


def test_another_total_divides() -> None:
    assert float(weighted_mean([({"w": torch.tensor(6.0)}, 2)], total=4)["w"]) == 3.0


def test_nothing_to_average_is_said() -> None:
    with pytest.raises(UserError, match="nothing to average"):
        weighted_mean([])
    with pytest.raises(UserError, match="nothing to average"):
        weighted_mean([({"w": torch.ones(2)}, 0)])


# -- all of them ----------------------------------------------------------------------------------------------------

ALL: dict[str, Callable[[list[Weighted]], dict[str, torch.Tensor]]] = {
    "mean": weighted_mean,
    "trimmed mean": lambda many: trimmed_mean(many, 0.2),
    "median": median,
    "krum": lambda many: krum(many, byzantine=1),
    "multi-krum": lambda many: krum(many, byzantine=1, keep=3),
}


@pytest.mark.parametrize("name", ALL)
def test_batch_counters_take_the_largest(name: str) -> None:
    """Krum takes those it kept; all others take the largest of everybody."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 6)).astype(np.float32)
    counters = np.array([4, 9, 7, 2, 5, 1])
    got = ALL[name](as_updates(rows, counters))["norm.num_batches_tracked"]
    assert got.dtype == torch.int64
    if "krum" in name:
        assert int(got) in counters
    else:
        assert int(got) == 9


@pytest.mark.parametrize("name", [name for name in ALL if name != "mean"])
@given(numbers=updates(least=5), random=st.randoms())
@settings(max_examples=50)
def test_robust_averages_do_not_depend_on_the_order(name: str, numbers: Numbers, random: object) -> None:
    rows = numbers[0] + np.linspace(0, 0.01, numbers[0].size, dtype=np.float32).reshape(numbers[0].shape)
    sizes = np.full(len(rows), 7)  # equal sizes, so that ties between equal values are no matter
    many = as_updates(rows, sizes)
    mixed = many.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    if "krum" in name and has_a_tie(krum_scores(many, 1)):
        return
    assert np.allclose(flat(ALL[name](many)), flat(ALL[name](mixed)), rtol=1e-6, atol=1e-6)


def has_a_tie(scores: torch.Tensor) -> bool:
    gaps = scores.sort().values.diff()
    return bool((gaps < 1e-9 * scores.max().clamp_min(1e-12)).any())


@pytest.mark.parametrize("name", [name for name in ALL if name != "mean"])
@given(numbers=updates(least=5), liar=st.integers(0, 100), sign=st.sampled_from([-1, 1]))
@settings(max_examples=50)
def test_one_liar_does_not_pull_a_robust_average_out_of_the_honest_range(
    name: str, numbers: Numbers, liar: int, sign: int
) -> None:
    rows, sizes = numbers[0].copy(), np.full(len(numbers[0]), 3)
    position = liar % len(rows)
    rows[position] = sign * 1e6
    honest = np.delete(rows, position, axis=0)
    got = flat(ALL[name](as_updates(rows, sizes)))
    assert (got >= honest.min(0) - 1e-4).all()
    assert (got <= honest.max(0) + 1e-4).all()
    assert np.abs(flat(weighted_mean(as_updates(rows, sizes)))).max() > 1e4


@pytest.mark.parametrize("name", [name for name in ALL if name != "mean"])
@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf])
def test_one_update_that_is_not_finite_does_not_spoil_a_robust_average(name: str, lie: float) -> None:
    rows = np.random.default_rng(2).normal(size=(6, 6)).astype(np.float32)
    rows[2] = lie
    honest = np.delete(rows, 2, axis=0)
    got = flat(ALL[name](as_updates(rows, np.array([4, 9, 7, 2, 5, 1]))))
    assert (got >= honest.min(0)).all()
    assert (got <= honest.max(0)).all()


@pytest.mark.parametrize("malicious", [(math.nan, math.nan), (math.nan, math.inf), (-math.inf, math.nan)])
@pytest.mark.parametrize("honest", [3, 4])
def test_the_median_holds_while_most_are_finite(malicious: tuple[float, float], honest: int) -> None:
    values = [*range(honest), *malicious]
    got = flat(median(as_updates(np.array(values, np.float32)[:, None].repeat(6, axis=1), np.ones(honest + 2, int))))
    assert ((got >= 0) & (got <= honest - 1)).all()


@given(updates(least=3), st.sampled_from([0.1, 0.2, 0.4]))
def test_finite_updates_give_the_bits_of_the_plain_formulas(numbers: Numbers, trim: float) -> None:
    many = sorted(as_updates(*numbers), key=lambda pair: pair[1])
    stack = torch.stack([weights["layer.weight"] for weights, _ in many]).double()
    assert torch.equal(median(many)["layer.weight"], stack.quantile(0.5, 0).float())
    cut = min(math.ceil(trim * len(many) - 1e-9), (len(many) - 1) // 2)
    rank = stack.argsort(stable=True, dim=0).argsort(0)
    sizes = torch.tensor([size for _, size in many], dtype=torch.float64).reshape(-1, 1, 1)
    kept = ((rank >= cut) & (rank < len(stack) - cut)) * sizes
    expected = ((stack * kept).sum(0) / kept.sum(0)).float()
    assert torch.equal(trimmed_mean(many, trim)["layer.weight"], expected)


# -- each by numpy --------------------------------------------------------------------------------------------------


@given(updates())
def test_median_is_numpys_for_odd_and_even_numbers(numbers: Numbers) -> None:
    rows, sizes = numbers
    got = flat(median(as_updates(rows, sizes)))
    assert np.allclose(got, np.median(rows.astype(np.float64), axis=0), rtol=1e-6, atol=1e-7)


def test_median_ignores_the_clients_sizes() -> None:
    rows = np.array([[1] * 6, [2] * 6, [9] * 6], dtype=np.float32)
    assert flat(median(as_updates(rows, np.array([1, 1, 1000])))).tolist() == [2] * 6
    assert flat(median(as_updates(rows[:2], np.array([1, 1000])))).tolist() == [1.5] * 6


@given(updates(least=3), st.floats(0, 0.49))
def test_trimmed_mean_by_hand(numbers: Numbers, trim: float) -> None:
    rows, sizes = numbers
    cut = min(math.ceil(trim * len(rows) - 1e-9), (len(rows) - 1) // 2)
    got = flat(trimmed_mean(as_updates(rows, sizes), trim))
    for column in range(6):
        order = np.argsort(rows[:, column], kind="stable")[cut : len(rows) - cut]
        values = np.sort(rows[:, column])
        if len(set(values.tolist())) < len(values):  # ties: which of equal values is cut is free
            assert values[cut] - 1e-5 <= got[column] <= values[len(rows) - cut - 1] + 1e-5
            continue
        expected = np.average(rows[order, column].astype(np.float64), weights=sizes[order])
        assert got[column] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_trimmed_mean_of_equal_clients_is_scipys() -> None:
    from scipy.stats import trim_mean

    rows = np.random.default_rng(1).normal(size=(10, 6)).astype(np.float32)
    got = flat(trimmed_mean(as_updates(rows, np.full(10, 4)), 0.2))
    assert np.allclose(got, trim_mean(rows.astype(np.float64), 0.2, axis=0), atol=1e-6)


@given(updates())
def test_clamped_mean_by_hand(numbers: Numbers) -> None:
    rows, sizes = numbers
    many = as_updates(rows, sizes)
    centre = many[0][0]
    got = flat(clamped_mean(many, centre, 0.5, list(centre)))
    near = np.clip(rows.astype(np.float64), flat(centre) - 0.5, flat(centre) + 0.5)
    assert np.allclose(got, np.average(near, axis=0, weights=sizes), rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_is_clamped_too() -> None:
    rows = np.array([[0] * 6, [np.nan] * 6, [-np.inf] * 6, [np.inf] * 6], np.float32)
    many = as_updates(rows, np.ones(4, int))
    assert flat(clamped_mean(many, many[0][0], 0.4, list(many[0][0]))).tolist() == pytest.approx([0.1] * 6)


def test_trimming_everything_is_refused() -> None:
    with pytest.raises(UserError, match="less than 0.5"):
        trimmed_mean(as_updates(np.zeros((4, 6), np.float32), np.ones(4, int)), 0.5)


@given(updates(least=3), st.integers(0, 3))
def test_krum_scores_by_hand(numbers: Numbers, byzantine: int) -> None:
    rows, sizes = numbers
    if len(rows) < 2 * byzantine + 3:
        return
    wide = rows.astype(np.float64)
    scores = []
    for i in range(len(rows)):
        others = sorted(((wide[i] - wide[j]) ** 2).sum() for j in range(len(rows)) if j != i)
        scores.append(sum(others[: len(rows) - byzantine - 2]))
    got = krum_scores(as_updates(rows, sizes), byzantine).numpy()
    assert np.allclose(got, scores, rtol=1e-6, atol=1e-6)


def test_krum_takes_the_best_and_multi_krum_the_mean_of_the_best() -> None:
    rows = np.array([0.0, 1.0, 1.5, 2.2, 50.0], dtype=np.float32)[:, None].repeat(6, axis=1)
    sizes = np.array([5, 1, 3, 7, 9])
    many = as_updates(rows, sizes)
    # One dimension times six: scores over the two nearest are 6·(1 + 2.25), 6·(0.25 + 1), 6·(0.25 + 0.49), …
    assert krum_scores(many, 1)[:3].tolist() == pytest.approx([19.5, 7.5, 4.44], rel=1e-5)
    assert flat(krum(many, 1)).tolist() == [1.5] * 6
    assert flat(krum(many, 1, keep=2)) == pytest.approx([(1.0 * 1 + 1.5 * 3) / 4] * 6)


def test_krum_needs_enough_updates() -> None:
    with pytest.raises(UserError, match="needs 5 updates or more, not 4"):
        krum(as_updates(np.zeros((4, 6), np.float32), np.ones(4, int)), byzantine=1)


def test_krum_tells_close_updates_apart() -> None:
    """Far from zero and near each other, distances from a Gram matrix would be nothing but rounding."""
    rows = np.full((5, 6), 100.0, dtype=np.float32)
    rows[:, 0] += np.array([0, 1e-3, 1.1e-3, 1.2e-3, 3e-3], dtype=np.float32)
    assert np.array_equal(flat(krum(as_updates(rows, np.ones(5, int)), 1)), rows[2])
