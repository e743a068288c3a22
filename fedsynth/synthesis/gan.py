"""Generative adversarial networks (and a VAE in their place) on the data of one holder. The door to this part."""

from fedsynth.synthesis.gan_model import (
    COLLAPSED,
    Gan,
    GanSpec,
    build_gan,
    generator_weights,
    load_gan,
    load_generator,
    make_images,
    mean_distance,
)
from fedsynth.synthesis.gan_private import PrivateGanFit, train_gan_private
from fedsynth.synthesis.gan_training import GanFit, GanTraining, Moments, train_gan

__all__ = [
    "COLLAPSED",
    "Gan",
    "GanFit",
    "GanSpec",
    "GanTraining",
    "Moments",
    "PrivateGanFit",
    "build_gan",
    "generator_weights",
    "load_gan",
    "load_generator",
    "make_images",
    "mean_distance",
    "train_gan",
    "train_gan_private",
]
