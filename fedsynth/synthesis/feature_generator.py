"""A generator of features: vectors that heads of classifiers take for a class (FedGen). Plain PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.learning.weights import Weights, load_weights


class FeatureGenerator(nn.Module):
    """From noise and a class to features: one hidden layer."""

    def __init__(self, noise: int, classes: int, hidden: int, features: int) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        self.first, self.second = nn.Linear(noise + classes, hidden), nn.Linear(hidden, features)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        one_hot = F.one_hot(labels, self.classes).to(noise.dtype)
        return self.second(torch.relu(self.first(torch.cat([noise, one_hot], 1))))

    @classmethod
    def from_weights(cls, weights: Weights, classes: int) -> Self:
        """A generator with these weights, which say how large it is."""
        hidden, inputs = weights["first.weight"].shape
        generator = cls(inputs - classes, classes, hidden, len(weights["second.weight"]))
        load_weights(generator, weights)
        return generator


@dataclass(frozen=True)
class GeneratorTraining:
    """How the server trains a generator in a round."""

    steps: int = 50
    batch_size: int = 32
    lr: float = 0.001
    diversity: float = 1.0  # weight of `sameness`


def class_shares(counts: Tensor) -> Tensor:
    """Of each class (row of n_k^y) the share that each client has; equal shares of a class that nobody has."""
    total = counts.sum(0)
    return torch.where(total > 0, counts / total.clamp_min(1e-12), torch.full_like(counts, 1 / len(counts)))


def sameness(outputs: Tensor, noise: Tensor) -> Tensor:
    """exp(−mean over pairs of ‖o_i − o_j‖₁ · ‖z_i − z_j‖²), norms as means over entries: 1 where all are the same."""
    apart = torch.cdist(outputs.flatten(1), outputs.flatten(1), p=1) / outputs[0].numel()
    noise_apart = (noise.unsqueeze(1) - noise).square().mean(2)
    return (-(apart * noise_apart).mean()).exp()


def ensemble_loss(features: Tensor, labels: Tensor, heads: Sequence[Weights], shares: Tensor) -> Tensor:
    """FedGen, eq. 4: cross-entropy of the mean of the heads' scores; `shares` (clients, classes) weigh them."""
    scores = torch.stack([F.linear(features, head["weight"], head["bias"]) for head in heads])
    return F.cross_entropy((shares[:, labels].unsqueeze(2) * scores).sum(0), labels)


def train_generator(
    generator: FeatureGenerator,
    heads: Sequence[Weights],
    shares: Tensor,
    frequencies: Tensor,
    how: GeneratorTraining,
    random: torch.Generator,
) -> float:
    """Train a generator in place on the heads of some models; classes are drawn by their frequencies. The last loss."""
    optimizer = torch.optim.Adam(generator.parameters(), lr=how.lr)
    loss = torch.zeros(())
    for _ in range(how.steps):
        labels = torch.multinomial(frequencies, how.batch_size, replacement=True, generator=random)
        noise = torch.randn((how.batch_size, generator.noise), generator=random)
        features = generator(noise, labels)
        loss = ensemble_loss(features, labels, heads, shares)
        optimizer.zero_grad()
        (loss + how.diversity * sameness(features, noise)).backward()
        optimizer.step()
    return float(loss.detach())
