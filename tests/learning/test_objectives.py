"""Local objectives: their losses and gradients against the papers' formulas, written out naively in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.learning.models import Classifier, ModelSpec, build_model
from fedsynth.learning.objectives import (
    Contrastive,
    ControlVariates,
    Dynamic,
    LogitAdjusted,
    MeanMixup,
    Proximal,
    class_log_prior,
    contrast,
)
from fedsynth.learning.training import Objective
from fedsynth.learning.weights import weights_of

TINY = ModelSpec(name="mlp", hidden=(5,))
CNN = ModelSpec(name="zda_cnn", channels=(2, 3))


def net_of(spec: ModelSpec, seed: int) -> Classifier:
    shape = (1, 8, 8) if spec.name != "mlp" else (4,)
    return build_model(spec, shape, 3, seed).double()


def some_batch(spec: ModelSpec, n: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    shape = (1, 8, 8) if spec.name != "mlp" else (4,)
    x = torch.rand(n, *shape, generator=draw, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=draw)


def gradients(net: nn.Module, objective: Objective, x: Tensor, y: Tensor) -> list[Tensor]:
    """As the training loop takes them."""
    net.zero_grad()
    objective.loss(net, x, y).backward()
    objective.correct_gradients(net)
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def by_differences(net: nn.Module, value: Callable[[], float], step: float = 1e-6) -> list[Tensor]:
    """The gradient of `value` in the net's parameters, by central differences."""
    result = []
    with torch.no_grad():
        for parameter in net.parameters():
            slope = torch.zeros_like(parameter)
            for index in np.ndindex(*parameter.shape):
                old = parameter[index].item()
                parameter[index] = old + step
                up = value()
                parameter[index] = old - step
                down = value()
                parameter[index] = old
                slope[index] = (up - down) / (2 * step)
            result.append(slope)
    return result


def agree(got: list[Tensor], expected: list[Tensor], tolerance: float = 1e-7) -> bool:
    return all(torch.allclose(a, b, atol=tolerance) for a, b in zip(got, expected, strict=True))


def cross_entropy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return -torch.log_softmax(net(x), 1)[torch.arange(len(y)), y].mean().item()


def squared_norm(net: nn.Module, reference: dict[str, Tensor]) -> float:
    return float(sum(((p - reference[name]) ** 2).sum() for name, p in net.named_parameters()))


def random_like(net: nn.Module, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draw, dtype=torch.float64) for name, p in net.named_parameters()}


# -- penalties ------------------------------------------------------------------------------------------------------


def test_proximal_gradient_is_that_of_half_mu_times_the_squared_norm() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    reference = weights_of(net_of(TINY, 2))
    got = gradients(net, Proximal(net, reference, mu=0.7), x, y)
    assert agree(got, by_differences(net, lambda: cross_entropy(net, x, y) + 0.7 / 2 * squared_norm(net, reference)))


def test_proximal_term_is_zero_at_the_received_weights() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    plain = gradients(net, Proximal(net, weights_of(net), mu=0.0), x, y)
    assert agree(gradients(net, Proximal(net, weights_of(net), mu=5.0), x, y), plain, tolerance=0)


def test_dynamic_gradient_is_that_of_the_regularised_loss() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    reference, linear = weights_of(net_of(TINY, 2)), random_like(net, 3)

    def value() -> float:
        inner = float(sum((linear[name] * p).sum() for name, p in net.named_parameters()))
        return cross_entropy(net, x, y) - inner + 0.3 / 2 * squared_norm(net, reference)

    assert agree(gradients(net, Dynamic(net, reference, linear, alpha=0.3), x, y), by_differences(net, value))


def test_control_variates_add_the_servers_and_take_away_the_clients() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    server, own = random_like(net, 3), random_like(net, 4)
    plain = by_differences(net, lambda: cross_entropy(net, x, y))
    expected = [g - own[n] + server[n] for g, (n, _) in zip(plain, net.named_parameters(), strict=True)]
    assert agree(gradients(net, ControlVariates(net, server, own), x, y), expected)


def test_penalties_skip_parameters_without_a_gradient() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    reference = weights_of(net_of(TINY, 2))
    net.body.requires_grad_(False)
    got = gradients(net, Proximal(net, reference, mu=1.0), x, y)
    net.requires_grad_(True)
    assert agree(got, gradients(net, Proximal(net, reference, mu=1.0), x, y)[-2:])


# -- MOON -----------------------------------------------------------------------------------------------------------


