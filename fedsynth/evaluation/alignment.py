"""Whether a step on some samples would help on real data: the cosine of two gradients (AggEnhance, eq. 9)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.data.dataset import Schema
from fedsynth.learning.answers import evaluating
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.weights import Weights

BATCH = 500


def alignment(
    spec: ModelSpec, schema: Schema, weights: Weights, samples: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]
) -> float:
    """cos(∇L(w; S), ∇L(w; D)): above 0 a short step on the samples lowers the loss on the data; nan without a slope."""
    net = instantiate(spec, schema.shape, schema.classes, weights)
    one, other = gradient(net, *samples), gradient(net, *held_out)
    return float(one @ other / (one.norm() * other.norm()))


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy in evaluation mode, as one float64 vector. `y`: labels or targets."""
    parameters = list(net.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    with evaluating(net):
        for images, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
            found = torch.autograd.grad(F.cross_entropy(net(images), labels) * len(images), parameters)
            total += torch.cat([part.reshape(-1) for part in found]).double()
    return total / len(x)
