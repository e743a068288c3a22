"""What FedDPMS releases about a client's latents, in two ways, and what may be drawn from it afterwards.

`noisy_means` is the paper's (eq. 1 to 3): copies of a class's mean latent with Gaussian noise, kept where the sender's
own classifier recognises what the decoder makes of them. `class_statistics` is the calibrated one: per class the sum of
latents, their number and their second moment, each once, with noise that is calibrated to (ε, δ).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from fedsynth.privacy.gaussian import gaussian_epsilon, gaussian_sigma
from fedsynth.privacy.mechanisms import add_gaussian
from fedsynth.synthesis.vae_classifier import VaeNet

COUNT_WEIGHT = 0.25  # κ: what a record adds to the released count, beside a latent of norm 1
MOMENT_WEIGHT = 0.5  # ρ: the same for its second moment
SMALLEST_SPREAD, LARGEST_SPREAD = 0.02, 0.3
FEW = 10  # a class with fewer examples than this is not drawn from, however well its count is known
SURE = 3.0  # nor one whose noisy count is below so many standard deviations of its noise
DRAWS_PER_PASS = 256


# -- as published ---------------------------------------------------------------------------------------------------


class MeanSearch(BaseModel, frozen=True, extra="forbid"):
    """How many noisy means of a class are wanted, with which σ, how certainly recognised, in how many draws each."""

    quota: int
    sigma: float
    certainty: float | None
    tries: int


def noisy_means(
    net: VaeNet, x: Tensor, y: Tensor, abundant: list[int], search: MeanSearch, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Up to `quota` noisy means of each abundant class and their classes; at most `tries` draws for each."""
    quota, certainty = search.quota, search.certainty
    found, labels = [], []
    for label in abundant:
        mean = net.encode(x[y == label]).mean(0)
        kept = torch.zeros((0, len(mean)))
        for _ in range(math.ceil(quota * search.tries / DRAWS_PER_PASS)):
            noise = rng.normal(0.0, search.sigma, (DRAWS_PER_PASS, len(mean))).astype(np.float32)
            drawn = mean + torch.from_numpy(noise)  # eq. 1
            if certainty is not None:
                drawn = drawn[recognised(net, decode(net, drawn, label), label, certainty)]  # eq. 2 and 3
            kept = torch.cat([kept, drawn])
            if len(kept) >= quota:
                break
        found.append(kept[:quota])
        labels.append(torch.full((len(found[-1]),), label, dtype=torch.int64))
    return torch.cat(found), torch.cat(labels)


def decode(net: VaeNet, z: Tensor, label: int | Tensor) -> Tensor:
    """Images of latents, for one class or one class each."""
    y = torch.full((len(z),), label) if isinstance(label, int) else label
    net.decoder.eval()
    with torch.no_grad():
        return net.decoder(z, y)


def recognised(net: VaeNet, images: Tensor, label: int, certainty: float) -> Tensor:
    """Which images the classifier takes for the class they were made for, at least so certainly."""
    found = class_probabilities(net, images)
    return (found.argmax(1) == label) & (found[:, label] >= certainty)


def class_probabilities(net: VaeNet, images: Tensor) -> Tensor:
    """The classifier's probabilities of each class."""
    net.classifier.eval()
    with torch.no_grad():
        return net.classifier(images).softmax(1)


def honest_epsilons(quota: int, latent: int, sigma: float, delta: float) -> dict[str, dict[int, float]]:
    """ε of the published release by the three readings of its σ, for classes of 100, 500 and 1,000 examples.

    A mean of m latents in [0, 1]^l moves by √l/m; α copies are one with noise std/√α: μ = √(α l) / (m · std), with
    std = σ (reading A, eq. 1), σ/m (B, appendix A.7) or σ/√m (C, appendix A.8).
    """
    readings = {"A": lambda m: sigma, "B": lambda m: sigma / m, "C": lambda m: sigma / math.sqrt(m)}
    return {
        name: {m: gaussian_epsilon(math.sqrt(quota * latent) / (m * std(m)), delta) for m in (100, 500, 1000)}
        for name, std in readings.items()
    }


