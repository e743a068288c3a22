"""What a client has spent, and how much it may: adding up guarantees, by unit and adjacency and over all of them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from fedsynth.errors import FedsynthError
from fedsynth.privacy.accounting import epsilon, epsilon_bound
from fedsynth.privacy.guarantee import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    Guarantee,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
    Scope,
)

ROUNDING = 1e-9  # noise calibrated to the budget itself must fit it
_KEPT = TypeAdapter(list[tuple[Scope, list[tuple[Event, int]]]])


class BudgetError(FedsynthError):
    """A release that would bring a client past its privacy budget; nothing of it was sent."""


class Spending:
    """Events by what they are about, each with how often it happened."""

    def __init__(self, released: Iterable[tuple[Guarantee, int]] = ()) -> None:
        self.events: dict[Scope, Counter[Event]] = {}
        for guarantee, times in released:
            self.add(guarantee, times)

    def add(self, guarantee: Guarantee, times: int = 1) -> None:
        """Note a release; one that proves nothing spends nothing and is not protected either."""
        if guarantee.proven:
            events = self.events.setdefault(guarantee.scope, Counter())
            for event in guarantee.events:
                events[event] += times

    def plus(self, guarantees: Iterable[Guarantee]) -> "Spending":
        """What would be spent after these releases too."""
        result = Spending()
        result.events = {scope: Counter(events) for scope, events in self.events.items()}
        for guarantee in guarantees:
            result.add(guarantee)
        return result

    def epsilon(self, scope: Scope, delta: float) -> float:
        """ε of everything in one scope; 0 where nothing was released."""
        return epsilon(self.events.get(scope, Counter()), delta)

    def together(self) -> tuple[Scope, Counter[Event]]:
        """All events as if they were about one and the same record, and what their ε is then about.

        What hides a whole client hides each of its records. Where a client comes or goes, changing one of its records
        is two such steps: twice the sensitivity.
        """
        if len(self.events) == 1:
            return next(iter(self.events.items()))
        total: Counter[Event] = Counter()
        for scope, events in self.events.items():
            for event, times in events.items():
                total[_twice(event) if scope == ("client", "add or remove one") else event] += times
        return ("record", "add or remove one"), total

    def as_list(self) -> list[Any]:
        """JSON-ready."""
        kept = [(scope, list(events.items())) for scope, events in sorted(self.events.items())]
        return list(_KEPT.dump_python(kept, mode="json"))

    @classmethod
    def from_list(cls, values: list[Any]) -> "Spending":
        """Rebuild from `as_list`."""
        result = cls()
        result.events = {scope: Counter(dict(events)) for scope, events in _KEPT.validate_python(values)}
        return result


@dataclass(frozen=True)
class Budget:
    """The largest ε that a client may reach by its protected releases, all units and adjacencies together."""

    epsilon: float
    delta: float

    def exceeded(self, spending: Spending) -> tuple[Scope, float] | None:
        """Where, and with which ε, the spending is past the budget; None when it is not."""
        most = self.epsilon * (1 + ROUNDING)
        scope, events = spending.together()
        if epsilon_bound(events, self.delta) <= most:  # quick, and enough most of the time
            return None
        total = epsilon(events, self.delta)
        return (scope, total) if total > most else None


def _twice(event: Event) -> Event:
    """An event with twice its sensitivity."""
    match event:
        case GaussianEvent(mu=mu):
            return GaussianEvent(mu=2 * mu)
        case LaplaceEvent(scale=scale):
            return LaplaceEvent(scale=scale / 2)
        case PureEvent(epsilon=each):
            return PureEvent(epsilon=2 * each)
        case SampledGaussianEvent(noise=noise, steps=steps):
            return GaussianEvent(mu=2 * math.sqrt(steps) / noise)  # sampling only helps, so it is left out
        case DiscreteGaussianEvent():
            raise AssertionError("noise on counts is about records")


def say_epsilon(value: float, scope: tuple[str, str], delta: float) -> str:
    """An ε in a sentence, never without its unit, adjacency and δ."""
    unit, adjacency = scope
    return f"ε = {say_number(value)} per {unit} ({adjacency}, δ = {delta:g})"


def say_number(value: float) -> str:
    """Three decimals, or three digits where that would show nothing or too much."""
    return f"{value:.3f}" if value == 0 or 0.01 <= value < 10_000 else f"{value:.3g}"
