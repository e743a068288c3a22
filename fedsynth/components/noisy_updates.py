"""Noise on weights that were not clipped, as published (Laplace in AggEnhance's paper, Gaussian in GANDALF's).

It proves nothing: all else leaves as ever.
"""

from collections.abc import Collection
from typing import ClassVar

from pydantic import Field

from fedsynth.components.local_training import UpdatePrivacy
from fedsynth.federation import Client
from fedsynth.learning.weights import Weights
from fedsynth.privacy import Guarantee, PrivacyConfig, gaussian_epsilon
from fedsynth.privacy.config import LARGEST, SMALLEST
from fedsynth.privacy.mechanisms import add_gaussian, add_laplace

NOISE = "update noise"  # the purpose of the random numbers


class NoisyUpdates(UpdatePrivacy):
    """Noise of one scale on every weight, as it is (AggEnhance, eq. 20; GANDALF, algorithms 1 and 3)."""

    kind: ClassVar[str] = ""

    noise: float = Field(ge=SMALLEST, le=LARGEST)
    delta: float = Field(gt=0, lt=1)

    @classmethod
    def planned(cls, privacy: PrivacyConfig, trainings: int) -> "NoisyUpdates":
        return cls(noise=privacy.noise, delta=privacy.delta)

    def with_noise(
        self, client: Client, weights: Weights, names: Collection[str], field: str
    ) -> tuple[Weights, dict[str, Guarantee]]:
        add, rng = add_laplace if self.kind == "Laplace" else add_gaussian, client.noise_rng(NOISE)
        noisy = {name: add(weights[name], self.noise, rng) for name in sorted(names)}
        return weights | noisy, {field: self.guarantee()}

    def claim(self) -> str:
        """What the paper says of it, and what that would be worth."""
        return "the paper calls it differential privacy and gives no ε"

    def guarantee(self) -> Guarantee:
        """What is proven about such weights: nothing."""
        return Guarantee.none(
            mechanism=f"{self.kind} noise of scale {self.noise:g} on every weight, without clipping",
            not_covered="everything: a weight that is not clipped has no sensitivity, so nothing is proven by any "
            "noise on it; BatchNorm's statistics get none",
            claimed=self.claim(),
        )


class LaplaceUpdates(NoisyUpdates, name="laplace"):
    """AggEnhance's."""

    kind: ClassVar[str] = "Laplace"


class GaussianUpdates(NoisyUpdates, name="gaussian"):
    """GANDALF's."""

    kind: ClassVar[str] = "Gaussian"

    def claim(self) -> str:
        epsilon = gaussian_epsilon(1 / self.noise, self.delta)
        return (
            f"granting the sensitivity that the paper assumes and nothing enforces, ε = {epsilon:.1e} at "
            f"δ = {self.delta:g} each time it leaves"
        )
