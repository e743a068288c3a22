"""GANs: any image shape, penalties against autograd, the same numbers whenever and wherever training is interrupted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data.federated import FederatedData
from fedsynth.errors import UserError
from fedsynth.learning.effort import measured_effort
from fedsynth.synthesis import gan_training
from fedsynth.synthesis.gan import (
    Gan,
    GanSpec,
    TrainingImages,
    build_gan,
    generator_weights,
    load_gan,
    load_generator,
    make_images,
    mean_distance,
)
from fedsynth.synthesis.gan_training import GanTraining, ImageBatches, gradient_penalty, r1_penalty, train_gan

KINDS = ["wgan_gp", "r1", "vae"]
SMALL = GanTraining(batch_size=6)
TRAINED = {
    "wgan_gp": GanTraining(),
    "r1": GanTraining(batch_size=64, critic_steps=1),
    "vae": GanTraining(batch_size=64, betas=(0.9, 0.999)),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def spec(kind: str = "wgan_gp", conditional: bool = True) -> GanSpec:
    return GanSpec(kind=kind, conditional=conditional, channels=4, latent=5)  # type: ignore[arg-type]


def images(n: int, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(n)
    return torch.rand((n, *shape), generator=draw), torch.arange(n) % classes


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.booleans(),
    st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 19)),
    st.integers(1, 9),
)
def test_any_shape_and_any_number_of_images(kind, conditional, shape, n):
    how = spec(kind, conditional)
    gan = build_gan(how, shape, 3, seed=1)
    x, y = images(n, shape)
    fit = train_gan(gan, TrainingImages(x, y), SMALL, 2, rng())
    assert fit.steps == 2
    assert math.isfinite(fit.generator_loss + fit.critic_loss)
    made = make_images(gan.generator, how, y if conditional else None, rng(), None if conditional else n)
    assert made.shape == x.shape
    assert 0 <= made.min() <= made.max() <= 1


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 65, 40)])
def test_usual_and_large_images(shape):
    gan = build_gan(spec(), shape, 3, seed=0)
    assert math.isfinite(train_gan(gan, TrainingImages(*images(4, shape)), SMALL, 1, rng()).critic_loss)


def critic_of(conditional: bool) -> tuple[Gan, torch.Tensor, torch.Tensor | None]:
    gan = build_gan(spec(conditional=conditional), (2, 9, 6), 3, seed=2).double()
    x, y = images(5, (2, 9, 6))
    return gan, x.double(), y if conditional else None


@pytest.mark.parametrize("conditional", [True, False])
def test_penalties_and_their_gradients_are_autograds(conditional):
    """The chain of transposed convolutions against the gradient of a gradient, in float64."""
    gan, x, y = critic_of(conditional)
    made, mix = 1 - x, torch.linspace(0.1, 0.9, 5, dtype=torch.float64).view(-1, 1, 1, 1)
    weights = list(gan.critic.parameters())

    def slope_of(at: torch.Tensor) -> torch.Tensor:
        at = at.clone().requires_grad_()
        return torch.autograd.grad(gan.critic(at, y).sum(), at, create_graph=True)[0].flatten(1)

    by_hand = (slope_of(mix * x + (1 - mix) * made).square().sum(1).sqrt() - 1) ** 2
    pairs = [
        (gradient_penalty(gan.critic, x, made, y, mix), by_hand),
        (r1_penalty(gan.critic, x, y), slope_of(x).square().sum(1)),
    ]
    for ours, autograds in pairs:
        assert torch.allclose(ours, autograds, rtol=1e-10)
        one, other = (torch.autograd.grad(p.sum(), weights, allow_unused=True) for p in (ours, autograds))
        for a, b in zip(one, other, strict=True):
            zero = torch.zeros((), dtype=torch.float64)
            assert torch.allclose(zero if a is None else a, zero if b is None else b, rtol=1e-8, atol=1e-12)


def test_a_single_channel_is_made_by_the_same_transposed_convolution():
    generator = build_gan(spec(), (1, 13, 8), 3, seed=0).double().generator
    z, y = torch.randn((4, 5), generator=torch.Generator().manual_seed(0)).double(), torch.tensor([0, 1, 2, 2])
    x = generator.linear(torch.cat([z, F.one_hot(y, 3)], 1)).view(4, 7, 4, -1).permute(0, 3, 1, 2)
    assert generator.gains is not None
    x = x / x.square().mean(1, keepdim=True).sqrt() * generator.gains[0](y)[:, :, None, None]
    wanted = generator.doublings[0](x.relu())[:, :, :13, :].sigmoid()
    assert torch.allclose(generator(z, y), wanted, atol=1e-6)


def test_a_critics_step_by_hand(monkeypatch):
    """One step of algorithm 1, lines 8 to 12, with separate passes, autograd's penalty and PyTorch's plain Adam."""
    training = GanTraining(batch_size=4, critic_steps=1, critic_lr=0.01)
    gan, twin = (build_gan(spec(), (1, 8, 8), 3, seed=0).double() for _ in range(2))
    x, y = images(7)
    seen: dict[str, torch.Tensor] = {}
    inner = gan_training._AdversarialSteps.critic_loss

    def noted(self, real, made, labels, draw):
        seen.update(real=real, made=made, labels=labels, mix=torch.rand((4, 1, 1, 1), generator=draw.clone_state()))
        return inner(self, real, made, labels, draw)

    monkeypatch.setattr(gan_training._AdversarialSteps, "critic_loss", noted)
    train_gan(gan, TrainingImages(x, y), training, 1, rng())
    real, made, labels, mix = (seen[name] for name in ("real", "made", "labels", "mix"))
    at = (mix * real + (1 - mix) * made).requires_grad_()
    (slope,) = torch.autograd.grad(twin.critic(at, labels).sum(), at, create_graph=True)
    penalty = 10 * (slope.flatten(1).norm(dim=1) - 1).square()
    (twin.critic(made, labels) - twin.critic(real, labels) + penalty).mean().backward()
    torch.optim.Adam(twin.critic.parameters(), lr=0.01, betas=(0.0, 0.9)).step()
    for name, entry in gan.critic.state_dict().items():
        assert torch.allclose(entry, twin.critic.state_dict()[name], rtol=0, atol=1e-9), name


def test_r1_is_taken_in_one_of_eight_critic_steps(monkeypatch):
    taken = []
    inner = gan_training.r1_penalty
    monkeypatch.setattr(gan_training, "r1_penalty", lambda *a: taken.append(1) or inner(*a))
    gan = build_gan(spec("r1"), (1, 8, 8), 3, seed=0)
    training = GanTraining(batch_size=2, critic_steps=2)
    fit = train_gan(gan, TrainingImages(*images(6)), training, 4, rng())
    assert len(taken) == 1
    train_gan(
        gan, TrainingImages(*images(6)), training, 5, rng(), fit.moments
    )  # critic steps 8 to 17: the 8th and the 16th
    assert len(taken) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep_moments", [True, False])
def test_an_averaged_generator_follows_the_one_that_learns(kind, keep_moments):
    """Exactly m ← k m + (1 − k) w with k = min(average, n / (n + 10)) after n steps, wherever they were taken."""
    gan = build_gan(spec(kind).model_copy(update={"averaged": True}), (1, 8, 8), 3, seed=0)
    training = GanTraining(batch_size=4, critic_steps=1, average=0.15)
    assert gan.learner is not None
    weight = gan.learner.linear.weight
    moments, numbers, mean = None, rng(), weight.detach().clone()
    assert torch.equal(gan.generator.linear.weight, mean)
    for step in (1, 2, 3):
        fit = train_gan(gan, TrainingImages(*images(6)), training, 1, numbers, moments)
        moments = fit.moments if keep_moments else None
        mean = mean.lerp(weight.detach(), 1 - min(0.15, step / (step + 10)))
        assert torch.allclose(gan.generator.linear.weight, mean, atol=1e-6)
    assert not torch.allclose(mean, weight, atol=1e-4)
    assert {name.split(".")[0] for name in gan.weights()} == {"generator", "learner", "critic", "followed"}


def test_by_default_only_r1_is_averaged():
    assert [kind for kind in KINDS if build_gan(spec(kind), (1, 8, 8), 3, seed=0).learner is not None] == ["r1"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_visits_with_moments_are_one(kind):
    x, y = images(11)
    whole, parts = (build_gan(spec(kind), (1, 8, 8), 3, seed=0) for _ in range(2))
    straight = train_gan(whole, TrainingImages(x, y), SMALL, 9, rng())
    numbers = rng()
    first = train_gan(parts, TrainingImages(x, y), SMALL, 4, numbers)
    carried = load_gan(spec(kind), (1, 8, 8), 3, parts.weights())  # as over a network
    second = train_gan(carried, TrainingImages(x, y), SMALL, 5, numbers, first.moments)
    assert same(whole.weights(), carried.weights())
    assert same(straight.moments, second.moments)
    anew = load_gan(spec(kind), (1, 8, 8), 3, parts.weights())
    train_gan(anew, TrainingImages(x, y), SMALL, 5, rng(), None)
    assert not same(whole.weights(), anew.weights())


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other, third = (build_gan(spec(), (1, 8, 8), 3, seed=s) for s in (1, 1, 2))
    train_gan(one, TrainingImages(*images(5)), SMALL, 1, rng())
    train_gan(other, TrainingImages(*images(5)), SMALL, 1, rng())
    make_images(one.generator, spec(), torch.arange(3), rng())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(one.weights(), other.weights())
    assert not same(build_gan(spec(), (1, 8, 8), 3, seed=1).weights(), third.weights())


def test_weights_travel():
    gan = build_gan(spec(), (1, 8, 8), 3, seed=1)
    weights = gan.weights()
    assert {name.split(".")[0] for name in weights} == {"generator", "critic"}
    labels = torch.arange(3).repeat(3)
    made = make_images(gan.generator, spec(), labels, rng(4))
    part = generator_weights(weights)
    assert 0 < len(part) < len(weights)
    drawn = make_images(load_generator(spec(), (1, 8, 8), 3, part), spec(), labels, rng(4), batch=2)
    assert torch.allclose(made, drawn, atol=1e-6)
    assert same(load_gan(spec(), (1, 8, 8), 3, weights).weights(), weights)
    with pytest.raises(UserError, match="build the model they were made with"):
        load_generator(spec(), (1, 16, 16), 3, part)


@pytest.mark.parametrize("balanced", [True, False])
def test_labels_that_are_not_known_are_never_used(balanced, monkeypatch):
    gan = build_gan(spec(), (1, 8, 8), 6, seed=0)
    asked: set[int] = set()
    inner = type(gan.generator).forward

    def noted(self, z, y=None):
        asked.update(y.tolist())
        return inner(self, z, y)

    monkeypatch.setattr(type(gan.generator), "forward", noted)
    training = GanTraining(batch_size=16, balanced=balanced)
    x, _ = images(40)
    y = torch.tensor([0, 3, 4, 4] * 10)
    train_gan(gan, TrainingImages(x, y), training, 6, rng())
    assert asked == {0, 3, 4}
    asked.clear()
    known = torch.tensor([True, True, False, True, False, False])
    train_gan(gan, TrainingImages(x, y, known), training, 6, rng())
    assert asked == ({0, 1, 3} if balanced else {0, 3})  # class 1 is known of others, and has no image here


def test_balanced_batches_and_their_labels_belong_together():
    gan = build_gan(spec(), (1, 8, 8), 3, seed=0)
    y = torch.tensor([2] * 90 + [0] * 9 + [1])
    x = (y / 2).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    draw = torch.Generator().manual_seed(0)
    for balanced in (True, False):
        found = ImageBatches(gan, TrainingImages(x, y), balanced)
        batch, labels = found.real(600, draw)
        assert labels is not None
        assert torch.equal(batch[:, 0, 0, 0] * 2, labels.float())
        shares = torch.bincount(labels, minlength=3) / 600
        wanted = torch.tensor([1 / 3, 1 / 3, 1 / 3] if balanced else [0.09, 0.01, 0.9])
        assert torch.allclose(shares, wanted, atol=0.07)


def test_effort_is_counted():
    with measured_effort() as effort:
        train_gan(
            build_gan(spec(), (1, 8, 8), 3, 0),
            TrainingImages(*images(5)),
            GanTraining(batch_size=4, critic_steps=3),
            2,
            rng(),
        )
    assert effort.examples == 2 * 3 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_is_not_finite_stops_and_is_told(kind):
    gan = build_gan(spec(kind), (1, 8, 8), 3, seed=0)
    with torch.no_grad():
        gan.learning.linear.weight.fill_(math.nan)
    fit = train_gan(gan, TrainingImages(*images(5)), SMALL, 7, rng())
    assert fit.steps == 1
    assert math.isnan(fit.generator_loss)


def test_nothing_to_train_on_changes_nothing():
    gan = build_gan(spec(), (1, 8, 8), 3, seed=0)
    before = gan.weights()
    assert (
        train_gan(gan, TrainingImages(torch.rand(0, 1, 8, 8), torch.zeros(0, dtype=torch.long)), SMALL, 3, rng()).steps
        == 0
    )
    x, y = images(5)
    assert train_gan(gan, TrainingImages(x, y, torch.zeros(3)), SMALL, 3, rng()).steps == 0
    assert same(gan.weights(), before)


def test_mistakes_are_told():
    gan = build_gan(spec(), (1, 8, 8), 3, seed=0)
    x, y = images(5)
    with pytest.raises(UserError, match=r"images of shape \(1, 8, 8\)"):
        train_gan(gan, TrainingImages(x[:, :, 1:], y), SMALL, 1, rng())
    with pytest.raises(UserError, match=r"0\.\.2"):
        train_gan(gan, TrainingImages(x, y + 1), SMALL, 1, rng())
    with pytest.raises(UserError, match="needs the labels"):
        make_images(gan.generator, spec(), None, rng(), 4)
    with pytest.raises(UserError, match="makes images"):
        build_gan(spec(), (64,), 3, seed=0)


def test_mean_distance_by_hand():
    made = torch.tensor([0.0, 0.0, 6.0]).view(3, 1, 1, 1)
    assert mean_distance(made) == pytest.approx(4)  # distances 0, 6 and 6
    assert math.isnan(mean_distance(made[:1]))


@pytest.mark.parametrize("kind", KINDS)
def test_digits_come_nearer_to_real_ones(kind, digits: FederatedData):
    """After a few seconds the mean image of each class is nearer to its own class's real mean than to any other's."""
    x, y = (torch.cat(part) for part in zip(*(digits.client(c).train.tensors() for c in digits.clients), strict=True))
    how = GanSpec(kind=kind, channels=8, latent=16)
    gan = build_gan(how, tuple(x.shape[1:]), 10, seed=0)
    train_gan(gan, TrainingImages(x, y), TRAINED[kind], 150, rng())
    labels = torch.arange(10).repeat_interleave(20)
    made = make_images(gan.generator, how, labels, rng())
    means = torch.stack([made[labels == c].mean(0).flatten() for c in range(10)])
    real = torch.stack([x[y == c].mean(0).flatten() for c in range(10)])
    right = torch.cdist(F.normalize(means, dim=1), F.normalize(real, dim=1)).argmin(1) == torch.arange(10)
    assert right.sum() >= 9
