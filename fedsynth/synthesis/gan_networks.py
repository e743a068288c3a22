"""The networks of the GANs, for images of any shape with values in [0, 1].

No layer mixes the examples of a batch (no BatchNorm), so that every example's gradient is its own and can be clipped
alone. Transposed 4x4 convolutions take a third of the time of upsampling and a 3x3 convolution on a CPU.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]

COARSEST = 8  # pixels a side: larger images are halved until they are not
LEAK = 0.2


def halvings(shape: Shape) -> int:
    """How often an image is halved (a side of odd length is rounded up), at least once."""
    count, side = 1, -(-max(shape[1:]) // 2)
    while side > COARSEST:
        count, side = count + 1, -(-side // 2)
    return count


def coarse_sides(shape: Shape, times: int) -> tuple[int, int]:
    """Height and width after so many halvings."""
    fold = 2**times
    return -(-shape[1] // fold), -(-shape[2] // fold)


def as_image(rows: Tensor, sides: tuple[int, int]) -> Tensor:
    """Rows as (n, channels, height, width). Channels come last in a row: a channels_last image is then no copy."""
    return rows.unflatten(1, (*sides, -1)).permute(0, 3, 1, 2)


class Generator(nn.Module):
    """From a latent (and a class, if there are any) to an image: a linear layer, then doublings."""

    def __init__(self, latent: int, shape: Shape, classes: int, channels: int) -> None:
        super().__init__()
        self.latent, self.classes, self.shape = latent, classes, shape
        times = halvings(shape)
        self.coarse = coarse_sides(shape, times)
        widths = [channels * 2 ** (k + 1) for k in reversed(range(times))]
        self.linear = nn.Linear(latent + classes, widths[0] * self.coarse[0] * self.coarse[1])
        pairs = zip(widths, [*widths[1:], shape[0]], strict=True)
        self.doublings = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, stride=2, padding=1) for a, b in pairs)
        self.gains = nn.ModuleList(nn.Embedding(classes, width) for width in widths) if classes else None
        for gain in self.gains or []:
            nn.init.ones_(gain.get_parameter("weight"))

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        return torch.sigmoid(self.logits(z, y))

    def logits(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The images before the sigmoid that brings them into [0, 1]."""
        if self.classes:
            assert y is not None, "a conditional generator needs the classes"
            z = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1)
        x = as_image(self.linear(z), self.coarse)
        for number, doubling in enumerate(self.doublings):
            # The channels of every pixel are brought to length √channels (steadier than without, and no example learns
            # of another), then weighed by class.
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)
            if self.gains is not None:
                x = x * self.gains[number](y)[:, :, None, None]
            x = _doubled(doubling, torch.relu(x))
        # A side that was rounded up comes out too long.
        return x[:, :, : self.shape[1], : self.shape[2]]


def _doubled(conv: nn.Module, x: Tensor) -> Tensor:
    """The transposed convolution. To a single channel, where its kernels idle, as a matrix product and a fold: the same
    function in a third of the time."""
    assert isinstance(conv, nn.ConvTranspose2d)
    if conv.out_channels > 1:
        return conv(x)
    height, width = x.shape[2:]
    patches = x.permute(0, 2, 3, 1).flatten(1, 2) @ conv.weight.flatten(1)
    assert conv.bias is not None
    return F.fold(patches.transpose(1, 2), (2 * height, 2 * width), 4, padding=1, stride=2) + conv.bias


class Body(nn.Module):
    """Strided convolutions with leaky rectifiers; what the critics and the encoder see of an image."""

    def __init__(self, shape: Shape, channels: int) -> None:
        super().__init__()
        times = halvings(shape) + 1  # one more than the generator doubles: better images after half the steps
        widths = [shape[0], *(channels * 2**k for k in range(times))]
        # 3x3 with stride 2 turns every length n into ⌈n / 2⌉.
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.out = coarse_sides(shape, times)
        self.features = widths[-1] * self.out[0] * self.out[1]

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x), LEAK, inplace=True)
        return x.permute(0, 2, 3, 1).flatten(1)  # rows as `as_image` reads them

    def pull_back(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gradient over x of ⟨direction, body(x)⟩, itself differentiable over the weights and the direction.

        The body is piecewise linear, so this gradient is a chain of transposed convolutions; which piece x lies in is
        constant almost everywhere. It is what autograd's gradient of a gradient gives, in two thirds of the time.
        """
        sides, slopes = [], []
        with torch.no_grad():
            for conv in self.convs:
                sides.append(x.shape[2:])
                x = F.leaky_relu(conv(x), LEAK, inplace=True)
                slopes.append(torch.full_like(x, LEAK).masked_fill_(x > 0, 1.0))
        gradient = as_image(direction, self.out) * slopes[-1]
        for number in reversed(range(len(self.convs))):
            extra = [side - (2 * coarse - 1) for side, coarse in zip(sides[number], gradient.shape[2:], strict=True)]
            conv = self.convs[number]
            assert isinstance(conv, nn.Conv2d)
            gradient = F.conv_transpose2d(gradient, conv.weight, stride=2, padding=1, output_padding=extra)
            gradient = gradient * slopes[number - 1] if number else gradient
        return gradient


class Critic(nn.Module):
    """A score of an image; with classes, of an image as one of its class (a projection: Miyato and Koyama 2018)."""

    def __init__(self, shape: Shape, classes: int, channels: int) -> None:
        super().__init__()
        self.body = Body(shape, channels)
        self.score = nn.Linear(self.body.features, 1)
        self.by_class = nn.Embedding(classes, self.body.features) if classes else None
        if self.by_class is not None:
            nn.init.normal_(self.by_class.weight, std=self.body.features**-0.5)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return (self.body(x) * self._direction(y)).sum(1) + self.score.bias

    def slope(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The gradient of the score over the image, differentiable over the weights."""
        return self.body.pull_back(x, self._direction(y).expand(len(x), -1))

    def _direction(self, y: Tensor | None) -> Tensor:
        if self.by_class is None:
            return self.score.weight
        assert y is not None, "a conditional critic needs the classes"
        return self.score.weight + self.by_class(y)


class Encoder(nn.Module):
    """Mean and log-variance of the latents of an image; stands where a GAN has its critic."""

    def __init__(self, latent: int, shape: Shape, classes: int, channels: int) -> None:
        super().__init__()
        self.classes = classes
        self.body = Body(shape, channels)
        self.heads = nn.Linear(self.body.features + classes, 2 * latent)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        if self.classes:
            assert y is not None, "a conditional encoder needs the classes"
            features = torch.cat([features, F.one_hot(y, self.classes).to(features.dtype)], 1)
        mean, log_variance = self.heads(features).chunk(2, dim=1)
        return mean, log_variance
