"""ε of any composition of events: the closed form where all are Gaussian, privacy loss distributions otherwise.

The distributions are those of the dp-accounting library, rounded so that ε is never too small. Where they would need
too much memory (an ε in the hundreds or more) a bound takes their place: larger than the truth, never smaller.
"""

import bisect
import contextlib
import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from scipy.optimize import brentq

from fedsynth.errors import ConfigError
from fedsynth.privacy.gaussian import compose, gaussian_epsilon
from fedsynth.privacy.guarantee import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
)

LARGEST_EXACT = 60.0  # beyond this ε a loss distribution takes many seconds and gigabytes
SMALLEST_NOISE, LARGEST_NOISE = 0.05, 1e4
SMALLEST_MU = 1e-9
NOISE_TOLERANCE = 1e-5  # relative
FINEST, COARSEST = 1e-4, 1e-3  # steps of a loss distribution

Events = Iterable[Event] | Mapping[Event, int]
Counted = tuple[tuple[Event, int], ...]

SMALLEST_RATE = 1e-12  # of sampling; smaller ones are counted as this


def epsilon(events: Events, delta: float) -> float:
    """The ε of all events together at this δ; `events` may be a list, or say how often each one happened."""
    return _epsilon(_counted(events), delta)


def epsilon_bound(events: Events, delta: float) -> float:
    """An ε that is certainly large enough, in a fraction of the time of `epsilon`."""
    return _bound(_counted(events), delta)


@functools.lru_cache(maxsize=4096)
def sampled_gaussian_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise multiplier with which `steps` on Poisson samples cost no more than ε at this δ.

    Bracketed by the quick bound, then a search with exact costs; the safe end of what is left.
    """
    if epsilon <= 0:
        raise ConfigError(f"epsilon = {epsilon} cannot be used: it must be more than 0.")

    def cost(noise: float, measure: Callable[[Counted, float], float] = _epsilon) -> float:
        return measure(_counted([SampledGaussianEvent(rate=rate, noise=noise, steps=steps)]), delta)

    noises = _noises()
    first = bisect.bisect_left(noises, True, key=lambda noise: cost(noise, _bound) <= epsilon)
    if first == len(noises):
        raise ConfigError(f"epsilon = {epsilon} needs a noise multiplier above {LARGEST_NOISE:g} at {steps} steps.")
    low = high = noises[first]
    while low > SMALLEST_NOISE and cost(low) <= epsilon:
        low /= 1.5
    if low <= SMALLEST_NOISE:
        return SMALLEST_NOISE
    found = brentq(lambda log: cost(math.exp(log)) - epsilon, math.log(low), math.log(high), xtol=NOISE_TOLERANCE)
    noise = math.exp(found)
    while cost(noise) > epsilon:
        noise *= 1 + NOISE_TOLERANCE
    return noise


def _noises() -> list[float]:
    """Noise multipliers among which a search begins, each half as large again as the one before."""
    noises = [SMALLEST_NOISE]
    while noises[-1] * 1.5 <= LARGEST_NOISE:
        noises.append(noises[-1] * 1.5)
    return noises


def _counted(events: Events) -> Counted:
    """Equal events merged, in an order that does not depend on how they came; what costs nothing is dropped."""
    given = events.items() if isinstance(events, Mapping) else ((event, 1) for event in events)
    counts: Counter[Event] = Counter()
    mus: list[float] = []
    for event, times in given:
        if isinstance(event, GaussianEvent):
            mus.append(event.mu * math.sqrt(times))
        elif isinstance(event, SampledGaussianEvent):
            if event.rate == 1:
                mus.append(math.sqrt(times * event.steps) / event.noise)
            elif event.rate > 0:
                counts[event.model_copy(update={"steps": 1})] += times * event.steps
        else:
            counts[event] += times
    mu = compose(sorted(mus))
    if mu > 0:
        # Rounded up where there are others besides: the square of a smaller one overflows their accountants.
        counts[GaussianEvent(mu=max(mu, SMALLEST_MU) if counts else mu)] = 1
    costly = [(e, n) for e, n in counts.items() if n > 0 and not (isinstance(e, PureEvent) and e.epsilon == 0)]
    return tuple(sorted(costly, key=lambda entry: repr(entry[0])))


@functools.lru_cache(maxsize=4096)
def _epsilon(events: Counted, delta: float) -> float:
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta} cannot be used: it must be between 0 and 1.")
    if all(isinstance(event, GaussianEvent) for event, _ in events):
        return gaussian_epsilon(compose(e.mu for e, _ in events if isinstance(e, GaussianEvent)), delta)
    bound = _bound(events, delta)
    if bound > LARGEST_EXACT:
        return bound
    step = _step(events, bound)
    exact = functools.reduce(lambda one, other: one.compose(other), (_losses(e, n, step) for e, n in events))
    return min(bound, float(exact.get_epsilon_for_delta(delta)))


@functools.lru_cache(maxsize=4096)
def _bound(events: Counted, delta: float) -> float:
    if all(isinstance(event, GaussianEvent) for event, _ in events):
        return _epsilon(events, delta)
    return min(_simple_bound(events, delta), _rdp(events, delta))


def _simple_bound(events: Counted, delta: float) -> float:
    """ε of the Gaussians by their closed form plus the sum of the pure ones. Sampling only helps, so it is left out."""
    mus, pure = [], 0.0
    for event, times in events:
        match event:
            case GaussianEvent(mu=mu):
                mus.append(mu * math.sqrt(times))
            case SampledGaussianEvent(noise=noise):
                mus.append(math.sqrt(times) / noise)
            case LaplaceEvent(scale=scale):
                pure += times / scale
            case PureEvent(epsilon=each):
                pure += times * each
            case DiscreteGaussianEvent():
                return math.inf  # bounded by its Rényi divergence alone
    return gaussian_epsilon(compose(mus), delta) + pure


@functools.lru_cache(maxsize=4096)
def _rdp(events: Counted, delta: float) -> float:
    """ε by Rényi accounting: quick, 7 to 70 percent larger than `epsilon`, and what many papers print.

    Every order gives a bound, and the smallest counts. It falls up to the best order and rises after it, so few are
    tried: whole orders, which cost least, then those between the best of them and its neighbours.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon

    @functools.cache
    def bound(order: float) -> float:
        total = sum(times * _renyi(event, order) for event, times in events)
        with _silent("absl"):
            return float(compute_epsilon([order], [total], delta)[0])

    orders = [float(order) for order in DEFAULT_RDP_ORDERS]
    whole = [order for order in orders if order.is_integer()]
    apart, best = 16, min(whole[::16], key=bound)
    while apart > 1:
        apart //= 2
        at = whole.index(best)
        best = min(whole[max(0, at - apart) : at + apart + 1 : apart], key=bound)
    return min(bound(order) for order in orders if abs(order - best) < 1)


