"""Exact privacy of the Gaussian mechanism (Balle & Wang 2018), stable for any noise.

μ is the L2 sensitivity divided by the standard deviation of the noise. k releases with the same μ are one with μ√k.
"""

import functools
import math
from collections.abc import Iterable

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from fedsynth.errors import ConfigError

LARGEST_QUANTILE = 1e3  # Φ(−1000) is far below any δ that a double can hold


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε for which a Gaussian release is (ε, δ)-differentially private."""
    _require(mu >= 0, "mu", mu, "0 or more")
    _require(0 < delta < 1, "delta", delta, "between 0 and 1")
    if mu == 0 or _log_delta(-mu / 2, mu) <= math.log(delta):
        return 0.0
    # In t = ε/μ − μ/2 the curve is well scaled even where ε is in the billions.
    t = brentq(lambda t: _log_delta(t, mu) - math.log(delta), -mu / 2, LARGEST_QUANTILE, xtol=1e-13, rtol=1e-14)
    return float(mu * (t + mu / 2))


@functools.lru_cache(maxsize=256)
def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest noise (standard deviation, for sensitivity 1) that gives (ε, δ)."""
    _require(epsilon > 0, "epsilon", epsilon, "more than 0")
    _require(0 < delta < 1, "delta", delta, "between 0 and 1")
    low, high = 1e-9, 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2
    mu = brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, low, high, xtol=1e-15, rtol=1e-14)
    return float(1 / mu)


def compose(mus: Iterable[float]) -> float:
    """μ of several Gaussian releases about the same records: √Σμ²."""
    return math.sqrt(sum(mu * mu for mu in mus))


def _log_delta(t: float, mu: float) -> float:
    """log δ at ε = μ (t + μ/2), where δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    With a = −t and b = −t − μ one has e^ε Φ(b)/Φ(a) = erfcx(−b/√2)/erfcx(−a/√2): the exponentials, which overflow,
    cancel.
    """
    ratio = erfcx((t + mu) / math.sqrt(2)) / erfcx(t / math.sqrt(2))
    return float(log_ndtr(-t)) + (math.log1p(-ratio) if ratio < 1 else -math.inf)


def _require(right: bool, name: str, value: float, wanted: str) -> None:
    if not right:
        raise ConfigError(f"{name} = {value} cannot be used: it must be {wanted}.")
