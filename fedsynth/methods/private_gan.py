"""A GAN whose critic is trained by DP-SGD, and what that proves."""

from __future__ import annotations

from torch import Tensor

from fedsynth.federation import Client
from fedsynth.methods.protection import SAFE, Protection
from fedsynth.privacy import Guarantee, sampled_gaussian_noise
from fedsynth.privacy.guarantee import SampledGaussianEvent
from fedsynth.synthesis.gan import Gan, GanTraining, train_gan_private


def private_gan_fit(
    client: Client,
    net: Gan,
    x: Tensor,
    y: Tensor,
    known: Tensor,
    training: GanTraining,
    steps: int,
    protection: Protection,
) -> Guarantee:
    """Train in place: the critic sees clipped gradients and noise, the generator sees the critic alone.

    With `protection.target` the noise is what keeps this one training within it. `known` must not come from the
    client's records unless a guarantee of its own covers it.
    """
    noise = protection.noise
    if noise is None:
        assert protection.target is not None
        rate = min(1.0, training.batch_size / max(1, len(x)))
        critic_steps = max(1, steps * training.critic_steps)
        noise = sampled_gaussian_noise(protection.target, protection.delta, rate, critic_steps) * SAFE
    fit = train_gan_private(
        net, x, y, training, steps, protection.clip, noise, client.rng("gan"), client.noise_rng("gan noise"), known
    )
    return Guarantee(
        mechanism=f"DP-SGD of the critic, gradients clipped to {protection.clip:g}, noise multiplier {noise:.4g}",
        events=(SampledGaussianEvent(rate=fit.rate, noise=noise, steps=fit.critic_steps),),
        unit="record",
        adjacency="add or remove one",
        covered="the weights of critic and generator, and all images made with them",
        not_covered="the number of examples, which decides the sampling rate; who takes part",
    )
