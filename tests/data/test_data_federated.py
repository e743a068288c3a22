"""Splits, the federation in memory, its manifest, and the check before a run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data import DataConfig, check_data, load_federated
from fedsynth.data.splits import assert_disjoint, part_sizes, split_clients
from fedsynth.errors import DataError

PARTS = ("train", "validation", "test")


def save(path, x, y, **more):
    np.savez(path, x=x, y=y, **more)
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("size", "fractions", "expected"),
    [
        (1, (0.1, 0.1), (0, 0)),
        (2, (0.1, 0.1), (0, 1)),
        (2, (0.1, 0.0), (1, 0)),
        (2, (0.0, 0.0), (0, 0)),
        (3, (0.1, 0.1), (1, 1)),
        (3, (0.5, 0.49), (1, 1)),
        (5, (0.0, 0.2), (0, 1)),
        (100, (0.1, 0.2), (10, 20)),
    ],
)
def test_part_sizes_of_tiny_clients(size, fractions, expected):
    validation, test = part_sizes(np.array([size]), *fractions)
    assert (int(validation[0]), int(test[0])) == expected


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    classes=st.integers(1, 6),
    fractions=st.tuples(st.floats(0, 0.49), st.floats(0, 0.49)),
    seed=st.integers(0, 99),
)
def test_splits_are_disjoint_stratified_and_never_starve_training(sizes, classes, fractions, seed):
    labels = np.random.default_rng(seed).integers(0, classes, sum(sizes))
    parts = np.split(np.random.default_rng(seed).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    ids = [str(number) for number in range(len(sizes))]
    rows, bounds = split_clients(labels, parts, ids, *fractions, seed)
    assert_disjoint(rows, sum(sizes), np.zeros(0, int))
    for part, (start, train, validation, end) in zip(parts, bounds, strict=True):
        assert set(rows[start:end]) == set(part)
        assert train > start
        have = set(labels[part])
        if train - start >= len(have):
            assert set(labels[rows[start:train]]) == have
        for lower, upper in ((train, validation), (validation, end)):
            if train - start >= len(have):
                share = np.bincount(labels[part], minlength=classes) * (upper - lower) / len(part)
                # Each class leaves one example behind in train, and rounding adds at most one on each side.
                assert (np.abs(np.bincount(labels[rows[lower:upper]], minlength=classes) - share) <= 3).all()


def test_large_classes_are_split_in_proportion():
    labels = np.repeat([0, 1, 2], [1000, 300, 20])
    rows, bounds = split_clients(labels, [np.arange(1320)], ["a"], 0.1, 0.1, 0)
    for lower, upper in zip(bounds[0][1:3], bounds[0][2:4], strict=True):
        assert np.abs(np.bincount(labels[rows[lower:upper]]) - [100, 30, 2]).max() <= 1


def test_a_clients_split_does_not_depend_on_others():
    labels = np.arange(100) % 4
    alone, _ = split_clients(labels, [np.arange(40)], ["b"], 0.2, 0.2, 7)
    among, bounds = split_clients(labels, [np.arange(60, 100), np.arange(40)], ["a", "b"], 0.2, 0.2, 7)
    assert np.array_equal(alone, among[bounds[1][0] : bounds[1][3]])


def test_overlap_is_caught():
    with pytest.raises(AssertionError, match="two clients"):
        assert_disjoint(np.array([1, 1]), 3, np.zeros(0, int))
    with pytest.raises(AssertionError, match="global test"):
        assert_disjoint(np.array([1, 2]), 3, np.array([2]))


def test_federation_of_digits():
    data = load_federated(DataConfig(), {"name": "dirichlet", "num_clients": 12}, seed=3)
    assert data.clients == sorted(data.clients)
    assert data.clients[3] == "03"
    client = data.client("03")
    assert len(client.train) == data.train_size("03") == data.counts("train")[3].sum()
    assert np.array_equal(client.test.counts(10), data.counts("test")[3])
    assert data.source_names == ("digits",)
    assert data.test_sources is None
    assert len(data.pooled()) == data.counts("train").sum()
    assert sum(data.counts(part).sum() for part in PARTS) + len(data.test) == 1797
    with pytest.raises(DataError, match='no client "3"'):
        data.client("3")


def test_global_test_does_not_depend_on_the_partition():
    first = load_federated(DataConfig(), {"name": "iid", "num_clients": 3}, seed=1)
    second = load_federated(DataConfig(validation=0.3), {"name": "n_class", "num_clients": 30}, seed=1)
    other = load_federated(DataConfig(), {"name": "iid", "num_clients": 3}, seed=2)
    assert np.array_equal(first.test.x, second.test.x)
    assert not np.array_equal(first.test.x, other.test.x)
    assert np.abs(first.test.counts(10) - 0.2 * np.bincount(np.r_[first.pool.y])).max() < 1
    trained = {row.tobytes() for row in first.pooled().x}
    assert not trained & {row.tobytes() for row in first.test.x}


def test_own_test_part_is_used(tmp_path):
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:7] + 1, y_test=y[:7])
    data = load_federated(DataConfig(name=f"npz:{tmp_path / 'a.npz'}"), {"name": "iid", "num_clients": 4})
    assert len(data.test) == 7
    assert sum(data.counts(part).sum() for part in PARTS) == 60


def test_natural_clients_survive_the_global_test(tmp_path):
    sizes = {"big": 50, "one": 1, "two": 2}
    for client, size in sizes.items():
        frame = pd.DataFrame({"u": np.arange(size) + len(client) * 100, "v": 1, "label": ["x"] * size})
        frame.to_csv(tmp_path / f"{client}.csv", index=False)
    data = load_federated(DataConfig(name=f"clients:{tmp_path}", global_test=0.5), seed=0)
    assert data.clients == ["big", "one", "two"]
    assert all(data.train_size(client) >= 1 for client in data.clients)
    assert data.partition.name == "natural"


def test_two_sources_with_shared_and_separate_labels(tmp_path):
    rng = np.random.default_rng(0)
    other = save(tmp_path / "a.npz", rng.random((400, 8, 8), dtype=np.float32), np.arange(400) % 12)
    config = {"sources": ["digits", other]}
    shared = load_federated(DataConfig(**config), {"name": "iid", "num_clients": 6})
    assert shared.schema.classes == 12
    assert [shared.source_names[source] for source in shared.client_sources] == ["digits"] * 3 + [other] * 3
    assert shared.test_sources is not None
    assert np.bincount(shared.test_sources).tolist() == [359, 80]
    config |= {"labels": "separate", "shares": [1, 2]}
    separate = load_federated(DataConfig(**config), {"name": "n_class", "num_clients": 6})
    assert separate.schema.classes == 22
    assert separate.manifest()["clients_per_source"] == {"digits": 2, other: 4}
    assert separate.counts()[2:, :10].sum() == 0
    with pytest.raises(DataError, match="2 sources need at least 2 clients"):
        load_federated(DataConfig(**config), {"name": "iid", "num_clients": 1})


def test_one_source_twice_with_classes_of_its_own():
    config = DataConfig(sources=["digits", "digits"], classes=[[0, 1], [8, 9]])
    data = load_federated(config, {"name": "iid", "num_clients": 2})
    assert data.schema.class_names == ("0 / 8", "1 / 9")
    assert data.source_names == ("digits#1", "digits#2")


def test_shared_labels_refuse_names_in_another_order(tmp_path):
    for name, labels in (("a", ["cat", "dog"]), ("b", ["bee", "cat"])):
        pd.DataFrame({"u": range(20), "label": labels * 10}).to_csv(tmp_path / f"{name}.csv", index=False)
    config = DataConfig(sources=[f"csv:{tmp_path / 'a.csv'}", f"csv:{tmp_path / 'b.csv'}"])
    with pytest.raises(DataError, match=r'Class "cat" is number 0 in .* but 1 in'):
        load_federated(config, {"name": "iid", "num_clients": 2})


def test_manifest_says_what_the_split_is():
    data = load_federated(DataConfig(), {"name": "n_class", "n": 2, "num_clients": 10}, seed=5)
    manifest = data.manifest()
    assert manifest["skew"]["missing_classes_mean"] == 8
    assert manifest["skew"]["kl_mean"] > 1
    assert 0 < manifest["skew"]["hellinger_mean"] <= 1
    assert manifest["partition"] == {"name": "n_class", "num_clients": 10, "min_size": 1, "n": 2}
    assert manifest["seed"] == 5
    total = np.array([entry["train"] for entry in manifest["counts"]["per_client"].values()])
    assert np.array_equal(total, data.counts("train"))
    assert json.loads(json.dumps(manifest)) == manifest


def test_one_client_has_no_divergence():
    manifest = load_federated(DataConfig(), {"name": "iid", "num_clients": 1}).manifest()
    assert manifest["skew"]["kl_mean"] == manifest["skew"]["hellinger_mean"] == 0


def test_hashes_are_the_same_in_another_process():
    data = load_federated(DataConfig(), {"name": "dirichlet", "alpha": 0.1}, seed=4)
    program = (
        "import json; from fedsynth.data import DataConfig, load_federated\n"
        "data = load_federated(DataConfig(), {'name': 'dirichlet', 'alpha': 0.1}, seed=4)\n"
        "print(json.dumps(data.manifest()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == data.manifest()
    other = load_federated(DataConfig(), {"name": "dirichlet", "alpha": 0.1}, seed=5)
    assert other.split_fingerprint() != data.split_fingerprint()
    assert other.fingerprint == data.fingerprint


def test_a_hundred_thousand_clients_cost_megabytes(tmp_path):
    labels = np.arange(400_000) % 10
    name = save(tmp_path / "a.npz", labels[:, None].astype(np.float32), labels)
    data = load_federated(DataConfig(name=name), {"name": "iid", "num_clients": 100_000})
    assert data.rows.nbytes + data.bounds.nbytes < 10e6
    assert len(data.client("99999").train) >= 1
    manifest = data.manifest()
    assert manifest["counts"]["per_client"] is None
    assert manifest["skew"]["clients_compared"] == 200
    assert len(json.dumps(manifest)) < 10_000


def test_check_finds_what_is_wrong(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    y = np.array([0] * 50 + [3] * 10)
    x[1] = 7
    x[55] = x[2]
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    check = check_data(DataConfig(name=f"npz:{path}"))
    text = " ".join(check.problems)
    for sentence in (
        "1 training examples are constant",
        "1 training examples are copies",
        "1 training examples occur with different labels",
        "5 examples are in both train and test",
        "no training examples of class 1, 2",
        "no test examples of class 3",
    ):
        assert sentence in text
    assert not check.ok
    assert check.sources[0].train.per_class == [50, 0, 0, 10]
    json.dumps(asdict(check))
    np.savez(path, x=x, y=np.array([0] * 58 + [1] * 2))
    assert "severe imbalance" in " ".join(check_data(DataConfig(name=f"npz:{path}")).problems)


def test_check_finds_odd_columns(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": np.arange(300) + 1000, "ward": 4, "age": rng.normal(60, 30, 300)})
    frame["far"] = np.where(np.arange(300) == 7, 1e8, rng.normal(size=300))
    frame.assign(label=np.arange(300) % 2).to_csv(tmp_path / "t.csv", index=False)
    check = check_data(DataConfig(name=f"csv:{tmp_path / 't.csv'}"))
    text = " ".join(check.problems)
    assert 'column "patient" has another whole number in every row' in text
    assert 'column "ward" has one value throughout' in text
    assert 'column "far" has values beyond 1e+06' in text
    assert "columns are not scaled" in text


def test_a_few_copies_are_no_problem(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 2)), columns=["u", "v"])
    pd.concat([frame, frame[:2]]).assign(label=np.arange(302) % 2).to_csv(tmp_path / "t.csv", index=False)
    check = check_data(DataConfig(name=f"csv:{tmp_path / 't.csv'}"))
    assert not any("copies" in problem for problem in check.problems)
    assert "2 training examples are copies" in " ".join(check.notes)


def test_check_of_clean_data_is_ok():
    check = check_data(DataConfig())
    assert check.ok
    assert check.sources[0].shape == (1, 8, 8)
    assert (check.sources[0].train.lowest, check.sources[0].train.highest) == (0, 1)


def test_check_shows_the_difference_of_every_silo(tmp_path):
    for client, columns in {"a": "uv", "b": "uv", "c": "u", "d": "uvw"}.items():
        frame = pd.DataFrame({column: np.arange(4) + ord(client) for column in columns})
        frame.assign(label=["x", "y", "x", "y"] if client != "b" else ["x"] * 4).to_csv(
            tmp_path / f"{client}.csv", index=False
        )
    (tmp_path / "e.csv").write_text("")
    check = check_data(DataConfig(name=f"clients:{tmp_path}"))
    text = " ".join(check.problems)
    assert 'client "c" differs from client "a": it lacks column v' in text
    assert 'client "d" differs from client "a": it adds column w' in text
    assert 'Client "e" cannot be read' in text
    assert [silo.missing for silo in check.silos] == [[], ["y"], [], []]
    for client in "cde":
        (tmp_path / f"{client}.csv").unlink()
    check = check_data(DataConfig(name=f"clients:{tmp_path}"))
    assert 'Client "b" has no examples of y.' in check.problems
    assert check.sources[0].clients == 2


def test_check_finds_examples_held_twice(tmp_path):
    for client in "ab":
        pd.DataFrame({"u": [1, 2], "v": [3, 5], "label": [0, 1]}).to_csv(tmp_path / f"{client}.csv", index=False)
    problems = " ".join(check_data(DataConfig(name=f"clients:{tmp_path}")).problems)
    assert "2 training examples are held by more than one client" in problems


def test_label_noise_makes_a_share_of_the_training_labels_wrong_and_no_other():
    partition = {"name": "iid", "num_clients": 3}
    clean = load_federated(DataConfig(name="digits", limit=300), partition, seed=0)
    noisy = load_federated(DataConfig(name="digits", limit=300, label_noise=0.25), partition, seed=0)
    train = clean.pooled("train")
    assert (train.y != noisy.pooled("train").y).sum() == round(0.25 * len(train))
    for part in ("validation", "test"):
        assert (clean.pooled(part).y == noisy.pooled(part).y).all()
    assert (clean.test.y == noisy.test.y).all()


def test_clients_may_be_tested_on_the_whole_test_set_of_their_source(tmp_path):
    rng = np.random.default_rng(0)
    other = save(tmp_path / "o.npz", rng.random((400, 1, 8, 8)).astype(np.float32), np.arange(400) % 4)
    table = {"sources": ["digits", other], "client_test": "source"}
    data = load_federated(DataConfig(**table), {"name": "iid", "num_clients": 4}, seed=0)
    for client in data.clients:
        rows = np.flatnonzero(data.test_sources == data.client_sources[data.position(client)])
        assert np.array_equal(data.client(client).test.x, data.test.x[rows])
        assert np.array_equal(data.counts("test")[data.position(client)], np.bincount(data.test.y[rows], minlength=10))
    own = load_federated(DataConfig(sources=table["sources"], test=0.0), {"name": "iid", "num_clients": 4}, seed=0)
    assert np.array_equal(own.rows, data.rows)
    single = load_federated(DataConfig(client_test="source"), {"name": "iid", "num_clients": 2}, seed=0)
    assert len(single.client("0").test) == len(single.test)
