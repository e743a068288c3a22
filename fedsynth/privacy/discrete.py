"""Counts with discrete Gaussian noise, drawn exactly (Canonne, Kamath & Steinke 2020): no floating-point leaks.

Its ε is not that of the continuous Gaussian: at σ = 1 and δ = 1e-5 it is 4.430 instead of 4.377. So it has an event of
its own, accounted with its own distribution, and its noise is chosen by its own δ.
"""

import functools
import math
from fractions import Fraction

import numpy as np

from fedsynth.errors import ConfigError
from fedsynth.privacy.gaussian import gaussian_sigma
from fedsynth.privacy.guarantee import LARGEST_DISCRETE, DiscreteGaussianEvent

DENOMINATOR = 10**6  # σ² is a fraction with this denominator, so that every chance below is an exact ratio
TAILS = 40  # standard deviations within which a double sees any probability at all


def discrete_gaussian_histogram(
    counts: np.ndarray, epsilon: float, delta: float, rng: np.random.Generator
) -> tuple[np.ndarray, DiscreteGaussianEvent]:
    """Counts of disjoint groups with noise for (ε, δ): adding or removing one record changes one of them by 1."""
    if not np.issubdtype(np.asarray(counts).dtype, np.integer):
        raise ConfigError("A histogram must hold whole numbers.")
    variance = discrete_gaussian_variance(epsilon, delta)
    noise = [discrete_gaussian(variance, rng) for _ in range(np.size(counts))]
    noisy = np.asarray(counts, np.int64) + np.array(noise, np.int64).reshape(np.shape(counts))
    return noisy, DiscreteGaussianEvent(sigma=math.sqrt(variance))


def discrete_gaussian_delta(epsilon: float, sigma: float) -> float:
    """δ(ε) of one count that changes by 1: the sum over all outcomes of what e^ε does not cover."""
    reach = math.ceil(TAILS * sigma) + 2
    y = np.arange(-reach, reach + 1, dtype=np.float64)
    log_weight = -(y**2) / (2 * sigma**2)
    losses = (1 - 2 * y) / (2 * sigma**2)  # log of P[noise = y] / P[noise = y − 1]
    excess = np.exp(log_weight) * -np.expm1(np.minimum(epsilon - losses, 0.0))
    return float(excess.sum() / np.exp(log_weight).sum())


@functools.lru_cache(maxsize=256)
def discrete_gaussian_variance(epsilon: float, delta: float) -> Fraction:
    """The smallest σ² (in millionths) found by halving that gives (ε, δ) for one count that changes by 1."""
    around = gaussian_sigma(epsilon, delta)
    if around > LARGEST_DISCRETE / 2:
        raise ConfigError(f"epsilon = {epsilon} is too small for noise on counts: choose at least 0.001.")
    low, high = 0, math.ceil((2 * around + 1) ** 2 * DENOMINATOR)
    while high - low > 1:
        middle = (low + high) // 2
        enough = discrete_gaussian_delta(epsilon, math.sqrt(middle / DENOMINATOR)) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return Fraction(high, DENOMINATOR)


def discrete_gaussian(variance: Fraction, rng: np.random.Generator) -> int:
    """A whole number y with probability in proportion to exp(−y²/2σ²), by rejection from a discrete Laplace."""
    t = math.isqrt(math.floor(variance)) + 1
    while True:
        y = _discrete_laplace(t, rng)
        if _happens_exp((abs(y) - variance / t) ** 2 / (2 * variance), rng):
            return y


def _discrete_laplace(t: int, rng: np.random.Generator) -> int:
    """A whole number y with probability in proportion to exp(−|y|/t)."""
    while True:
        low = int(rng.integers(t))
        if not _happens_exp(Fraction(low, t), rng):
            continue
        high = 0
        while _happens_exp(Fraction(1), rng):
            high += 1
        size, negative = low + t * high, bool(rng.integers(2))
        if not (negative and size == 0):  # zero has one sign
            return -size if negative else size


def _happens_exp(exponent: Fraction, rng: np.random.Generator) -> bool:
    """True with chance exp(−exponent), from fair coins alone."""
    while exponent > 1:
        if not _happens_exp(Fraction(1), rng):
            return False
        exponent -= 1
    k = 1
    while _happens(exponent / k, rng):
        k += 1
    return k % 2 == 1


def _happens(chance: Fraction, rng: np.random.Generator) -> bool:
    """True with exactly this chance: a uniform whole number below the denominator, by rejection of random bits."""
    bits = chance.denominator.bit_length()
    while True:
        drawn = int.from_bytes(rng.bytes((bits + 7) // 8), "big") >> (-bits % 8)
        if drawn < chance.denominator:
            return drawn < chance.numerator
