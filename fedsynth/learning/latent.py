"""Latent codes of examples: heads that read a network's features, and a layer that a classifier may be built on.

Latent means go through a sigmoid: they lie in [0, 1], so that a mean of them has a bounded sensitivity.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
