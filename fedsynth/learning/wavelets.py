"""Wavelet features of images: two layers of Morlet filters and moduli (a scattering transform), nothing of it learned.

After Mallat 2012 and Bruna and Mallat 2013: 8 orientations at 2 scales; the modulus of the finer scale is filtered a
second time at the coarser one; all is averaged down to a quarter of the side, and its logarithm taken. Every number
follows from the shape of the images alone.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

ORIENTATIONS, SCALES = 8, 2
PADDING = 4  # mirrored pixels on each side
STEP = 4  # pixels to a cell
FLOOR = 0.01  # of the logarithm, where pixels lie in [0, 1]
TINY = 1e-24  # under the root: its slope at 0 is none

Array = NDArray[np.float64]


def wavelet_maps(images: Tensor) -> Tensor:
    """Maps of shape (n, channels, filters, cells down, cells across), in the type and on the device of the images."""
    height, width = images.shape[-2:]
    down, across = min(PADDING, height - 1), min(PADDING, width - 1)
    x = F.pad(images, (across, across, down, down), mode="reflect")

    def constant(maker: Callable[..., Array], *sizes: int) -> Tensor:
        return _constant(maker, sizes, images.dtype, images.device)

    first = _moduli(x, constant(_first_filters, *x.shape[-2:]))
    finer = first[..., :ORIENTATIONS, ::2, ::2]
    second = _moduli(finer, constant(_second_filters, *finer.shape[-2:])).flatten(2, 3)
    rows, columns = constant(_cells, height, down, 1), constant(_cells, width, across, 1)
    rows2, columns2 = constant(_cells, height, down, 2), constant(_cells, width, across, 2)
    averages = [rows @ torch.cat([x[:, :, None], first], 2) @ columns.T, rows2 @ second @ columns2.T]
    maps = torch.cat(averages, 2)
    return maps.sign() * torch.log1p(maps.abs() / FLOOR)


def _moduli(x: Tensor, filters: Tensor) -> Tensor:
    """The modulus of each image under each filter, which is given by its Fourier transform."""
    z = torch.fft.ifft2(torch.fft.fft2(x)[..., None, :, :] * filters)
    return (z.real.square() + z.imag.square() + TINY).sqrt()  # half the time of abs()


@functools.lru_cache(maxsize=64)
def _constant(maker: Callable[..., Array], sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a tensor of inference mode could not be used in training later
        return torch.from_numpy(maker(*sizes)).to(device, dtype)


def _first_filters(height: int, width: int) -> Array:
    return np.stack([_morlet(height, width, scale, angle) for scale in range(SCALES) for angle in range(ORIENTATIONS)])


def _second_filters(height: int, width: int) -> Array:
    """The coarser scale, for images of half the side."""
    return np.stack([_morlet(height, width, 0, angle) for angle in range(ORIENTATIONS)])


def _morlet(height: int, width: int, scale: int, angle: int, slant: float = 0.5) -> Array:
    """The Fourier transform of a Morlet wavelet, real and without a mean, made periodic."""
    sigma, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    turn = math.pi * angle / ORIENTATIONS
    wave, envelope = np.zeros((height, width)), np.zeros((height, width))
    for down in range(-2, 3):
        for across in range(-2, 3):
            y = 2 * math.pi * (np.fft.fftfreq(height)[:, None] + down)
            x = 2 * math.pi * (np.fft.fftfreq(width)[None, :] + across)
            along, beside = math.cos(turn) * y + math.sin(turn) * x, math.cos(turn) * x - math.sin(turn) * y
            wave += np.exp(-(sigma**2) / 2 * ((along - frequency) ** 2 + (beside / slant) ** 2))
            envelope += np.exp(-(sigma**2) / 2 * (along**2 + (beside / slant) ** 2))
    return wave - wave[0, 0] / envelope[0, 0] * envelope


def _cells(side: int, padding: int, stride: int) -> Array:
    """Gaussian averages over the cells of a side (rows) of the padded pixels (columns), of which each stride-th is."""
    cells = max(1, round(side / STEP))
    centres = (np.arange(cells) + 0.5) * side / cells - 0.5 + padding
    pixels = np.arange(0, side + 2 * padding, stride)
    inside = (pixels >= padding) & (pixels < side + padding)
    weights = np.exp(-((pixels - centres[:, None]) ** 2) / (STEP**2 / 2)) * inside
    return np.asarray(weights / weights.sum(1, keepdims=True))
