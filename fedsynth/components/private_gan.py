"""A GAN whose critic is trained by DP-SGD, and what that proves."""

from __future__ import annotations

from torch import Tensor

from fedsynth.components.update_privacy import NUMBER_PUBLIC, Protection, calibrated_noise
from fedsynth.federation import Client
from fedsynth.privacy import Guarantee
from fedsynth.privacy.dpsgd import DpSgdNoise, dp_rate
from fedsynth.privacy.guarantee import SampledGaussianEvent
from fedsynth.synthesis.gan import Gan, TrainingImages
from fedsynth.synthesis.gan_private import train_gan_private
from fedsynth.synthesis.gan_training import GanTraining

CALIBRATED = "calibrated noise of a GAN"  # in the private state


def private_gan_fit(
    client: Client,
    net: Gan,
    x: Tensor,
    y: Tensor,
    known: Tensor,
    training: GanTraining,
    steps: int,
    protection: Protection,
    visits: int = 1,
) -> Guarantee:
    """Train in place: the critic sees clipped gradients and noise, the generator sees the critic alone.

    With `protection.target` the noise is what keeps so many such visits within it. `known` must not come from the
    client's records unless a guarantee of its own covers it.
    """
    noise = protection.noise
    if noise is None:
        critic_steps = max(1, visits * steps * training.critic_steps)
        rate = dp_rate(client.public_size, training.batch_size)
        noise = calibrated_noise(client, CALIBRATED, protection, rate, critic_steps)
    images = TrainingImages(x, y, known, client.public_size)
    hidden = DpSgdNoise(clip=protection.clip, noise=noise)
    fit = train_gan_private(net, images, training, steps, hidden, client.noise_rng("gan"))
    return Guarantee(
        mechanism=f"DP-SGD of the critic, gradients clipped to {protection.clip:g}, noise multiplier {noise:.4g}",
        events=(SampledGaussianEvent(rate=fit.rate, noise=noise, steps=fit.critic_steps),),
        unit="record",
        adjacency="add or remove one",
        covered="the weights of critic and generator, and all images made with them",
        not_covered=NUMBER_PUBLIC,
    )
