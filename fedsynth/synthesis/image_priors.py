"""What is known of inputs before any network is asked: terms that an inversion can add, and all are off by default.

DeepInversion (Yin et al. 2020, eq. 3) has natural images smooth and recognised wherever they lie. That images of one
class shall differ is in the way of contrastive model inversion (Fang et al. 2021). Deviations: absolute differences in
place of the norm of all of them, so that the term is a sum over images; the shifts come in a fixed order that begins
anywhere in a window and leaves none of it out, so that no draw is needed; likeness is of pixels, not of features.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsynth.errors import ConfigError


@dataclass(frozen=True)
class Priors:
    """Weights of the terms; that of the mean cross-entropy is 1."""

    variation: float = 0.0  # total variation: the sum of differences between neighbouring pixels of an image
    likeness: float = 0.0  # how much images of one class are alike: the mean cosine of their pixels
    shifts: int = 0  # the network sees the images moved by up to so many pixels, in each step elsewhere

    def check(self, x: Tensor) -> None:
        """Refuse inputs that have no neighbouring pixels."""
        if (self.variation or self.shifts) and x.dim() != 4:
            raise ConfigError("Total variation and shifts are about images: set variation = 0 and shifts = 0.")


NO_PRIORS = Priors()


def priors_of(x: Tensor, labels: Tensor, priors: Priors) -> Tensor:
    """The terms, weighted and summed, as means over the images."""
    total = x.new_zeros(())
    if priors.variation:
        total = total + priors.variation * total_variation(x)
    if priors.likeness:
        total = total + priors.likeness * likeness(x, labels)
    return total


def total_variation(x: Tensor) -> Tensor:
    """Absolute differences between neighbouring pixels, summed over an image; the mean over images (n, c, h, w)."""
    down, across = x.diff(dim=-2).abs().sum(), x.diff(dim=-1).abs().sum()
    return (down + across) / len(x)


def likeness(x: Tensor, labels: Tensor) -> Tensor:
    """The mean cosine between two inputs of one class, measured from the mean of all inputs; 0 without any pair."""
    flat = x.flatten(1)
    ways = F.normalize(flat - flat.mean(0), dim=1)
    pairs = (labels[:, None] == labels[None, :]).to(x.dtype).fill_diagonal_(0)
    return (ways @ ways.T * pairs).sum() / pairs.sum().clamp_min(1)


def shifted(x: Tensor, step: int, most: int) -> Tensor:
    """The images moved round by up to `most` pixels each way; every place of the window comes once in its turn."""
    side = 2 * most + 1
    # A stride that has no factor in common with the number of places goes through all of them.
    place = step * (side * most + 1) % (side * side)
    return torch.roll(x, (place // side - most, place % side - most), dims=(-2, -1))
