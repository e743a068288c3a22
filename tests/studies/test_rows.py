"""Rows of a comparison: how variants are written, what they set, and which of them are controls of others."""

from __future__ import annotations

from typing import Any

import pytest

from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.studies.rows import Row, plan_rows


def rows_of(*words: str, given: Any = None, controls: bool = False) -> dict[str, Row]:
    return {row.label: row for row in plan_rows(words or None, given, references=False, controls=controls)}


def test_a_word_holds_a_name_a_method_and_settings():
    found = rows_of("fedavg", "secured=feddpms:epsilon=3:form=published", "deep=fedavg:train.lr=0.1:privacy.noise=1")
    assert [(row.label, row.method) for row in found.values()] == [
        ("fedavg", "fedavg"),
        ("secured", "feddpms"),
        ("deep", "fedavg"),
    ]
    assert found["secured"].settings == {"epsilon": 3, "form": "published"}
    assert found["deep"].sections == {"train": {"lr": 0.1}, "privacy": {"noise": 1}}
    assert found["deep"].settings == {}


def test_the_file_says_the_same_in_a_table():
    given = {
        "plain": "fedavg",
        "secured": {"method": "feddpms", "epsilon": 3, "train": {"lr": 0.1}, "local_data": {"name": "own"}},
    }
    found = rows_of(given=given)
    assert list(found) == ["plain", "secured"]
    assert found["secured"].settings == {"epsilon": 3, "local_data": {"name": "own"}}
    assert found["secured"].sections == {"train": {"lr": 0.1}}
    assert list(rows_of("secured", "moon", given=given)) == ["secured", "moon"], "words choose among the file's rows"
    assert list(rows_of()) == ["fedavg"]


def test_a_row_changes_its_own_settings_and_nothing_else():
    tables: dict[str, Any] = {"method": {"name": "fedprox", "mu": 0.5}, "train": {"rounds": 3, "lr": 1.0}}
    row = rows_of("slow=fedprox:train.lr=0.1")["slow"]
    row.put_into(tables)
    made = make_experiment(tables)
    assert (made.method["mu"], made.train.rounds, made.train.lr) == (0.5, 3, 0.1)
    rows_of("moon")["moon"].put_into(tables)
    assert make_experiment(tables).method == {"name": "moon"}


def test_a_variant_with_the_settings_of_a_control_is_that_control():
    found = rows_of("gandalf", "nothing but noise=gandalf:synthetic=noise", "tau=gandalf:tau=0.5", controls=True)
    assert (found["nothing but noise"].base, found["nothing but noise"].control) == ("gandalf", "noise")
    assert "gandalf: noise" not in found, "it is there already"
    assert found["gandalf: without synthesis"].base == "gandalf"
    assert not found["tau"].control
    assert found["tau: noise"].settings == {"tau": 0.5, "synthetic": "noise"}
    assert (found["tau: noise"].base, found["tau: noise"].folder) == ("tau", "tau-noise")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("=fedavg", "cannot be read as a row"),
        ("feddpms:epsilon=3", "cannot be read as a row"),
        ("moon=fedavg", "moon is another method"),
        ("a/b=fedavg", "cannot be the name of a row"),
        ("x=fedavgg", 'no method "fedavgg"'),
        (f"{'x' * 41}=fedavg", "up to 40 characters"),
    ],
)
def test_what_is_no_row_is_refused(word, said):
    with pytest.raises(ConfigError, match=said):
        rows_of(word)


def test_two_rows_of_a_name_and_rows_without_a_method_are_refused():
    with pytest.raises(ConfigError, match="called"):
        rows_of("a=fedavg", "a=moon")
    with pytest.raises(ConfigError, match="share the folder"):
        rows_of("a b=fedavg", "a-b=moon")
    with pytest.raises(ConfigError, match="must name its method"):
        rows_of(given={"a": {"mu": 3}})
    with pytest.raises(ConfigError, match='"rows" must be a section'):
        rows_of(given=[1])


def test_a_wrong_setting_of_a_row_is_named(tmp_path):
    tables: dict[str, Any] = {}
    rows_of("x=fedprox:muh=1")["x"].put_into(tables)
    with pytest.raises(ConfigError, match='no setting "muh"'):
        make_experiment(tables)
