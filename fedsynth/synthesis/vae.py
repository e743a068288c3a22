"""The generating half of a variational auto-encoder, for images of any shape (FedDPMS, table 4, generalised).

Plain PyTorch. The encoder is a classifier's convolutions with latent heads on them (`learning/latent.py`); here are the
symmetric decoder and the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Decoder(nn.Module):
    """From a latent (and, if conditional, a class) to an image with values in [0, 1].

    A linear layer, then for each width an upsampling and transposed 3x3 convolutions, back to the image's own size.
    """

    def __init__(
        self, latent: int, shape: tuple[int, int, int], widths: Sequence[int], per_block: int = 1, classes: int = 0
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.classes = classes
        self.sizes = [(height // 2**k, width // 2**k) for k in range(len(widths), -1, -1)]
        self.start = widths[-1]
        self.linear = nn.Linear(latent + classes, self.start * self.sizes[0][0] * self.sizes[0][1])
        outputs = [*reversed(widths[:-1]), channels]
        blocks, inputs = [], self.start
        for output in outputs:
            layers: list[nn.Module] = []
            for _ in range(per_block - 1):
                layers += [nn.ConvTranspose2d(inputs, inputs, 3, padding=1), nn.ReLU(inplace=True)]
            blocks.append(nn.Sequential(*layers, nn.ConvTranspose2d(inputs, output, 3, padding=1)))
            inputs = output
        self.blocks = nn.ModuleList(blocks)

    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if self.classes:
            assert y is not None, "a conditional decoder needs the classes"
            z = torch.cat([z, F.one_hot(y, self.classes).to(z.dtype)], 1)
        x = F.relu(self.linear(z)).reshape(len(z), self.start, *self.sizes[0])
        x = x.contiguous(memory_format=torch.channels_last)
        for number, block in enumerate(self.blocks, 1):
            x = block(F.interpolate(x, size=self.sizes[number]))
            if number < len(self.blocks):
                x = F.relu(x)
        return torch.sigmoid(x)


def vae_loss(x: Tensor, reconstruction: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL to N(0, 1), averaged over examples and dimensions, plus the squared error summed over pixels."""
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
    return kl + (reconstruction - x).square().flatten(1).sum(1).mean()