# -- calibrated -----------------------------------------------------------------------------------------------------


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Calibration:
    """The noise of the calibrated release: (ε, δ) at record level, when one record is added or removed."""

    epsilon: float = Field(ge=1e-6, le=1e6)
    delta: float = Field(gt=0, lt=1)
    # longest latent (minus ½) as a share of the longest possible
    clip: float = Field(1.0, ge=1e-6, le=1)
    moments: bool = True

    @property
    def sensitivity(self) -> float:
        """What one record can move: its latent (norm ≤ 1), its count κ and its second moment (≤ ρ), in one class."""
        return math.sqrt(1 + COUNT_WEIGHT**2 + (MOMENT_WEIGHT**2 if self.moments else 0))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on every number."""
        return gaussian_sigma(self.epsilon, self.delta) * self.sensitivity

    def longest(self, latent: int) -> float:
        """C: latents minus ½ are shortened to this norm; at clip = 1 none is longer."""
        return self.clip * math.sqrt(latent) / 2


def class_statistics(z: Tensor, y: Tensor, classes: int, calibration: Calibration, rng: np.random.Generator) -> Tensor:
    """Per class (Σ x/C, κ N, ρ Σ x²/(C/2)) + N(0, s²), with x = z − ½ clipped to norm C.

    A record whose latent is not finite adds nothing: the encoder came from the server, which can make it so.
    """
    c = calibration.longest(z.shape[1])
    finite = torch.isfinite(z).all(1)
    z, y = z[finite], y[finite]
    x = (z - 0.5).double().clamp(-0.5, 0.5)
    x = x * (c / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
    blocks = [x / c, torch.full((len(x), 1), COUNT_WEIGHT, dtype=torch.float64)]
    if calibration.moments:
        # |x_j| ≤ ½, so ‖x²‖ ≤ ½‖x‖ ≤ C/2.
        blocks.append(MOMENT_WEIGHT * x.square() / (c / 2))
    rows = torch.cat(blocks, 1)
    sums = torch.zeros((classes, rows.shape[1]), dtype=torch.float64).index_add_(0, y, rows)
    return add_gaussian(sums, calibration.noise, rng)


def released_numbers(statistics: Tensor, latent: int) -> Tensor:
    """How many records of each class such statistics say there are, noise included."""
    return statistics[:, latent] / COUNT_WEIGHT


class LatentModel(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """Where to draw the latents of each class: mean and spread per class and dimension, and which classes are known."""

    mean: Tensor
    spread: Tensor
    known: Tensor


def latent_model(statistics: list[Tensor], latent: int, calibration: Calibration, spread: float | None) -> LatentModel:
    """Means and spreads from the statistics of one or several senders. All of it is post-processing of what they sent.

    Spreads come from the released second moment, evened over the dimensions as far as its noise demands, or are
    `spread` everywhere. A class whose noisy count is too small is not known.
    """
    total = torch.stack(statistics).sum(0)
    c = calibration.longest(latent)
    count = released_numbers(total, latent).clamp_min(1.0)
    noise = calibration.noise * math.sqrt(len(statistics))
    known = count >= max(FEW, SURE * noise / COUNT_WEIGHT)
    mean = (c * total[:, :latent] / count[:, None]).clamp(-0.5, 0.5)
    if spread is not None or not calibration.moments:
        deviation = torch.full_like(mean, spread if spread is not None else 0.1)
    else:
        second = (c / 2) / MOMENT_WEIGHT * total[:, latent + 1 :] / count[:, None]
        variance = second - mean.square()
        # The noise of one dimension's variance, against how much variances differ over dimensions.
        doubt = ((c / 2) / MOMENT_WEIGHT * noise / count).square()[:, None]
        even = variance.mean(1, keepdim=True)
        trust = 1 - (doubt / variance.var(1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
        variance = even + trust * (variance - even)
        deviation = variance.clamp(SMALLEST_SPREAD**2, LARGEST_SPREAD**2).sqrt()
    return LatentModel(mean=(0.5 + mean).float(), spread=deviation.float(), known=known)


def draw_images(
    net: VaeNet, latents: LatentModel, wanted: np.ndarray, certainty: float | None, tries: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Up to `wanted[c]` images of each known class c; recognised by the classifier, or any where certainty is None."""
    images, labels = [], []
    for label in np.flatnonzero((wanted > 0) & latents.known.numpy()):
        missing = int(wanted[label])
        for _ in range(1 if certainty is None else tries):
            noise = torch.from_numpy(rng.standard_normal((missing, latents.mean.shape[1])).astype(np.float32))
            drawn = decode(net, latents.mean[label] + latents.spread[label] * noise, int(label))
            if certainty is not None:
                drawn = drawn[recognised(net, drawn, int(label), certainty)]
            images.append(drawn)
            labels.append(torch.full((len(drawn),), int(label), dtype=torch.int64))
            missing -= len(drawn)
            if missing <= 0 or not len(drawn):  # a class that is not recognised at all is not worth the time
                break
    if not images:
        return torch.zeros((0, 1)), torch.zeros(0, dtype=torch.int64)
    return torch.cat(images), torch.cat(labels)


@dataclass(frozen=True)
class Synthetic:
    """Synthetic images, the classes they stand for and, where they are not those alone, their soft labels."""

    images: Tensor
    labels: Tensor
    soft: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def targets_behind(self, y: Tensor, classes: int) -> Tensor:
        """The labels of real examples with these behind them: whole classes, or shares of classes."""
        if self.soft is None:
            return torch.cat([y, self.labels])
        return torch.cat([F.one_hot(y, classes).float(), self.soft])


def soften(net: VaeNet, images: Tensor, labels: Tensor, classes: int, hardness: float) -> Tensor | None:
    """Labels that are `hardness` the wanted class and for the rest what the received classifier says of the image."""
    if hardness == 1 or not len(labels):
        return None
    return hardness * F.one_hot(labels, classes).float() + (1 - hardness) * class_probabilities(net, images)


def best_latents(
    statistics: list[Tensor], latent: int, calibration: Calibration, senders: int, spread: float | None
) -> LatentModel:
    """Per class, the pooled statistics of the senders with the largest noisy counts."""
    models = []
    for label in range(len(statistics[0])):
        ranked = sorted(statistics, key=lambda rows: -float(rows[label, latent]))[:senders]
        models.append(latent_model([rows[label : label + 1] for rows in ranked], latent, calibration, spread))
    parts = {name: torch.cat([getattr(model, name) for model in models]) for name in LatentModel.model_fields}
    return LatentModel(**parts)


def published_claim(search: MeanSearch, latent: int, delta: float) -> str:
    """What the published noise is worth, in words."""
    readings = honest_epsilons(search.quota, latent, search.sigma, delta)
    values = "; ".join(
        f"reading {name}: " + ", ".join(f"{value:.4f} (m = {m})" for m, value in by_m.items())
        for name, by_m in readings.items()
    )
    return (
        "The published noise on latent means, honestly counted, would give ε per record (add or remove one, δ = "
        f"{delta:g}) for a class of m examples, α = {search.quota}, l = {latent}, σ = {search.sigma:g}: {values}; were "
        "the encoder public and nothing filtered. As published there is no finite ε: the filter, the encoder and the "
        "class lists depend on the data"
    )