@functools.lru_cache(maxsize=2**14)
def _renyi(event: Event, order: float) -> float:
    """The Rényi divergence of an event that happens once, at one order: a run asks for it after every round."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    known: Any
    match event:
        case GaussianEvent(mu=mu):
            known = dp_event.GaussianDpEvent(1 / mu)
        case SampledGaussianEvent(rate=rate, noise=noise):
            known = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
        case LaplaceEvent(scale=scale):
            known = dp_event.LaplaceDpEvent(scale)
        case PureEvent(epsilon=each):
            known = dp_event.ZCDpEvent(each**2 / 2)  # Bun & Steinke 2016, proposition 1.4
        case DiscreteGaussianEvent(sigma=sigma):
            known = dp_event.ZCDpEvent(1 / (2 * sigma**2))  # Canonne, Kamath & Steinke 2020, theorem 4
    with _silent("absl"):  # it warns of orders that it leaves out, which only makes the bound larger
        return float(RdpAccountant([order]).compose(known).rdp[0])


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _step(events: Counted, bound: float) -> float:
    """How finely to cut the losses: what many compositions or a small ε need, coarser (and faster) elsewhere.

    The error of smooth losses grows with the number of compositions times the square of the step; that of the others
    with the step itself.
    """
    if any(isinstance(event, PureEvent | DiscreteGaussianEvent) for event, _ in events):
        return FINEST
    most = max(times for _, times in events)
    return max(FINEST, min(COARSEST, bound / 1000, math.sqrt(2e-5 / most)))


def _losses(event: Event, times: int, step: float) -> Any:
    """The privacy loss distribution of an event that happened so many times."""
    if isinstance(event, GaussianEvent):
        return _losses_once(GaussianEvent(mu=event.mu * math.sqrt(times)), step)
    return _losses_once(event, step).self_compose(times)


@functools.lru_cache(maxsize=8)
def _losses_once(event: Event, step: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    finely: dict[str, float] = {"value_discretization_interval": step}
    match event:
        case GaussianEvent(mu=mu):
            return pld.from_gaussian_mechanism(1 / mu, **finely)
        case SampledGaussianEvent(rate=rate, noise=noise):
            # Rounded up, which costs a little more: the library divides by the rate, and fails on tiny ones.
            return pld.from_gaussian_mechanism(noise, sampling_prob=max(rate, SMALLEST_RATE), **finely)
        case LaplaceEvent(scale=scale):
            return pld.from_laplace_mechanism(scale, **finely)
        case PureEvent(epsilon=each):
            return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(each, 0), **finely)
        case DiscreteGaussianEvent(sigma=sigma):
            return pld.from_discrete_gaussian_mechanism(sigma, use_connect_dots=True, **finely)
