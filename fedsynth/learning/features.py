"""Fixed features: bodies of models without a single weight, the same at every client and in every run.

What is random in them follows from public bits (SHAKE-256), so nothing has to be sent. They compute in the type of
their inputs; in float64 the result of an example does not depend on its neighbours in a batch to about 1e-15.
"""

import functools
import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.errors import UserError
from fedsynth.learning.models import Body, ModelSpec, Shape, model
from fedsynth.learning.wavelets import FLOOR, ORIENTATIONS, SCALES, STEP, wavelet_maps

AT_A_TIME = 16  # images: what their filters give stays in a cache
FILTERS, KERNEL = 32, 5  # of random_conv
SHORTEST = 1e-12
SMALLEST = 4  # pixels a side


class FixedFeatures(nn.Module):
    """Vectors of examples, projected at random where they are longer than `features`.

    `length`: how long they typically are. `centred`: each vector's mean is taken off and its length made 1.
    """

    def __init__(self, extract: Callable[[Tensor], Tensor], inputs: int, features: int, centred: bool) -> None:
        super().__init__()
        self.extract, self.inputs, self.features, self.centred = extract, inputs, min(features, inputs), centred
        self.length = 1.0 if centred else math.sqrt(self.features)

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_zeros(0, self.features)
        return torch.cat([self._vectors(part) for part in x.split(AT_A_TIME)])

    def _vectors(self, x: Tensor) -> Tensor:
        z = self.extract(x).flatten(1)
        if self.centred:
            z = z - z.mean(1, keepdim=True)
        if self.features < self.inputs:
            z = z @ _projection(self.inputs, self.features, x.dtype, x.device)
        return z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=SHORTEST) if self.centred else z


def public_signs(rows: int, columns: int, purpose: str) -> np.ndarray:
    """+1 and −1, from public bits: the same on every machine and in every version of any library."""
    bits = hashlib.shake_256(f"fedsynth {purpose} {rows} {columns}".encode()).digest(-(-rows * columns // 8))
    signs = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows * columns)
    return signs.reshape(rows, columns) * 2.0 - 1.0


@functools.lru_cache(maxsize=8)
def _projection(inputs: int, features: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        signs = public_signs(inputs, features, "projection") / math.sqrt(inputs)
        return torch.from_numpy(signs).to(device, dtype)


@model("wavelets", fixed=True)
def wavelets(spec: ModelSpec, shape: Shape) -> Body:
    """Wavelet features of images, see `wavelets.py`; strong without any pretraining."""
    channels, height, width = _image(spec, shape)
    cells = max(1, round(height / STEP)) * max(1, round(width / STEP))
    filters = 1 + ORIENTATIONS * SCALES + ORIENTATIONS**2
    return _fixed(_wavelets, channels * filters * cells, spec)


def _wavelets(x: Tensor) -> Tensor:
    """Where all filters, or all cells, say the same it is half as loud: that evens the spread of directions."""
    maps = wavelet_maps(x).flatten(3)
    return maps - 0.5 * maps.mean(2, keepdim=True) - 0.5 * maps.mean(3, keepdim=True)


@model("random_conv", fixed=True)
def random_conv(spec: ModelSpec, shape: Shape) -> Body:
    """Random filters, their positive and negative parts averaged over cells; what wavelets are measured against."""
    channels, height, width = _image(spec, shape)
    cells = max(1, height // STEP), max(1, width // STEP)
    filters = public_signs(FILTERS, channels * KERNEL**2, "filters").reshape(FILTERS, channels, KERNEL**2)
    filters -= filters.mean(2, keepdims=True)
    filters = (filters / np.linalg.norm(filters, axis=(1, 2), keepdims=True)).reshape(-1, channels, KERNEL, KERNEL)

    def extract(x: Tensor) -> Tensor:
        edge = KERNEL // 2
        padded = F.pad(x, (edge,) * 4, mode="reflect")
        z = F.conv2d(padded, torch.from_numpy(filters).to(x))
        return torch.log1p(F.adaptive_avg_pool2d(torch.cat([z.relu(), (-z).relu()], 1), cells) / FLOOR)

    return _fixed(extract, 2 * FILTERS * math.prod(cells), spec)


@model("pixels", fixed=True)
def pixels(spec: ModelSpec, shape: Shape) -> Body:
    """The example as one vector, less its mean and made of length 1."""
    return _fixed(_as_it_is, math.prod(shape), spec)


@model("columns", fixed=True)
def columns(spec: ModelSpec, shape: Shape) -> Body:
    """The columns of a table as they are: what scale they have is the affair of the data."""
    return _fixed(_as_it_is, math.prod(shape), spec, centred=False)


@model("fixed", fixed=True)
def fixed(spec: ModelSpec, shape: Shape) -> Body:
    """What suits the data: wavelets for images, columns for all else."""
    images = len(shape) == 3 and min(shape[1:]) >= SMALLEST
    return (wavelets if images else columns)(spec, shape)


def _image(spec: ModelSpec, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        raise UserError(
            f'"{spec.name}" are features of images of at least {SMALLEST}x{SMALLEST} pixels, but an example of this '
            f'data has shape {shape}: choose "columns" or "pixels".'
        )
    return shape


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _fixed(extract: Callable[[Tensor], Tensor], inputs: int, spec: ModelSpec, centred: bool = True) -> Body:
    body = FixedFeatures(extract, inputs, spec.dimension or inputs, centred)
    return body, body.features
