"""Settings of a local training, its optimiser, and the learning rate over the rounds."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from fedsynth.errors import ConfigError
from fedsynth.learning.optimizers import LocalTraining, PlainSGD, learning_rate, make_optimizer


def test_learning_rates_of_the_schedules() -> None:
    rates = [learning_rate("step", 1e-3, round, 50) for round in (1, 10, 11, 20, 21)]
    assert rates == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4]
    assert learning_rate("constant", 0.3, 40, 50) == 0.3
    assert learning_rate("exponential", 1.0, 6, 50) == pytest.approx(0.5**0.5)
    assert learning_rate("exponential", 1.0, 3, 50, step=1, gamma=0.9) == pytest.approx(0.81)
    assert learning_rate("cosine", 1.0, 1, 10) == 1.0
    assert learning_rate("cosine", 1.0, 6, 10) == pytest.approx(0.5)
    assert 0 < learning_rate("cosine", 1.0, 10, 10) < 0.05
    with pytest.raises(ConfigError, match='Did you mean "cosine"'):
        learning_rate("cosin", 1.0, 1, 10)


@settings(max_examples=30)
@given(st.sampled_from(["constant", "step", "exponential", "cosine"]), st.integers(1, 100))
def test_rates_start_at_the_base_and_never_rise(schedule: str, rounds: int) -> None:
    rates = [learning_rate(schedule, 0.1, round, rounds) for round in range(1, rounds + 1)]
    assert rates[0] == 0.1
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))
    assert all(rate > 0 for rate in rates)


def test_settings_are_checked_and_survive_json() -> None:
    given_settings = LocalTraining(epochs=5, optimizer="adam", lr=1e-3, max_grad_norm=1.0)
    assert LocalTraining.model_validate_json(given_settings.model_dump_json()) == given_settings
    for wrong in ({"lr": 0}, {"batch_size": 0}, {"epochs": -1}, {"momentum": 1}, {"optimiser": "sgd"}):
        with pytest.raises(ValidationError):
            LocalTraining(**wrong)
    with pytest.raises(ConfigError, match=r"momentum = 0.5 has no meaning"):
        make_optimizer(nn.Linear(1, 1).parameters(), LocalTraining(optimizer="adam", momentum=0.5))


def test_optimisers_are_fused_and_skip_what_is_not_trained() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    for chosen in ({"optimizer": "sgd", "momentum": 0.5}, {"optimizer": "adam"}, {"optimizer": "adamw"}):
        optimizer = make_optimizer(layer.parameters(), LocalTraining(**chosen))
        assert optimizer.defaults["fused"] is True
        assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_plain_sgd_is_pytorchs_to_the_last_bit() -> None:
    layers = [nn.Linear(5, 3) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours = make_optimizer(layers[0].parameters(), LocalTraining(lr=0.07))
    theirs = torch.optim.SGD(layers[1].parameters(), lr=0.07)
    for step in range(4):
        for layer, optimizer in zip(layers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            layer(torch.full((2, 5), step + 0.3)).square().sum().backward()
            optimizer.step()
    assert isinstance(ours, PlainSGD)
    assert all(torch.equal(a, b) for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True))
