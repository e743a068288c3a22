"""A GAN whose critic is trained by DP-SGD, and what that proves."""

from typing import Any

from torch import Tensor

from fedsynth.federation import Client
from fedsynth.privacy import Guarantee
from fedsynth.privacy.dpsgd import DpSgdNoise, dp_rate
from fedsynth.privacy.guarantee import NUMBER_PUBLIC, SampledGaussianEvent
from fedsynth.synthesis.gan import Gan, TrainingImages
from fedsynth.synthesis.gan_private import train_gan_private
from fedsynth.synthesis.gan_training import GanTraining

CALIBRATED = "calibrated noise of a GAN"  # in the private state


def fit_gan_privately(
    client: Client, net: Gan, known: Tensor, training: GanTraining, steps: int, updates: Any, visits: int = 1
) -> Guarantee:
    """Train in place: the critic sees clipped gradients and noise, the generator sees the critic alone.

    `updates` hides records: its noise is given, or keeps so many such visits within its target. `known` must not come
    from the client's records unless a guarantee of its own covers it.
    """
    x, y = client.data.train.tensors()
    critic_steps = max(1, visits * steps * training.critic_steps)
    noise = updates.noise_of(client, CALIBRATED, dp_rate(client.public_size, training.batch_size), critic_steps)
    images, hidden = TrainingImages(x, y, known, client.public_size), DpSgdNoise(clip=updates.clip, noise=noise)
    fit = train_gan_private(net, images, training, steps, hidden, client.noise_rng("gan"))
    return Guarantee(
        mechanism=f"DP-SGD of the critic, gradients clipped to {updates.clip:g}, noise multiplier {noise:.4g}",
        events=(SampledGaussianEvent(rate=fit.rate, noise=noise, steps=fit.critic_steps),),
        unit="record",
        adjacency="add or remove one",
        covered="the weights of critic and generator, and all images generated with them",
        not_covered=NUMBER_PUBLIC,
    )
