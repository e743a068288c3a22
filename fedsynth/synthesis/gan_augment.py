"""Differentiable augmentation (Zhao et al. 2020): the critic sees real and generated images moved and masked alike, so
that it cannot learn a few real ones by heart; the generator learns through the same changes and draws none of them.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Change = Literal["translation", "cutout"]

SHIFT = 1 / 8  # of a side, to either direction
CUT = 1 / 2  # of a side


def augment(images: Tensor, changes: tuple[Change, ...], draw: torch.Generator) -> Tensor:
    """The images, each changed at random in these ways; differentiable over the images."""
    for change in changes:
        images = CHANGES[change](images, draw)
    return images


def translate(images: Tensor, draw: torch.Generator) -> Tensor:
    """Every image moved by up to an eighth of its sides; what comes in is 0."""
    count, _, height, width = images.shape
    rows, columns = (_moved(count, side, draw).to(images.device) for side in (height, width))
    padded = F.pad(images, (1, 1, 1, 1))
    of = torch.arange(count, device=images.device)[:, None, None]
    return padded[of, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _moved(count: int, side: int, draw: torch.Generator) -> Tensor:
    """For each image, from where the pixels of a side come; its border of 0 is before the first and after the last."""
    most = round(side * SHIFT)
    shift = torch.randint(-most, most + 1, (count, 1), generator=draw)
    return (torch.arange(1, side + 1) + shift).clamp(0, side + 1)


def cut_out(images: Tensor, draw: torch.Generator) -> Tensor:
    """A box of half of each side is set to 0, anywhere; at the border a part of it lies outside."""
    count, _, height, width = images.shape
    rows, columns = (_in_box(count, side, draw).to(images.device) for side in (height, width))
    return images.masked_fill((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), 0.0)


def _in_box(count: int, side: int, draw: torch.Generator) -> Tensor:
    """For each image, which pixels of a side are in its box."""
    length = round(side * CUT)
    begin = torch.randint(0, side + 1, (count, 1), generator=draw) - length // 2
    places = torch.arange(side)
    return (places >= begin) & (places < begin + length)


CHANGES = {"translation": translate, "cutout": cut_out}
