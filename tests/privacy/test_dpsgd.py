"""DP-SGD against gradient descent, against a plain loop over the records, and on the project's networks."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import nn

from fedsynth.errors import ConfigError
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.privacy import SampledGaussianEvent, dpsgd
from fedsynth.privacy.dpsgd import DpSgdNoise, DpSgdTraining, Loss, PrivateFit, dp_fit

HUGE = 1e9


def data(n: int = 40, shape: tuple[int, ...] = (1, 8, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return torch.rand(n, *shape, generator=drawn), torch.randint(10, (n,), generator=drawn)


def net(name: str = "cnn", norm: str = "none") -> nn.Module:
    return build_model(ModelSpec(name=name, norm=norm), (1, 8, 8), 10, seed=0)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def fit(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss = F.cross_entropy, lr: float = 0.1, **changes: float
) -> PrivateFit:
    settings = {"clip": 1.0, "noise": 1.0, "examples": len(x), "batch_size": 8, "epochs": 1} | changes
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    return dp_fit(model, x, y, DpSgdTraining(**settings), optimizer, np.random.default_rng(0), loss)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_without_noise_and_clipping_it_is_gradient_descent(name):
    model, plain = net(name), net(name)
    x, y = data()
    result = fit(model, x, y, epochs=3, batch_size=40, lr=0.5, clip=HUGE, noise=0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert (result.steps, result.examples, result.event, result.loss) == (3, 120, None, None)
    assert not torch.allclose(flat(net(name)), flat(plain), atol=1e-3)
    assert torch.allclose(flat(model), flat(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "norm"), [("cnn", "none"), ("cnn", "group"), ("zda_cnn", "group"), ("mlp", "none")])
def test_a_step_is_the_sum_of_clipped_gradients(name, norm):
    model = net(name, norm)
    loop = copy.deepcopy(model)
    x, y = data(10)
    slopes = []
    for row in range(10):
        loop.zero_grad()
        F.cross_entropy(loop(x[row : row + 1]), y[row : row + 1]).backward()
        slopes.append(torch.cat([p.grad.reshape(-1) for p in loop.parameters()]))
    clip = float(torch.stack([slope.norm() for slope in slopes]).median())  # half of them are longer
    total = sum(slope * min(1.0, clip / float(slope.norm())) for slope in slopes)
    fit(model, x, y, batch_size=10, lr=2.0, clip=clip, noise=0)
    assert torch.allclose(flat(model), flat(loop) - 2.0 * total / 10, rtol=1e-4, atol=1e-6)


def test_chunks_do_not_change_the_result(monkeypatch):
    ends = []
    for records in (128, 3):
        monkeypatch.setattr(dpsgd, "CHUNK_RECORDS", records)
        model = net()
        fit(model, *data(), batch_size=20, lr=0.5)
        ends.append(flat(model))
    assert torch.allclose(*ends, atol=1e-6)


def test_noise_has_the_size_it_says_and_empty_batches_take_a_step():
    """All gradients are zero here, so that what moves the parameters is noise alone."""

    def nothing(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 0 * scores.sum()

    model = nn.Linear(200, 100)
    before = flat(model)
    x, y = torch.zeros(50, 200), torch.zeros(50, dtype=torch.int64)
    clip, noise = 0.5, 3.0
    result = fit(model, x, y, nothing, lr=1.0, batch_size=1, clip=clip, noise=noise)
    assert result.event == SampledGaussianEvent(rate=0.02, noise=3.0, steps=50)
    moved = flat(model) - before
    assert float(moved.std()) == pytest.approx(noise * clip * math.sqrt(50), rel=0.03)
    assert abs(float(moved.mean())) < 4 * noise * clip * math.sqrt(50 / len(moved))


def test_batches_are_poisson_samples():
    model = nn.Linear(2, 2)
    x, y = torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.int64)
    result = fit(model, x, y, epochs=3, batch_size=30)
    assert result.steps == 3 * 34
    assert result.examples == pytest.approx(34 * 3 * 30, abs=4 * math.sqrt(34 * 3 * 30))
    assert result.examples != 34 * 3 * 30


@pytest.mark.parametrize(
    ("n", "batch", "rate", "steps"), [(0, 8, 0.0, 0), (5, 8, 1.0, 2), (8, 8, 1.0, 2), (9, 8, 8 / 9, 4)]
)
def test_steps_and_rates(n, batch, rate, steps):
    model = nn.Linear(3, 2)
    x, y = torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)
    result = fit(model, x, y, epochs=2, batch_size=batch)
    assert result.event == SampledGaussianEvent(rate=rate, noise=1, steps=steps)


def test_batch_norm_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r'BatchNorm2d.*model.norm = "group"'):
        fit(net("zda_cnn", "batch"), *data())


def test_frozen_parameters_stay():
    model = net("mlp")
    first = next(iter(model.parameters()))
    first.requires_grad_(False)
    before = first.clone()
    fit(model, *data())
    assert torch.equal(first, before)


def test_a_broken_record_does_not_break_the_model():
    x, y = data()
    x[3] = math.nan
    model = net("mlp")
    fit(model, x, y, batch_size=40)
    assert torch.isfinite(flat(model)).all()


@pytest.mark.parametrize("wrong", [{"clip": 0}, {"clip": math.inf}, {"noise": -1}, {"noise": math.nan}])
def test_a_clip_or_noise_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        DpSgdNoise(**({"clip": 1.0, "noise": 1.0} | wrong))