def naive_contrast(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> float:
    total = 0.0
    for one, near, far in zip(z.numpy(), towards.numpy(), away.numpy(), strict=True):

        def similarity(other: np.ndarray, one: np.ndarray = one) -> float:
            return float(one @ other / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-8))

        up = np.exp(similarity(near) / temperature)
        total += -np.log(up / (up + np.exp(similarity(far) / temperature)))
    return total / len(z)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_contrast_is_the_papers_formula(temperature: float) -> None:
    draw = torch.Generator().manual_seed(0)
    z, near, far = (torch.randn(5, 7, generator=draw, dtype=torch.float64) for _ in range(3))
    assert contrast(z, near, far, temperature).item() == pytest.approx(naive_contrast(z, near, far, temperature))


def test_contrast_does_not_overflow_at_a_small_temperature() -> None:
    z = torch.eye(2)
    assert contrast(z, z, -z, 1e-3).item() == 0
    assert contrast(z, -z, z, 1e-3).item() == pytest.approx(2000)


@pytest.mark.parametrize("spec", [TINY, CNN], ids=["mlp", "zda_cnn"])
def test_contrastive_loss_and_gradient(spec: ModelSpec) -> None:
    net, received, previous = (net_of(spec, seed) for seed in (1, 2, 3))
    x, y = some_batch(spec)
    objective = Contrastive(received, previous, mu=2.0, temperature=0.5)
    received_before = weights_of(received)

    def value() -> float:
        with torch.no_grad():
            z = net.body(x)
            term = naive_contrast(z, received.body(x), previous.body(x), 0.5)
        return cross_entropy(net, x, y) + 2.0 * term

    assert objective.loss(net, x, y).item() == pytest.approx(value())
    got = gradients(net, objective, x, y)
    # ReLU and max-pool have kinks: a few differences may straddle one.
    assert agree(got, by_differences(net, value), tolerance=1e-5)
    assert all(torch.equal(entry, received_before[name]) for name, entry in weights_of(received).items())
    assert all(p.grad is None for p in received.parameters())


def test_contrast_with_no_previous_model_is_cross_entropy() -> None:
    net, x, y = net_of(TINY, 1), *some_batch(TINY)
    loss = Contrastive(net_of(TINY, 2), None, mu=2.0, temperature=0.5).loss(net, x, y)
    assert torch.equal(loss, F.cross_entropy(net(x), y))


# -- FedMix ---------------------------------------------------------------------------------------------------------


def naive_mixup(net: nn.Module, x: Tensor, y: Tensor, image: Tensor, label: Tensor, ratio: float) -> Tensor:
    """Yoon et al. 2021, algorithm 3, one example at a time with the full Jacobian of the scores in the input."""
    total = torch.zeros((), dtype=torch.float64)
    for example, target in zip(x, y, strict=True):
        point = (1 - ratio) * example

        def score(p: Tensor) -> Tensor:
            return net(p[None])[0]

        jacobian = torch.autograd.functional.jacobian(score, point, create_graph=True).reshape(3, -1)
        log_p = torch.log_softmax(score(point), 0)
        error = log_p.exp() - F.one_hot(target, 3)  # ∂ℓ/∂scores
        slope = (1 - ratio) * (error @ jacobian)  # ∂ of the first term / ∂x, at (1−λ)x
        own, others = (1 - ratio) * -log_p[target], ratio * -(label * log_p).sum()
        total = total + own + others + ratio * (slope * image.reshape(-1)).sum()
    return total / len(y)


@pytest.mark.parametrize("spec", [TINY, CNN], ids=["mlp", "zda_cnn"])
@pytest.mark.parametrize("ratio", [0.05, 0.4])
def test_mean_mixup_is_the_first_order_formula_example_by_example(spec: ModelSpec, ratio: float) -> None:
    net, (x, y) = net_of(spec, 1).eval(), some_batch(spec)
    images, labels = some_batch(spec, 4)[0].flip(0), torch.softmax(torch.arange(12.0).double().reshape(4, 3).cos(), 1)
    row = int(np.random.default_rng(8).integers(4))
    objective = MeanMixup(images, labels, ratio, np.random.default_rng(8))
    loss = objective.loss(net, x, y)
    expected = naive_mixup(net, x, y, images[row], labels[row], ratio)
    assert loss.item() == pytest.approx(expected.item())
    got = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    wanted = torch.autograd.grad(expected, list(net.parameters()), allow_unused=True)
    for one, other in zip(got, wanted, strict=True):
        zero = torch.zeros(())
        assert torch.allclose(zero if one is None else one, zero if other is None else other, atol=1e-9)


