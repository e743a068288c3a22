"""What local training minimises beyond cross-entropy. Plain PyTorch: no federation here.

Penalties that are quadratic or linear in the weights are added to the gradients, which is exact and costs one fused
operation per step, instead of being sent through autograd.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.learning.models import Classifier
from fedsynth.learning.training import CrossEntropy


def trained_entries(model: nn.Module, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The entries of `weights` that belong to the model's parameters, in the order of its parameters."""
    return [weights[name].to(p.device, p.dtype) for name, p in model.named_parameters()]


def add_to_gradients(model: nn.Module, terms: list[Tensor], scale: float) -> None:
    """gradient += scale · term, for every parameter that has a gradient."""
    pairs = [(p.grad, t) for p, t in zip(model.parameters(), terms, strict=True) if p.grad is not None]
    if pairs:
        torch._foreach_add_([g for g, _ in pairs], [t for _, t in pairs], alpha=scale)


@torch.no_grad()
def add_distance(model: nn.Module, reference: list[Tensor], scale: float) -> None:
    """gradient += scale · (w − reference)."""
    add_to_gradients(model, [p - r for p, r in zip(model.parameters(), reference, strict=True)], scale)


class Proximal(CrossEntropy):
    """FedProx: loss + μ/2 · ‖w − w_t‖², whose gradient is μ (w − w_t)."""

    def __init__(self, model: nn.Module, reference: Mapping[str, Tensor], mu: float) -> None:
        self.reference, self.mu = trained_entries(model, reference), mu

    def correct_gradients(self, model: nn.Module) -> None:
        """Add μ (w − w_t)."""
        add_distance(model, self.reference, self.mu)


class ControlVariates(CrossEntropy):
    """SCAFFOLD: every step goes along g − c_i + c."""

    def __init__(self, model: nn.Module, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        pairs = zip(trained_entries(model, server), trained_entries(model, own), strict=True)
        self.correction = [c - c_i for c, c_i in pairs]

    def correct_gradients(self, model: nn.Module) -> None:
        """Add c − c_i."""
        add_to_gradients(model, self.correction, 1.0)


class Dynamic(CrossEntropy):
    """FedDyn: loss − ⟨h_i, w⟩ + α/2 · ‖w − w_t‖²."""

    def __init__(
        self, model: nn.Module, reference: Mapping[str, Tensor], linear: Mapping[str, Tensor], alpha: float
    ) -> None:
        self.reference, self.alpha = trained_entries(model, reference), alpha
        self.linear = trained_entries(model, linear)

    def correct_gradients(self, model: nn.Module) -> None:
        """Add α (w − w_t) − h_i."""
        add_distance(model, self.reference, self.alpha)
        add_to_gradients(model, self.linear, -1.0)


class LogitAdjusted(CrossEntropy):
    """Logit adjustment: cross-entropy of scores + τ · log π, for training only (Menon et al. 2021).

    Where a class is rare its score is lowered, so the plain score has to be higher to fit the data: the model learns
    to tell classes apart and leaves their frequencies to π. A class that is absent is hardly pushed down at all.
    """

    def __init__(self, log_prior: Tensor, tau: float) -> None:
        self.offset = tau * log_prior

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the adjusted scores, averaged over the batch."""
        return self.of_scores(model(x), y)

    def of_scores(self, scores: Tensor, y: Tensor) -> Tensor:
        """The same for scores that are there already."""
        return F.cross_entropy(scores + self.offset.to(scores.device, scores.dtype), y)


def class_log_prior(labels: Tensor | np.ndarray, classes: int, smoothing: float = 1e-3) -> Tensor:
    """log π for every class, where π is its share of `labels`; `smoothing` is added to each count.

    Without it a class that is not there would have the logarithm of nothing, minus infinity.
    """
    if smoothing <= 0:
        raise ValueError(f"smoothing = {smoothing} leaves absent classes without a finite logarithm; it must be > 0.")
    return log_shares(torch.bincount(torch.as_tensor(labels).long(), minlength=classes), smoothing)


def log_shares(counts: Tensor, smoothing: float) -> Tensor:
    """The logarithm of each count's share in all, once `smoothing` has been added to every one."""
    smooth = counts.double() + smoothing
    return (smooth / smooth.sum()).log().float()


class Contrastive(CrossEntropy):
    """MOON: draw the representation towards the global model's and away from the client's previous one."""

    def __init__(self, received: Classifier, previous: Classifier | None, mu: float, temperature: float) -> None:
        self.received, self.previous = received.eval(), None if previous is None else previous.eval()
        self.mu, self.temperature = mu, temperature

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy + μ · contrast (MOON eq. 3). Without a previous model there is nothing to contrast."""
        assert isinstance(model, Classifier)
        z = model.body(x)
        loss = F.cross_entropy(model.head(z), y)
        if self.previous is None:
            return loss
        with torch.no_grad():
            z_received, z_previous = self.received.body(x), self.previous.body(x)
        return loss + self.mu * contrast(z, z_received, z_previous, self.temperature)


def contrast(z: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """−log( e^{sim(z, towards)/τ} / (e^{sim(z, towards)/τ} + e^{sim(z, away)/τ}) ), the mean over the batch."""
    near = F.cosine_similarity(z, towards) / temperature
    far = F.cosine_similarity(z, away) / temperature
    return F.softplus(far - near).mean()


class MeanMixup(CrossEntropy):
    """FedMix: mixup with averaged images of other clients, to first order (Yoon et al. 2021, algorithm 3)."""

    def __init__(self, images: Tensor, labels: Tensor, ratio: float, rng: np.random.Generator) -> None:
        self.images, self.labels, self.ratio, self.rng = images, labels, ratio, rng

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """(1−λ) ℓ(f((1−λ)x), y) + λ ℓ(f((1−λ)x), ȳ) + λ ⟨∂/∂x of the first term, x̄⟩."""
        row = int(self.rng.integers(len(self.images)))
        mean_image, mean_label = self.images[row].to(x.device), self.labels[row].to(x.device)
        keep = 1 - self.ratio
        shrunk = (keep * x).requires_grad_()
        scores = model(shrunk)
        own = keep * F.cross_entropy(scores, y, reduction="sum")
        others = self.ratio * F.cross_entropy(scores, mean_label.expand(len(y), -1), reduction="sum")
        # The gradient of the sum over the batch holds every example's own gradient: no B×B Jacobian is needed.
        (slope,) = torch.autograd.grad(own, shrunk, create_graph=True)
        return (own + others + self.ratio * (slope * mean_image).sum()) / len(y)
