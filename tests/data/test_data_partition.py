"""Every partitioner: disjoint, never empty, deterministic, and with the class structure it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data.manifest import measure_skew
from fedsynth.data.partition import PARTITIONERS, divide, parse_partition
from fedsynth.errors import ConfigError, DataError

BALANCED = np.repeat(np.arange(10), 600)


def run(labels, seed=0, groups=None, **keys):
    return divide(labels, parse_partition(keys), np.random.default_rng(seed), groups)


def count(labels, parts, classes=None):
    classes = classes or int(labels.max()) + 1
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def assert_sound(labels, parts, clients, least=1):
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)
    assert min(map(len, parts)) >= least


SMALL = {"few_sample": {"samples_per_class": 3, "few_samples": 1, "few_classes": 1}}


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(set(PARTITIONERS) - {"natural", "counts"})),
    classes=st.integers(1, 12),
    examples=st.integers(1, 400),
    clients=st.integers(1, 60),
    least=st.integers(1, 12),
    seed=st.integers(0, 1000),
    skewed=st.booleans(),
)
def test_any_division_is_sound_or_refused(name, classes, examples, clients, least, seed, skewed):
    rng = np.random.default_rng(seed)
    labels = rng.geometric(0.5, examples).clip(1, classes) - 1 if skewed else rng.integers(0, classes, examples)
    keys = {"num_clients": clients, "min_size": least, "name": name, **SMALL.get(name, {})}
    try:
        parts = run(labels, seed, **keys)
    except DataError:
        return
    assert_sound(labels, parts, clients, least)
    again = run(labels, seed, **keys)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["iid", "quantity", "dirichlet", "lognormal"]),
    examples=st.integers(1, 300),
    clients=st.integers(1, 40),
    least=st.integers(1, 10),
    alpha=st.sampled_from([0.001, 0.1, 1.0, 1e6]),
)
def test_repairing_partitioners_succeed_whenever_it_is_possible(name, examples, clients, least, alpha):
    labels = np.random.default_rng(examples).integers(0, 7, examples)
    keys = {"dirichlet": {"alpha": alpha}, "quantity": {"alpha": alpha}, "lognormal": {"gamma": alpha}}.get(name, {})
    if clients * least > examples:
        with pytest.raises(DataError, match=f"{clients} clients.*{examples} examples"):
            run(labels, name=name, num_clients=clients, min_size=least, **keys)
    else:
        parts = run(labels, name=name, num_clients=clients, min_size=least, **keys)
        assert_sound(labels, parts, clients, least)
        if name != "lognormal":
            assert sum(map(len, parts)) == examples


def test_seed_changes_the_division():
    for name in set(PARTITIONERS) - {"natural", "counts"}:
        keys = {"samples_per_class": 30} if name == "few_sample" else {}
        first, second = (run(BALANCED, seed, name=name, **keys) for seed in (1, 2))
        assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True)), name


def test_labels_need_not_start_at_zero():
    shifted = BALANCED + 10
    for name in set(PARTITIONERS) - {"natural", "counts"}:
        keys = {"samples_per_class": 30} if name == "few_sample" else {}
        parts = run(shifted, name=name, **keys)
        assert all(np.array_equal(a, b) for a, b in zip(parts, run(BALANCED, name=name, **keys), strict=True))


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in run(BALANCED[:1003], name="iid", num_clients=10)]
    assert sum(sizes) == 1003
    assert max(sizes) - min(sizes) == 1


def test_dirichlet_skew_falls_with_alpha_and_keeps_everything():
    skews = []
    for alpha in (0.05, 0.5, 5, 500):
        parts = run(BALANCED, name="dirichlet", alpha=alpha, num_clients=20)
        assert_sound(BALANCED, parts, 20, least=10)
        assert sum(map(len, parts)) == len(BALANCED)
        skews.append(measure_skew(count(BALANCED, parts))["kl_mean"])
    assert skews == sorted(skews, reverse=True)
    assert skews[-1] < 0.05


def test_dirichlet_self_balancing_evens_the_sizes():
    spread = [
        np.std([len(part) for part in run(BALANCED, name="dirichlet", alpha=0.1, self_balancing=balance)])
        for balance in (False, True)
    ]
    assert spread[1] < spread[0]


def test_lognormal_sizes_follow_equation_16():
    labels = np.repeat(np.arange(10), 100_000)
    sizes = np.array([len(part) for part in run(labels, name="lognormal", num_clients=4000, min_size=1)])
    logs = np.log(sizes[sizes > 12] - 10)
    assert sizes.min() >= 10
    assert abs(np.median(sizes) - (10 + np.e)) < 1.5
    assert abs(np.mean(np.log(sizes - 10 + 0.5) > 3) - 0.159) < 0.03  # one standard deviation above the mean
    assert logs.max() < 12


def test_lognormal_divergence_falls_when_gamma_grows():
    skews = []
    for gamma in (0.1, 1, 10, 100):
        parts = run(BALANCED, name="lognormal", gamma=gamma, num_clients=100, sigma=0.5, mu=3)
        skews.append(measure_skew(count(BALANCED, parts))["kl_mean"])
    assert skews == sorted(skews, reverse=True)


def test_lognormal_can_use_everything():
    parts = run(BALANCED, name="lognormal", use_all=True, num_clients=30)
    assert_sound(BALANCED, parts, 30, least=10)
    assert sum(map(len, parts)) == len(BALANCED)


def test_shards_give_two_classes_when_they_divide_evenly():
    for name in ("shards", "unimodal"):
        parts = run(BALANCED, name=name, num_clients=100)
        assert all(len(part) == 60 for part in parts)
        assert (count(BALANCED, parts) > 0).sum(axis=1).max() <= 2
        assert sum(map(len, parts)) == len(BALANCED)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 10), clients=st.integers(1, 60), seed=st.integers(0, 99))
def test_n_class_has_exactly_n_classes(n, clients, seed):
    parts = run(BALANCED, seed, name="n_class", n=n, num_clients=clients)
    counts = count(BALANCED, parts)
    assert ((counts > 0).sum(axis=1) == n).all()
    if n * clients >= 10:
        assert counts.sum() == len(BALANCED)  # every class belongs to somebody
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_n_class_respects_a_rare_class():
    labels = np.concatenate([np.zeros(500, int), np.ones(500, int), np.full(2, 2)])
    counts = count(labels, run(labels, name="n_class", n=2, num_clients=8))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (counts[:, 2] > 0).sum() <= 2
    with pytest.raises(DataError, match="3 classes each need 24 shares"):
        run(labels, name="n_class", n=3, num_clients=8)


def test_major_minor_has_the_ratio_and_equal_sizes():
    counts = np.sort(count(BALANCED, run(BALANCED, name="major_minor", num_clients=20)), axis=1)
    assert len(set(counts.sum(axis=1))) == 1
    assert (counts[:, 6:] == 10 * counts[:, :1]).all()
    assert (counts[:, :6] == counts[:, :1]).all()
    assert counts.sum() > 0.9 * len(BALANCED)
    with pytest.raises(DataError, match="10 times larger need at least"):
        run(BALANCED[::60], name="major_minor", num_clients=20)


def test_few_sample_has_the_published_counts():
    labels = np.repeat(np.arange(10), 6000)
    counts = np.sort(count(labels, run(labels, name="few_sample", num_clients=20)), axis=1)
    assert (counts == [15] * 3 + [300] * 7).all()
    with pytest.raises(DataError, match=r"need .* examples of a class that has 600"):
        run(BALANCED, name="few_sample", num_clients=20)


def test_multimodal_is_imbalanced_over_the_federation():
    parts = run(BALANCED, name="multimodal", num_clients=100)
    counts = count(BALANCED, parts)
    assert len({len(part) for part in parts}) == 1
    assert ((counts > 0).sum(axis=1) == 2).all()
    total = np.sort(counts.sum(axis=0))
    assert total[-1] > 3 * total[0]
    # Two clients share no class unless they belong to one mode, so modes are blocks of classes.
    together = (counts.T > 0).astype(int) @ (counts > 0)
    reach = np.linalg.matrix_power(together + np.eye(10, dtype=int), 9) > 0
    assert len(np.unique(reach, axis=0)) == 3


def test_natural_follows_the_groups():
    labels = np.array([0, 1, 0, 1, 1])
    groups = np.array(["b", "a", "b", "c", "b"])
    parts = run(labels, name="natural_id", groups=groups)
    assert [part.tolist() for part in parts] == [[1], [0, 2, 4], [3]]
    assert [part.tolist() for part in run(labels, name="natural", groups=groups, min_size=2)] == [[0, 2, 4]]
    assert len(run(labels, name="natural", groups=groups, num_clients=2)) == 2
    with pytest.raises(DataError, match="4 natural clients"):
        run(labels, name="natural", groups=groups, num_clients=4)
    with pytest.raises(DataError, match="does not say which client"):
        run(labels, name="natural")


@pytest.mark.parametrize(
    ("table", "name", "key", "value"),
    [
        ({"name": "noniid-labeldir", "beta": 0.1, "n_parties": 7}, "dirichlet", "alpha", 0.1),
        ({"name": "DirichletPartitioner", "num_partitions": 7}, "dirichlet", "num_clients", 7),
        ({"name": "dir", "min_partition_size": 3}, "dirichlet", "min_size", 3),
        ({"name": "noniid-#label3"}, "n_class", "n", 3),
        ({"name": "pat", "class_per_client": 4}, "n_class", "n", 4),
        ({"name": "PathologicalPartitioner", "num_classes_per_partition": 5}, "n_class", "n", 5),
        ({"name": "ShardPartitioner", "num_shards_per_partition": 3}, "shards", "shards_per_client", 3),
        ({"name": "homo"}, "iid", "num_clients", 10),
        ({"name": "iid-diff-quantity"}, "quantity", "min_size", 10),
        ({"name": "NaturalIdPartitioner"}, "natural", "num_clients", None),
        ({}, "dirichlet", "alpha", 0.5),
    ],
)
def test_names_of_other_tools_are_understood(table, name, key, value):
    config = parse_partition(table)
    assert config.name == name
    assert getattr(config, key) == value
    assert parse_partition(config.model_dump()) == config


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "dirichlett"}, 'Did you mean "dirichlet"'),
        ({"name": "dirichlet", "alhpa": 1}, 'partition "dirichlet" has no key "alhpa".*"alpha"'),
        ({"name": "iid", "alpha": 1}, 'partition "iid" has no key "alpha"'),
        ({"name": "dirichlet", "alpha": 0}, "alpha = 0 cannot be used"),
        ({"name": "multimodal", "mode_shares": [1, -1]}, "every share must be above 0"),
        ({"name": "iid", "num_clients": 0}, "num_clients = 0"),
        ({"name": "iid", "num_clients": 3, "n_parties": 4}, "n_parties"),
    ],
)
def test_wrong_tables_are_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        parse_partition(table)


def test_too_many_clients_says_both_numbers():
    with pytest.raises(DataError, match="601 clients of at least 10 examples cannot be made from 6000 examples"):
        run(BALANCED, name="dirichlet", num_clients=601)


def test_many_clients_are_cheap():
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    for name in ("iid", "dirichlet", "shards"):
        assert_sound(labels, run(labels, name=name, num_clients=100_000), 100_000)


def test_counts_gives_everybody_what_the_table_says():
    labels = np.repeat([0, 1, 2, 3], 20)
    wanted = [[5, 0, 7], [0, 20, 1]]
    parts = divide(labels, parse_partition({"name": "counts", "counts": wanted}), np.random.default_rng(0))
    assert [np.bincount(labels[part], minlength=3).tolist() for part in parts] == wanted


def test_counts_that_cannot_be_given_are_refused():
    labels = np.repeat([0, 1], 10)
    with pytest.raises(DataError, match="11 examples of class 1, and there are 10"):
        divide(labels, parse_partition({"name": "counts", "counts": [[1, 11]]}), np.random.default_rng(0))
    for table in ([[1, 2], [1]], [[0, 0]], [[-1, 2]], []):
        with pytest.raises(ConfigError):
            parse_partition({"name": "counts", "counts": table})
    with pytest.raises(ConfigError, match="num_clients is 3"):
        parse_partition({"name": "counts", "counts": [[1, 2]], "num_clients": 3})
