"""Means over seeds with 95 % intervals, and paired differences on the same splits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values and half the width of its 95 % interval; None for a single value."""

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + (self.half or 0.0)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero; never for a single value."""
        return self.half is not None and (self.low > 0 or self.high < 0)

    def text(self, form: str = ".2f", scale: float = 1.0) -> str:
        """As people write it: 72.42 ± 1.30."""
        spread = "" if self.half is None else f" ± {scale * self.half:{form.lstrip('+')}}"
        return f"{scale * self.mean:{form}}{spread}"


def interval(values: Sequence[float | None]) -> Interval | None:
    """Student's t interval of the mean of the known values; None when none is known."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    if len(known) == 1:
        return Interval(known[0], None, 1)
    from scipy.stats import t  # slow to import, needed where results are shown

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return Interval(mean(known), quantile * stdev(known) / math.sqrt(len(known)), len(known))


def paired_difference(of: Mapping[Any, float | None], to: Mapping[Any, float | None]) -> Interval | None:
    """The mean difference over the keys (seed and split) that both have, with its interval."""
    pairs = [(of[key], to[key]) for key in of if key in to]
    return interval([one - other for one, other in pairs if one is not None and other is not None])
