"""Our DP-SGD against Opacus: the same clipped gradients, the same sum, the same step, noise of the same size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.optimizers import DPOptimizer
from torch import nn

from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.privacy import SampledGaussianEvent, epsilon
from fedsynth.privacy.dpsgd import DpSgdTraining, _ClippedSum, dp_fit, poisson_batch

EXAMPLES, LR = 12, 0.5
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # Opacus adds 1e-6 to a norm before it divides by it


def network(name: str) -> nn.Module:
    """As Opacus needs it: its hooks bear no ReLU in place, and its convolutions are right for contiguous inputs only
    (those after the first of a channels_last network get gradients of single records that autograd does not give)."""
    net = build_model(ModelSpec(name=name, norm="group" if name == "zda_cnn" else "none"), (1, 8, 8), 10, seed=0)
    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    return net.to(memory_format=torch.contiguous_format)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.rand(EXAMPLES, 1, 8, 8, generator=draw), torch.randint(10, (EXAMPLES,), generator=draw)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def opacus_step(name: str, rows: np.ndarray, clip: float, expected: int, noise: float = 0.0) -> DPOptimizer:
    """The optimiser after one step of Opacus on these rows; it still holds what it clipped and summed."""
    net = GradSampleModule(network(name))
    sgd = torch.optim.SGD(net.parameters(), lr=LR)
    optimizer = DPOptimizer(sgd, noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=expected)
    x, y = (part[rows] for part in data())
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    return optimizer


def gradient_norms(name: str) -> list[float]:
    net, (x, y) = network(name), data()
    losses = [F.cross_entropy(net(x[k : k + 1]), y[k : k + 1]) for k in range(EXAMPLES)]
    return [float(flat(list(torch.autograd.grad(loss, list(net.parameters())))).norm()) for loss in losses]


@pytest.mark.parametrize("name", ["mlp", "cnn", "zda_cnn"])
def test_clipped_gradients_and_their_sum_are_those_of_opacus(name: str) -> None:
    clip = float(np.median(gradient_norms(name)))  # half of the gradients are longer
    ours = _ClippedSum(network(name), F.cross_entropy, clip)
    for row in range(EXAMPLES):
        one = np.array([row])
        assert torch.allclose(ours(*data(), one).float(), flat_sum(opacus_step(name, one, clip, 1)), **CLOSE)
    every = np.arange(EXAMPLES)
    assert torch.allclose(ours(*data(), every).float(), flat_sum(opacus_step(name, every, clip, EXAMPLES)), **CLOSE)
    assert not torch.allclose(ours(*data(), every).float(), flat_sum(opacus_step(name, every, 1.1 * clip, 1)), **CLOSE)


def flat_sum(optimizer: DPOptimizer) -> torch.Tensor:
    return flat([parameter.summed_grad for parameter in optimizer.params])


@pytest.mark.parametrize("name", ["mlp", "cnn", "zda_cnn"])
def test_a_step_on_a_poisson_batch_is_that_of_opacus(name: str) -> None:
    """The sum is divided by the expected size of a batch, whatever the drawn one is."""
    clip = float(np.median(gradient_norms(name)))
    training = DpSgdTraining(clip=clip, noise=0, examples=EXAMPLES, batch_size=EXAMPLES, epochs=1)
    sampled = training.model_copy(update={"batch_size": 4})
    for settings, seed in ((training, 0), (sampled, 1)):
        model = network(name)
        first_step = _OneStep(torch.optim.SGD(model.parameters(), lr=LR))
        dp_fit(model, *data(), settings, first_step, np.random.default_rng(seed))
        rows = poisson_batch(EXAMPLES, settings.rate, np.random.default_rng(seed))
        theirs = opacus_step(name, rows, clip, settings.batch_size)
        assert torch.allclose(flat(list(model.parameters())), flat(theirs.params), **CLOSE)
    assert len(rows) not in (0, 4)  # so that the two divisors differ


class _OneStep:
    """An optimiser that takes its first step and no other."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.taken = inner, False

    def step(self) -> None:
        if not self.taken:
            self.inner.step()
        self.taken = True


def test_the_noise_is_as_large_as_that_of_opacus() -> None:
    """With a clip near zero what moves the weights is noise alone, over the size of the batch."""
    clip, noise, every = 1e-6, 3.0, np.arange(EXAMPLES)
    training = DpSgdTraining(clip=clip, noise=noise, examples=EXAMPLES, batch_size=EXAMPLES, epochs=1)
    theirs = flat([p.grad for p in opacus_step("zda_cnn", every, clip, EXAMPLES, noise).params])
    gradients = [first_gradient(training), theirs]
    wanted = noise * clip / EXAMPLES
    assert min(map(len, gradients)) > 5000
    for gradient in gradients:
        assert float(gradient.std()) == pytest.approx(wanted, rel=0.05)


def first_gradient(training: DpSgdTraining) -> torch.Tensor:
    model, seen = network("zda_cnn"), list[torch.Tensor]()

    class Seen:
        def step(self) -> None:
            seen.append(flat([p.grad for p in model.parameters() if p.grad is not None]))

    dp_fit(model, *data(), training, Seen(), np.random.default_rng(0))
    return seen[0]


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.02, 500), (0.7, 0.1, 60), (2.0, 0.3, 200)])
def test_an_epsilon_is_that_of_opacus(noise: float, rate: float, steps: int) -> None:
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    theirs = accountant.get_epsilon(1e-5, eps_error=0.005)
    assert epsilon([SampledGaussianEvent(rate=rate, noise=noise, steps=steps)], 1e-5) == pytest.approx(theirs, rel=0.02)
