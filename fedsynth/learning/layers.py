"""Parts of networks: the body of a ResNet-18 for small images, latent codes that a classifier may be built on, votes.

The published ResNet was made for 224-pixel images. As everybody does on 32-pixel ones, the 7x7 stride-2 stem and its
pool are replaced by one 3x3 convolution of stride 1; the rest is unchanged. Latent means go through a sigmoid: they lie
in [0, 1], so that a mean of them has a bounded sensitivity.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

NormLayer = Callable[[int], nn.Module]
Vote = Literal["scores", "probabilities"]
LARGEST_LOG_VARIANCE = 10.0


class LatentHeads(nn.Module):
    """Mean (in [0, 1]) and log-variance of the latent of each example, from its features."""

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.mean = nn.Linear(features, latent)
        self.log_variance = nn.Linear(features, latent)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        log_variance = self.log_variance(features).clamp(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
        return torch.sigmoid(self.mean(features)), log_variance


class Latent(nn.Module):
    """The latent as a layer: drawn while training, its mean in evaluation."""

    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.heads = LatentHeads(features, latent)

    def forward(self, features: Tensor) -> Tensor:
        mean, log_variance = self.heads(features)
        return sample_latent(mean, log_variance) if self.training else mean


def sample_latent(mean: Tensor, log_variance: Tensor) -> Tensor:
    """z ~ N(mean, variance), differentiably."""
    return mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """A "same"-padded convolution without bias: the norm layer behind it has one."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them, which is a 1x1 convolution where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.main = nn.Sequential(
            convolution(inputs, outputs, 3, stride),
            norm(outputs),
            nn.ReLU(inplace=True),
            convolution(outputs, outputs, 3, 1),
            norm(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(convolution(inputs, outputs, 1, stride), norm(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.main(x) + self.around(x))


def resnet18_body(inputs: int, widths: Sequence[int], norm: NormLayer) -> nn.Sequential:
    """Stem, one stage of two blocks per width (halving the image from the second on), global average."""
    layers: list[nn.Module] = [convolution(inputs, widths[0], 3, 1), norm(widths[0]), nn.ReLU(inplace=True)]
    before = widths[0]
    for stage, width in enumerate(widths):
        layers += [BasicBlock(before, width, 1 if stage == 0 else 2, norm), BasicBlock(width, width, 1, norm)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Ensemble(nn.Module):
    """Several networks as one: the mean of their scores, or the logarithm of the mean of their probabilities.

    What each of them weighs, its share, is no parameter: it is not trained.
    """

    shares: Tensor

    def __init__(self, members: Sequence[nn.Module], vote: Vote) -> None:
        super().__init__()
        self.members, self.vote = nn.ModuleList(members), vote
        self.register_buffer("shares", torch.full((len(members),), 1 / len(members)))

    def forward(self, x: Tensor) -> Tensor:
        scores, shares = torch.stack([member(x) for member in self.members]), self.shares.view(-1, 1, 1)
        if self.vote == "scores":
            return (shares * scores).sum(0)
        return torch.logsumexp(scores.log_softmax(2) + shares.log(), 0)
