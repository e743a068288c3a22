"""Numbers of a round in a run's metrics: what a method measures, and whether a step on its samples would help."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedsynth
from fedsynth.data.dataset import Schema
from fedsynth.evaluation.alignment import alignment, gradient
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.recorder import held_out
from fedsynth.experiment.runner import load_data
from fedsynth.federation import State
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.learning.weights import weights_of

PLUGIN = '''
"""A method that measures."""
from fedsynth.api import Federation, MethodConfig, Outcome, State, method
import torch

class MeasuringConfig(MethodConfig):
    """No settings."""

@method("measuring", config=MeasuringConfig)
def measuring(fed: Federation, cfg: MeasuringConfig) -> Outcome:
    """Measures two numbers a round and trains nothing."""
    state = State(model=fed.initial_weights(cfg.model))
    for round in fed.rounds("train", cfg.train.rounds, state):
        if round != 2:
            fed.measure("twice the round", 2 * round)
        fed.measure("nothing", float("nan"))
        samples = torch.rand(10, *fed.schema.shape, generator=torch.Generator().manual_seed(0)), torch.arange(10)
        fed.measure_alignment("alignment", cfg.model, state.model, samples)
    return Outcome(state.model)
'''


def experiment(folder: Path, **sections: Any) -> dict[str, Any]:
    plugin = folder / "measuring_plugin.py"
    plugin.write_text(PLUGIN)
    common = {
        "plugins": [str(plugin)],
        "runs": str(folder),
        "data": {"name": "digits", "limit": 150},
        "partition": {"name": "dirichlet", "num_clients": 3, "alpha": 1.0},
        "model": {"name": "mlp", "hidden": [6]},
        "train": {"rounds": 3},
        "engine": {"workers": 1},
    }
    return common | sections


def test_what_a_method_measures_is_in_the_metrics_of_its_round(tmp_path: Path) -> None:
    result = fedsynth.run("measuring", **experiment(tmp_path))
    assert [row.measured.get("twice the round") for row in result.metrics] == [2.0, None, 6.0]
    assert all("nothing" not in row.measured for row in result.metrics)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["measured"]["twice the round"] == 2.0
    header = (result.path / "metrics.csv").read_text().splitlines()[0]
    assert "measured/twice the round" in header
    assert all(-1 <= row.measured["alignment"] <= 1 for row in result.metrics)
    again = fedsynth.run("measuring", **experiment(tmp_path))
    assert [row.measured for row in again.metrics] == [row.measured for row in result.metrics]


def test_a_run_without_anything_measured_has_no_such_key(tmp_path: Path) -> None:
    result = fedsynth.run("fedavg", **experiment(tmp_path, train={"rounds": 1}))
    assert "measured" not in result.metrics[0].as_dict()


def test_alignment_is_compared_where_a_round_is_evaluated(tmp_path: Path) -> None:
    result = fedsynth.run("measuring", **experiment(tmp_path, evaluation={"every": 2}))
    assert ["alignment" in row.measured for row in result.metrics] == [False, True, False]


@pytest.mark.parametrize(
    ("validation", "evaluation", "looked_at"),
    [
        (0.2, {}, "validation"),
        (0.2, {"clients": 0}, None),
        (0.0, {}, None),
        (0.0, {"test_curve": True}, "test"),
        (0.2, {"clients": 0, "test_curve": True}, "test"),
    ],
)
def test_gradients_are_compared_on_what_the_curves_look_at(
    validation: float, evaluation: dict[str, Any], looked_at: str | None, tmp_path: Path
) -> None:
    split = {"name": "digits", "limit": 150, "validation": validation}
    tables = experiment(tmp_path, data=split, evaluation=evaluation) | {"method": {"name": "fedavg"}, "plugins": []}
    asked = make_experiment(tables)
    data = load_data(asked)
    found = held_out(asked, data)
    expected = {None: None, "test": data.test, "validation": data.pooled("validation")}[looked_at]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert np.array_equal(found.x, expected.x)


def test_alignment_is_the_cosine_of_the_gradients() -> None:
    spec, schema = ModelSpec(name="zda_cnn", channels=(2, 3)), Schema((1, 8, 8), 4)
    net = build_model(spec, schema.shape, schema.classes, seed=1)
    drawn = torch.Generator().manual_seed(2)
    sets = [(torch.rand(n, 1, 8, 8, generator=drawn), torch.arange(n) % 4) for n in (4, 12)]
    net.eval()
    by_hand = []
    for x, y in sets:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        by_hand.append(torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None]).double())
    expected = torch.cosine_similarity(by_hand[0], by_hand[1], dim=0)
    assert alignment(spec, schema, weights_of(net), *sets) == pytest.approx(float(expected), rel=1e-4)
    assert alignment(spec, schema, weights_of(net), sets[0], sets[0]) == pytest.approx(1)
    soft = sets[0][0], F.one_hot(sets[0][1], 4).float()
    assert torch.allclose(gradient(net, *soft), gradient(net, *sets[0]), atol=1e-7)


def test_batches_do_not_change_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_model(ModelSpec(name="mlp", hidden=(5,)), (3,), 3, seed=0)
    x, y = torch.rand(11, 3), torch.arange(11) % 3
    whole = gradient(net, x, y)
    monkeypatch.setattr("fedsynth.evaluation.alignment.BATCH", 4)
    assert torch.allclose(gradient(net, x, y), whole, atol=1e-6)


def test_numbers_of_another_round_or_phase_are_gone(federate: Any) -> None:
    fed = federate()
    seen = []
    for index in fed.rounds("some", 2, State()):
        seen.append(dict(fed.measured))
        fed.measure("index", index)
    for _ in fed.steps("more", 1, State()):
        seen.append(dict(fed.measured))
    assert seen == [{}, {}, {}]
    assert not math.isnan(fed.measured.get("index", 0.0))
