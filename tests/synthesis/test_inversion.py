"""Inputs from models: the same as a plain loop over single inputs, bounded, and with a class in them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsynth.errors import ConfigError
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.synthesis.image_priors import NO_PRIORS as OFF
from fedsynth.synthesis.image_priors import Priors, likeness, shifted
from fedsynth.synthesis.inversion import Inversion, choose_by_consensus, consensus, invert


def network(name: str = "zda_cnn", seed: int = 0) -> nn.Module:
    model = build_model(ModelSpec(name=name, channels=(4, 6)), (1, 8, 8), 5, seed=seed).double()
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=draw) * 0.3)
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=draw) + 0.5)
    return model


def start(n: int, seed: int = 1) -> torch.Tensor:
    return torch.rand((n, 1, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(model: nn.Module, x: torch.Tensor, label: int, how: Inversion) -> torch.Tensor:
    """One input at a time, with PyTorch's own optimisers."""
    model.eval()
    x = x.clone().requires_grad_()
    kind = torch.optim.Adam if how.optimizer == "adam" else torch.optim.SGD
    optimizer = kind([x], lr=how.lr)
    for _ in range(how.steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x[None]), torch.tensor([label])).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(how.low, how.high)
    return x.detach()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_batch_gives_what_a_nested_loop_gives(optimizer):
    how = Inversion(steps=20, lr=0.05, optimizer=optimizer)
    labels = torch.arange(5)
    for seed in range(3):
        model, x = network(seed=seed), start(5, seed)
        made = invert(model, x, labels, how)
        alone = torch.stack([plain(model, x[k], k, how) for k in range(5)])
        assert torch.allclose(made, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 0.4])
def test_batching_does_not_matter(tolerance):
    model, x, labels = network(), start(6), torch.tensor([0, 1, 2, 3, 4, 0])
    how = Inversion(steps=30, tolerance=tolerance)
    parts = [invert(model, x[rows], labels[rows], how) for rows in (slice(0, 1), slice(1, 4), slice(4, 6))]
    assert torch.allclose(invert(model, x, labels, how), torch.cat(parts), rtol=0, atol=1e-12)


def test_the_model_sees_the_class_and_is_left_as_it_was():
    model = network()
    model.train()
    before = {name: entry.clone() for name, entry in model.state_dict().items()}
    labels = torch.arange(5)
    made = invert(model, start(5), labels, Inversion(steps=200, low=-3.0, high=3.0))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items())
    model.eval()
    assert (model(made).argmax(1) == labels).all()
    assert -3 <= made.min() <= made.max() <= 3


def test_converged_inputs_stay_where_they_are():
    model, labels = network(), torch.arange(5)
    how = {"tolerance": 1.0, "low": None, "high": None}
    few, many = (invert(model, start(5), labels, Inversion(steps=n, **how)) for n in (300, 600))
    assert torch.equal(few, many)
    model.eval()
    assert (F.cross_entropy(model(few), labels, reduction="none") < 1.0).all()