def test_mean_mixup_takes_one_derivative_of_the_size_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public versions build a B×B Jacobian of the batch's losses in the batch's inputs."""
    shapes = []
    plain = torch.autograd.grad

    def watched(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
        result = plain(*args, **kwargs)  # type: ignore[arg-type]
        shapes.append([tuple(one.shape) for one in result])
        return result

    monkeypatch.setattr(torch.autograd, "grad", watched)
    net, (x, y) = net_of(TINY, 1), some_batch(TINY, 32)
    MeanMixup(x[:2], torch.full((2, 3), 1 / 3).double(), 0.1, np.random.default_rng(0)).loss(net, x, y)
    assert shapes == [[(32, 4)]]


def test_mean_mixup_approaches_true_mixup() -> None:
    """To first order in λ it is the loss of mixed images and labels: the error falls with λ²."""
    net, (x, y) = net_of(TINY, 1), some_batch(TINY)
    image, label = torch.full((1, 4), 0.5).double(), torch.tensor([[0.2, 0.3, 0.5]]).double()
    errors = []
    for ratio in (0.02, 0.01):
        mixed = torch.log_softmax(net((1 - ratio) * x + ratio * image), 1)
        own = -mixed[torch.arange(len(y)), y]
        true = ((1 - ratio) * own + ratio * -(label * mixed).sum(1)).mean()
        loss = MeanMixup(image, label, ratio, np.random.default_rng(0)).loss(net, x, y)
        errors.append(abs((true - loss).item()))
    assert errors[1] < errors[0] / 3


def test_mean_mixup_leaves_the_batch_alone() -> None:
    net, (x, y) = net_of(TINY, 1), some_batch(TINY)
    before = x.clone()
    MeanMixup(x[:1], torch.full((1, 3), 1 / 3).double(), 0.3, np.random.default_rng(0)).loss(net, x, y).backward()
    assert torch.equal(x, before)
    assert not x.requires_grad


# -- logit adjustment -------------------------------------------------------------------------------------------------


def test_log_prior_is_the_logarithm_of_the_smoothed_shares() -> None:
    labels = np.array([0, 0, 0, 2])
    expected = np.log(np.array([3.5, 0.5, 1.5]) / 5.5)
    assert np.allclose(class_log_prior(labels, 3, smoothing=0.5).numpy(), expected)
    assert torch.equal(class_log_prior(labels, 3), class_log_prior(torch.from_numpy(labels), 3))
    assert class_log_prior(labels, 3).dtype == torch.float32


def test_log_prior_stays_finite_where_classes_are_absent() -> None:
    prior = class_log_prior(np.zeros(60_000, dtype=np.int64), 1000)
    assert torch.isfinite(prior).all()
    assert prior[0] == prior.max()
    assert prior[1:].max() < -10
    nobody = class_log_prior(np.zeros(0, dtype=np.int64), 4)
    assert torch.allclose(nobody.exp(), torch.full((4,), 0.25))
    with pytest.raises(ValueError, match="smoothing = 0"):
        class_log_prior(np.zeros(3, dtype=np.int64), 4, smoothing=0)


@pytest.mark.parametrize("spec", [TINY, CNN], ids=["mlp", "zda_cnn"])
@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_logit_adjustment_multiplies_each_odds_by_the_prior_to_the_tau(spec: ModelSpec, tau: float) -> None:
    net, (x, y) = net_of(spec, 1).eval(), some_batch(spec)
    prior = torch.tensor([0.7, 0.299, 0.001]).double()

    def value() -> float:
        with torch.no_grad():
            weighed = torch.exp(net(x)) * prior**tau
        return -torch.log(weighed[torch.arange(len(y)), y] / weighed.sum(1)).mean().item()

    objective = LogitAdjusted(prior.log(), tau)
    assert objective.loss(net, x, y).item() == pytest.approx(value())
    assert agree(gradients(net, objective, x, y), by_differences(net, value))


def test_logit_adjustment_spares_classes_that_are_absent() -> None:
    """The bias of a class that the data lacks is hardly pushed down; plain cross-entropy pushes it."""
    net, (x, _) = net_of(TINY, 1), some_batch(TINY, 64)
    y = torch.arange(64) % 2
    plain, adjusted = (
        gradients(net, LogitAdjusted(class_log_prior(y, 3).double(), tau), x, y)[-1] for tau in (0.0, 1.0)
    )
    assert plain[2] > 0.1
    assert 0 < adjusted[2] < 1e-4
