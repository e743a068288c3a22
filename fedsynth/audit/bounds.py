"""Audits: numbers from experiments against what is claimed. An audit can refute a claim; it can never prove one.

`audit_mechanism` asks whether two neighbouring data sets can be told apart better than a claim allows.
`evaluate_attack` asks how well an attack tells records that were trained on from others.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from fedsynth.errors import ConfigError
from fedsynth.privacy.accounting import epsilon
from fedsynth.privacy.guarantee import Event

Draw = Callable[[int, np.random.Generator], float]
"""A number that an attacker makes of one run of a mechanism on data set 0 or 1."""
Profile = Mapping[float, float]
"""What is claimed: an ε for each of some δ."""

OTHER_DELTAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)  # at which a claim is tested beside its own δ
FEWEST_RUNS = 20
HUNCH = 0.1  # error of the bounds by which an event is chosen: it is evaluated by other runs, with care
TOO_FEW = 1e-12  # of a rate: nothing to divide by


# -- neighbouring data sets -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LowerBound:
    """ε is at least this at δ, with this confidence, after `runs` runs on each data set.

    `tpr` is at most the chance of the chosen event on one data set, `fpr` at least its chance on the other.
    """

    epsilon: float
    delta: float
    confidence: float
    runs: int
    tpr: float
    fpr: float

    def refutes(self, claim: Profile) -> bool:
        """Whether the event is likelier than e^ε times its chance on the other data set and δ allow, for any claim."""
        return any(self.tpr > math.exp(min(eps, 700.0)) * self.fpr + delta for delta, eps in claim.items())


def profile(events: Iterable[Event], delta: float) -> dict[float, float]:
    """What events claim: their ε at this δ and at some larger ones, which can be tested with far fewer runs."""
    events = tuple(events)
    return {other: epsilon(events, other) for other in (delta, *(d for d in OTHER_DELTAS if d > delta))}


def audit_mechanism(
    draw: Draw,
    runs: int,
    delta: float,
    rng: np.random.Generator,
    confidence: float = 0.95,
    claim: Profile | None = None,
) -> LowerBound:
    """A lower bound of ε from `runs` runs of a mechanism on each of two neighbouring data sets.

    Half of the runs choose an event (a side of a threshold, and which data set makes it likelier); the other half
    evaluate this one event with Clopper–Pearson bounds: ε ≥ ln((TPR_lo − δ) / FPR_hi). The event chosen is the one
    that speaks most against the claim, or where none does, the one that gives the largest bound.
    """
    if runs < FEWEST_RUNS:
        raise ConfigError(f"An audit with {runs} runs can say nothing: choose at least {FEWEST_RUNS}.")
    # Alternating, so that what the mechanism keeps between runs is the same for both.
    scores = np.array([[draw(which, rng) for which in (0, 1)] for _ in range(runs)], dtype=np.float64).T
    if np.isnan(scores).any():
        raise ConfigError("An audit needs a number from every run, and some runs gave none (nan).")
    half = runs // 2
    return replace(bound_epsilon(scores[:, :half], scores[:, half:], delta, confidence, claim), runs=runs)


def bound_epsilon(
    choosing: np.ndarray, evaluated: np.ndarray, delta: float, confidence: float, claim: Profile | None
) -> LowerBound:
    """A lower bound of ε from scores (data set, run): the first choose an event, the others evaluate it."""
    error = (1 - confidence) / 2  # for each of the two bounds
    direction, threshold, likelier = _choose(choosing, delta, error, claim)
    sides = direction * evaluated >= direction * threshold
    hits = sides.sum(axis=1)
    count = sides.shape[1]
    tpr = float(_low(hits[likelier], count, error))
    fpr = float(_high(hits[1 - likelier], count, error))
    return LowerBound(float(_bound(np.array(tpr), np.array(fpr), delta)), delta, confidence, count, tpr, fpr)


def _choose(scores: np.ndarray, delta: float, error: float, claim: Profile | None) -> tuple[int, float, int]:
    """Which side of which threshold, and on which data set that is likelier."""
    count = scores.shape[1]
    options: list[tuple[float, float, tuple[int, float, int]]] = []
    for direction in (1, -1):
        thresholds = _between(np.unique(scores))
        ordered = np.sort(direction * scores, axis=1)
        hits = [count - np.searchsorted(row, direction * thresholds, side="left") for row in ordered]
        for likelier in (0, 1):
            tpr, fpr = _low(hits[likelier], count, error), _high(hits[1 - likelier], count, error)
            bounds = _bound(tpr, fpr, delta)
            likely = _low(hits[likelier], count, HUNCH), _high(hits[1 - likelier], count, HUNCH)
            against = _against(*likely, claim)
            for best in {int(np.argmax(bounds)), int(np.argmax(against))}:
                options.append(
                    (float(against[best]), float(bounds[best]), (direction, float(thresholds[best]), likelier))
                )
    worst = max(options, key=lambda option: option[:2])
    return worst[2] if worst[0] > 0 else max(options, key=lambda option: option[1])[2]


def _between(values: np.ndarray) -> np.ndarray:
    """The smallest, and half-way between neighbours: runs yet to come may lie a little beyond those that were seen."""
    return np.concatenate([values[:1], (values[:-1] + values[1:]) / 2])


def _against(tpr: np.ndarray, fpr: np.ndarray, claim: Profile | None) -> np.ndarray:
    """By how much an event is likelier than the claim allows; below 0 where the claim allows it."""
    allowed = [np.exp(min(eps, 700.0)) * fpr + delta for delta, eps in (claim or {}).items()]
    return np.max([tpr - most for most in allowed], axis=0) if allowed else np.full(tpr.shape, -1.0)


def _bound(tpr: np.ndarray, fpr: np.ndarray, delta: float) -> np.ndarray:
    return np.maximum(0.0, np.log(np.maximum(tpr - delta, TOO_FEW) / np.maximum(fpr, TOO_FEW)))


# -- membership -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Membership:
    """How well an attack tells `members` members from `others` others. All intervals hold together, with `confidence`.

    The attack calls a record a member when its score is above `threshold`. `fpr` is the rate of false alarms that was
    asked for; `fpr_high` is the most that the threshold may really have. Fewer than 1 / fpr others cannot show so low a
    rate: then the threshold lies above all of them, and `fpr_high` says how little that means.
    """

    tpr: float
    tpr_low: float
    tpr_high: float
    fpr: float
    fpr_high: float
    auc: float
    auc_low: float
    auc_high: float
    threshold: float
    members: int
    others: int
    confidence: float

    @property
    def enough(self) -> bool:
        """Whether there are others enough to measure the wanted rate of false alarms at all."""
        return self.others * self.fpr >= 1

    @property
    def found(self) -> bool:
        """Whether members can be told from others: on the whole, or some of them with few false alarms."""
        return self.auc_low > 0.5 or self.tpr_low > self.fpr_high


def evaluate_attack(
    member_scores: np.ndarray, other_scores: np.ndarray, fpr: float = 0.001, confidence: float = 0.95
) -> Membership:
    """Evaluate an attack by its scores (larger: rather a member): its TPR at a low FPR, and its AUC, with intervals."""
    members, others = np.asarray(member_scores, np.float64), np.asarray(other_scores, np.float64)
    if len(members) < 2 or len(others) < 2:
        raise ConfigError("Membership inference needs at least two members and two others.")
    if not 0 < fpr < 1:
        raise ConfigError(f"fpr = {fpr} cannot be used: it must be between 0 and 1.")
    error = (1 - confidence) / 3  # three intervals
    alarms = min(math.floor(fpr * len(others) + 1e-9), len(others) - 1)
    threshold = float(np.sort(others)[::-1][alarms])  # so many others are above it, fewer where some are equal
    wrong = int((others > threshold).sum())
    hits, n = int((members > threshold).sum()), len(members)
    auc, spread = _auc(members, others)
    reach = float(ndtri(1 - error / 2)) * spread
    return Membership(
        tpr=hits / n,
        tpr_low=float(_low(hits, n, error / 2)),
        tpr_high=float(_high(hits, n, error / 2)),
        fpr=fpr,
        fpr_high=float(_high(wrong, len(others), error)),
        auc=auc,
        auc_low=max(0.0, auc - reach),
        auc_high=min(1.0, auc + reach),
        threshold=threshold,
        members=n,
        others=len(others),
        confidence=confidence,
    )


def _auc(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The chance that a member scores above an other (ties: half), and its standard error (DeLong et al. 1988)."""

    def placed(values: np.ndarray, among: np.ndarray) -> np.ndarray:
        ordered = np.sort(among)
        below, up_to = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
        return np.asarray((below + up_to) / (2 * len(among)))

    of_members, of_others = placed(members, others), 1 - placed(others, members)
    # Smoothed: where all members stand above all others the spread that is seen is 0, and the true one is not.
    least = 1 / (4 * min(len(members), len(others)) ** 2)
    variance = of_members.var(ddof=1) / len(members) + of_others.var(ddof=1) / len(others)
    return float(of_members.mean()), math.sqrt(variance + least)


# -- Clopper–Pearson ------------------------------------------------------------------------------------------------


def clopper_pearson(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a chance that gave `hits` of `count`."""
    error = (1 - confidence) / 2
    return float(_low(hits, count, error)), float(_high(hits, count, error))


def _low(hits: np.ndarray | int, count: int, error: float) -> np.ndarray:
    """At most the chance, but for `error`; 0 after no hit."""
    hits = np.asarray(hits)
    return np.where(hits > 0, beta.ppf(error, np.maximum(hits, 1), count - hits + 1), 0.0)


def _high(hits: np.ndarray | int, count: int, error: float) -> np.ndarray:
    """At least the chance, but for `error`; 1 after nothing but hits."""
    hits = np.asarray(hits)
    return np.where(hits < count, beta.ppf(1 - error, hits + 1, np.maximum(count - hits, 1)), 1.0)