def test_statistics_come_nearer_to_the_stored_ones():
    model, labels = network(), torch.arange(5).repeat(8)

    def distance(x: torch.Tensor) -> float:
        total = 0.0
        hooks = []

        def measure(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            nonlocal total
            z = inputs[0]
            total += float((z.mean((0, 2, 3)) - layer.running_mean).square().sum())
            total += float((z.var((0, 2, 3), correction=0).sqrt() - layer.running_var.sqrt()).square().sum())

        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                hooks.append(module.register_forward_pre_hook(measure))
        model.eval()
        with torch.no_grad():
            model(x)
        for hook in hooks:
            hook.remove()
        return total

    free = {"low": None, "high": None}
    without = invert(model, start(40), labels, Inversion(steps=60, **free))
    with_them = invert(model, start(40), labels, Inversion(steps=60, statistics=50.0, **free))
    assert distance(with_them) < 0.5 * distance(without)


def test_the_statistics_term_by_hand():
    """Eq. 3 for one layer and one step: the gradient of ‖μ̄ − μ‖² + ‖σ̄ − σ‖²."""
    layer = nn.BatchNorm2d(2).double()
    layer.running_mean.copy_(torch.tensor([0.3, -0.2]))
    layer.running_var.copy_(torch.tensor([1.5, 0.5]))
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 2).double())
    x = torch.rand(3, 2, 2, 2, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    made = invert(model, x, labels, Inversion(steps=1, lr=0.1, optimizer="sgd", low=None, high=None, statistics=2.0))
    y = x.clone().requires_grad_()
    mean = y.mean((0, 2, 3))
    std = (y.var((0, 2, 3), correction=0) + layer.eps).sqrt()
    term = (mean - layer.running_mean).square().sum() + (std - (layer.running_var + layer.eps).sqrt()).square().sum()
    model.eval()
    (F.cross_entropy(model(y), labels, reduction="sum") + 2.0 * term).backward()
    assert torch.allclose(made, x - 0.1 * y.grad, rtol=0, atol=1e-12)


def test_with_a_mean_the_statistics_weigh_alike_for_any_number_of_images():
    """Eq. 3 for one layer: the gradient of the mean cross-entropy and of ‖μ̄ − μ‖² + ‖σ̄ − σ‖², written out."""
    layer = nn.BatchNorm2d(2).double()
    layer.running_mean.copy_(torch.tensor([0.3, -0.2]))
    layer.running_var.copy_(torch.tensor([1.5, 0.5]))
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 2).double()).eval()
    how = Inversion(steps=1, lr=1.0, optimizer="sgd", low=None, high=None, statistics=1.0, reduction="mean")
    x, labels = torch.rand(3, 2, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 0])
    inside = layer.weight / (layer.running_var + layer.eps).sqrt()
    scores = model(x)
    towards = (scores.softmax(1) - torch.eye(2, dtype=torch.float64)[labels]) @ model[2].weight / 3
    entropy = towards.view(x.shape) * inside.view(1, 2, 1, 1)
    centred = x - x.mean((0, 2, 3), keepdim=True)
    deviation = (centred.square().mean((0, 2, 3)) + layer.eps).sqrt()
    stored = (layer.running_var + layer.eps).sqrt()
    means = 2 * (x.mean((0, 2, 3)) - layer.running_mean) / 12
    spreads = (2 * (deviation - stored) / deviation).view(1, 2, 1, 1) * centred / 12
    expected = x - (entropy + means.view(1, 2, 1, 1) + spreads)
    assert torch.allclose(invert(model, x, labels, how), expected, rtol=0, atol=1e-12)
    twice = invert(model, torch.cat([x, x]), labels.repeat(2), how)
    assert torch.allclose(twice - torch.cat([x, x]), (expected - x).repeat(2, 1, 1, 1) / 2, rtol=0, atol=1e-12)


def test_the_statistics_term_of_several_layers_is_what_autograd_finds():
    """The gradient is written out by hand; twenty steps in float64 through two layers must be autograd's."""
    model, labels = network().double(), torch.arange(5).repeat(4)
    how = Inversion(steps=20, lr=0.05, low=None, high=None, statistics=3.0)
    made = invert(model, start(20).double(), labels, how)

    terms: list[torch.Tensor] = []

    def measure(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0], [0, 2, 3], correction=0)
        stored = (layer.running_var + layer.eps).sqrt()
        terms.append((mean - layer.running_mean).square().sum())
        terms.append(((variance + layer.eps).sqrt() - stored).square().sum())

    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(layers) == 2
    hooks = [layer.register_forward_pre_hook(measure) for layer in layers]
    model.eval()
    x = start(20).double().requires_grad_()
    adam = torch.optim.Adam([x], lr=0.05)
    for _ in range(20):
        adam.zero_grad()
        loss = F.cross_entropy(model(x), labels, reduction="sum") + 3.0 * torch.stack(terms).sum()
        terms.clear()
        loss.backward()
        adam.step()
    for hook in hooks:
        hook.remove()
    assert torch.allclose(made, x, rtol=0, atol=1e-9)


def test_a_model_without_batch_norm_is_told_what_to_do():
    with pytest.raises(ConfigError, match='model.norm = "batch"'):
        invert(network("cnn"), start(5), torch.arange(5), Inversion(steps=1, statistics=1.0))


