"""Augmented copies of images: rotated, shifted and mirrored. They know nothing but the images themselves.

Copies are made for a whole batch at once. They add little that is new: a class is never grown by more than `MOST` times
what it has (GANDALF, section 4.2), or a model learns the few originals by heart.
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field
from torch import Tensor

MOST = 2
"""Copies of a class, at most, for each of its images."""


class Static(BaseModel, frozen=True):
    """How far copies may differ from their originals. Flips are off: they turn b into d, and 2 into no digit at all."""

    rotate: float = Field(15.0, ge=0, le=180, description="largest angle, in degrees, to either side")
    shift: float = Field(0.1, ge=0, le=0.5, description="largest shift, as a share of width and height")
    flip: bool = Field(False, description="mirror every other copy; makes nonsense of digits and letters")
    padding: Literal["edge", "zero"] = Field("edge", description="what moves in from outside: the edge's pixels, or 0")

    def static_augmentation(self) -> "Static":
        """These settings alone, where a method has them among its own."""
        return Static(**{name: getattr(self, name) for name in Static.model_fields})


PLAIN = Static()


def augment(images: Tensor, count: int, rng: np.random.Generator, how: Static = PLAIN) -> Tensor:
    """So many copies of images (n, channels, height, width) of one class, each original used equally often.

    Never more than `MOST` for each original: fewer come back where more are asked for.
    """
    count = min(count, MOST * len(images))
    if count <= 0:
        return images[:0]
    rounds = [rng.permutation(len(images)) for _ in range(-(-count // len(images)))]
    rows = torch.from_numpy(np.concatenate(rounds)[:count])
    angles, right, down = (rng.uniform(-1, 1, count) * limit for limit in (how.rotate, how.shift, how.shift))
    mirrored = rng.random(count) < 0.5 if how.flip else np.zeros(count, dtype=bool)
    return transform(images[rows], angles, right, down, mirrored, how.padding)


def transform(
    images: Tensor, angles: np.ndarray, right: np.ndarray, down: np.ndarray, mirrored: np.ndarray, padding: str = "edge"
) -> Tensor:
    """Each image mirrored or not, rotated anticlockwise by its angle (degrees), then shifted by shares of its size."""
    height, width = images.shape[-2:]
    radians = np.deg2rad(angles)
    cos, sin = np.cos(radians), np.sin(radians)
    side = np.where(mirrored, -1.0, 1.0)
    # For every pixel of the copy: where it comes from. Coordinates run from -1 to 1 over width and height, so that
    # what is rotated has to be measured in pixels in between.
    x = np.stack([cos, -sin * height / width, -2 * (right * cos - down * sin * height / width)], axis=1)
    y = np.stack([sin * width / height, cos, -2 * (right * sin * width / height + down * cos)], axis=1)
    source = np.stack([side[:, None] * x, y], axis=1)
    grid = F.affine_grid(torch.from_numpy(source).to(images), list(images.shape), align_corners=False)
    outside = "border" if padding == "edge" else "zeros"
    copies = F.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)
    low, high = images.min(), images.max()
    if padding == "zero":
        low, high = low.clamp(max=0), high.clamp(min=0)
    return copies.clamp(low, high)  # a mean of pixels lies between them, but for rounding


def fill_classes(
    images: Tensor, labels: Tensor, wanted: np.ndarray, rng: np.random.Generator, how: Static = PLAIN
) -> tuple[Tensor, Tensor]:
    """Copies of every class, as many as are wanted and `MOST` allows; with their labels, class by class."""
    copies = [augment(images[labels == c], int(n), rng, how) for c, n in enumerate(wanted)]
    of_class = torch.repeat_interleave(torch.arange(len(copies)), torch.tensor([len(c) for c in copies]))
    return torch.cat([images[:0], *copies]), of_class
