"""The ready experiment files for PFL-GAN are valid, and name the letters for what they are."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import load_data

FILES = sorted((Path(__file__).parents[2] / "examples").glob("pfl_*.toml"))
CLIENTS = {"label_skew": [20], "two_data_sets": [10, 10], "letters": [5, 5], "three_data_sets": [3, 3, 3]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_a_valid_experiment(file: Path) -> None:
    experiment = make_experiment(tomllib.loads(file.read_text(encoding="utf-8")))
    assert experiment.method_name == "pfl_gan"
    assert experiment.data.client_test == "source"


def test_there_is_one_for_every_scenario_and_emnist_is_not_said_of_other_letters() -> None:
    assert {file.stem.removeprefix("pfl_") for file in FILES} == {*CLIENTS, "letters_emnist"}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        if "chars74k" in text and "EMNIST" in text:
            assert "not EMNIST" in text or "not\n# EMNIST" in text


@pytest.mark.skipif(not os.environ.get("FEDSYNTH_DATA"), reason="needs the public data sets")
@pytest.mark.parametrize("name", CLIENTS)
def test_the_split_is_the_papers(name: str) -> None:
    file = next(file for file in FILES if file.stem == f"pfl_{name}")
    data = load_data(make_experiment(tomllib.loads(file.read_text(encoding="utf-8"))))
    assert np.bincount(data.client_sources).tolist() == CLIENTS[name]
    counts = data.counts("train")
    few = counts < counts.max() / 2
    assert (few.sum(axis=1) == 3).all()
    if name in ("label_skew", "two_data_sets"):
        assert abs(counts[few] - 15).max() <= 1
        assert abs(counts[~few] - 300).max() <= 1