def test_consensus_by_hand():
    """Three models, two classes, one candidate of each model for each class."""
    p = torch.tensor(
        [
            [[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5]],
            [[0.7, 0.3], [0.1, 0.9], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1], [0.2, 0.8]],
            [[0.4, 0.6], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.9, 0.1]],
        ]
    )
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    scores = consensus(p, labels)
    assert scores.tolist() == pytest.approx([1.6, 2.3, 1.7, 1.3, 2.2, 0.8], abs=1e-6)
    candidates = torch.arange(6.0).reshape(3, 2, 1)
    assert choose_by_consensus(candidates, scores).flatten().tolist() == [4.0, 1.0]


def test_off_by_default_and_priors_by_hand():
    """One step of each term on two images of one class and one of another, against autograd on the formulas."""
    model, labels, x = network("cnn"), torch.tensor([1, 1, 2]), start(3)
    how = {"steps": 1, "lr": 1.0, "optimizer": "sgd", "low": None, "high": None, "reduction": "mean"}
    assert torch.equal(
        invert(model, x, labels, Inversion(**how)), invert(model, x, labels, Inversion(**how, priors=OFF))
    )

    y = x.clone().requires_grad_()
    differences = (y[..., 1:, :] - y[..., :-1, :]).abs().sum() + (y[..., 1:] - y[..., :-1]).abs().sum()
    off = y.flatten(1) - y.flatten(1).mean(0)
    cosine = F.cosine_similarity(off[0], off[1], dim=0)  # the only pair of one class
    (F.cross_entropy(model(y), labels) + 0.1 * differences / 3 + 0.2 * cosine).backward()
    made = invert(model, x, labels, Inversion(**how, priors=Priors(variation=0.1, likeness=0.2)))
    assert torch.allclose(made, x - y.grad, rtol=0, atol=1e-12)

    y = x.clone().requires_grad_()
    up = torch.cat([y[..., 2:, :], y[..., :2, :]], dim=-2)  # the first shift is up and left
    F.cross_entropy(model(torch.cat([up[..., 2:], up[..., :2]], dim=-1)), labels).backward()
    made = invert(model, x, labels, Inversion(**how, priors=Priors(shifts=2)))
    assert torch.allclose(made, x - y.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7])
def test_every_shift_of_the_window_comes_once(most):
    x = torch.zeros(1, 1, 16, 16)
    x[0, 0, 8, 8] = 1
    places = [divmod(int(shifted(x, step, most).flatten().argmax()), 16) for step in range((2 * most + 1) ** 2)]
    window = range(8 - most, 8 + most + 1)
    assert sorted(places) == [(row, column) for row in window for column in window]


def test_unlike_images_of_a_class_have_less_likeness():
    labels = torch.tensor([0, 0, 1, 1])
    one, other = start(1, 1), start(1, 2)
    same, apart = torch.cat([one, one, other, other]), torch.cat([one, other, one, other])
    assert float(likeness(same, labels)) == pytest.approx(1)
    assert float(likeness(apart, labels)) == pytest.approx(-1)
    assert float(likeness(apart, torch.arange(4))) == 0


def test_it_stops_when_the_loss_no_longer_falls_and_not_before():
    model, labels, x = network(), torch.arange(5), start(5)
    common = {"statistics": 1.0, "reduction": "mean"}
    stopped = invert(model, x, labels, Inversion(steps=2000, converged=0.05, **common))
    runs = {steps: invert(model, x, labels, Inversion(steps=steps, **common)) for steps in range(20, 400, 10)}
    taken = [steps for steps, images in runs.items() if torch.equal(images, stopped)]
    assert len(taken) == 1, "whole tens of steps, the same ones as without a stop"
    never = invert(model, x, labels, Inversion(steps=taken[0], converged=1e-9, **common))
    assert torch.equal(never, runs[taken[0]])


def test_priors_of_pixels_are_refused_for_vectors():
    vectors = torch.zeros(3, 4)
    with pytest.raises(ConfigError, match="set variation = 0"):
        invert(nn.Linear(4, 3), vectors, torch.arange(3), Inversion(priors=Priors(shifts=1)))
    assert invert(nn.Linear(4, 3), vectors, torch.arange(3), Inversion(steps=1, priors=OFF)).shape == (3, 4)
