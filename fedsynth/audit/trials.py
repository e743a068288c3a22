"""Runs the trials that tasks declare: can two neighbouring data sets be told apart better than a claim allows?

The runs are cut in three. The first try every label that the record in question may have, and one is chosen. Others
show in which direction the numbers differ, and all together choose an event (a side of a threshold). The rest, drawn
apart from all that, evaluate this one event: so whatever was chosen, and however, the bounds hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from fedsynth.audit.bounds import LowerBound, Profile, bound_epsilon, profile
from fedsynth.data.dataset import ClientData, Dataset
from fedsynth.errors import ConfigError
from fedsynth.federation import Client
from fedsynth.federation.client import PrivateState
from fedsynth.federation.host import reproducible
from fedsynth.federation.store import SECRET_BYTES, StateStore
from fedsynth.federation.trials import Trial
from fedsynth.privacy.guarantee import Event
from fedsynth.seeding import derive

VERDICT = 0.999  # confidence with which a claim is called refuted, whatever is shown: honest ones must stand
FEWEST_RUNS = 80
MOST_LABELS = 10
FAILED = 1e30  # stands for each number of a release that failed: that it fails may tell the data sets apart

Numbers = np.ndarray
"""(data set, run, number): what an attacker sees of each run."""


@dataclass(frozen=True)
class Finding:
    """What a trial gave: a lower bound of ε as it is shown, the claim it is held against, and whether that falls."""

    bound: LowerBound
    claim: Profile
    refuted: bool


def run_trial(trial: Trial, runs: int, delta: float, confidence: float, rng: np.random.Generator) -> Finding:
    """Run a trial on both of its data sets, `runs` times each; every life's secret comes from `rng`."""
    if runs < FEWEST_RUNS:
        raise ConfigError(f"An audit with {runs} runs can say nothing: choose at least {FEWEST_RUNS}.")
    claim = trial.claim if trial.claim is not None else profile(_claimed(trial, rng), delta)
    labels = range(min(MOST_LABELS, trial.schema.classes))
    fourth, eighth = runs // 4, runs // 8
    first = {label: _numbers(trial, label, max(4, fourth // len(labels)), rng) for label in labels}
    worst = max(labels, key=lambda label: _apart(_known(trial, label, first[label])).max())
    seen = np.concatenate([first[worst], _numbers(trial, worst, eighth, rng)], axis=1)
    learnt = _direction(_between_rounds(trial, seen))
    fresh, kept = (_numbers(trial, worst, count, rng) for count in (eighth, runs - fourth - 2 * eighth))

    def scores(numbers: Numbers, known: Numbers) -> list[np.ndarray]:
        return [*_known(trial, worst, known).transpose(2, 0, 1), (_between_rounds(trial, numbers) @ learnt)[:, :, 0]]

    # A known direction owes nothing to the runs before: those help to choose. The learnt one looks too good in them.
    choosing = scores(fresh, np.concatenate([seen, fresh], axis=1))
    best = int(np.argmax([_apart(score[:, :, None])[0] for score in choosing]))
    evaluated = scores(kept, kept)[best]
    shown, sure = (bound_epsilon(choosing[best], evaluated, delta, level, claim) for level in (confidence, VERDICT))
    return Finding(shown, claim, sure.refutes(claim))


# -- what an attacker sees ------------------------------------------------------------------------------------------


def _numbers(trial: Trial, label: int, runs: int, rng: np.random.Generator) -> Numbers:
    """The numbers of all rounds of so many clients' lives on each data set."""
    lives = [[_rounds(trial, label, data, rng) for _ in range(runs)] for data in trial.neighbours(label)]
    return np.stack([[np.concatenate([numbers for numbers, _ in life]) for life in one] for one in lives])


def _rounds(
    trial: Trial, label: int, data: Dataset, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, tuple[Event, ...]]]:
    """What every round gives, and what it says that costs. Each life has a secret of its own, and the same seed."""
    nothing = data.subset(np.zeros(0, np.int64))
    held = ClientData(data, nothing, nothing, declared=trial.declared)
    state, key = PrivateState(StateStore(Path()), "0", None), rng.bytes(SECRET_BYTES)
    size = 0
    for round_ in range(1, trial.rounds + 1):
        state.private_reads.clear()
        client = Client("0", held, trial.schema, state, 0, round_, "cpu", secret=lambda: key)
        try:
            with reproducible(derive(0, "torch", round_)):
                numbers = np.asarray(trial.release(client, label), dtype=np.float64).ravel()
        except Exception:
            if not size:
                raise
            numbers = np.full(size, FAILED)
        size = len(numbers)
        costs = tuple(e for g in client.guarantees.values() if g.costs for e in g.events)
        yield np.nan_to_num(numbers, nan=FAILED, posinf=FAILED, neginf=-FAILED), costs


def _claimed(trial: Trial, rng: np.random.Generator) -> list[Event]:
    """What the releases of one life cost together, as claimed or else by their own words."""
    if trial.events:
        return [*trial.events] * trial.rounds
    return [event for _, costs in _rounds(trial, 0, trial.neighbours(0)[1], rng) for event in costs]


# -- what the attacker makes of it ----------------------------------------------------------------------------------


def _known(trial: Trial, label: int, numbers: Numbers) -> Numbers:
    """The numbers along directions that are known: of every round, their sum, and the differences between rounds."""
    parts = np.split(numbers, trial.rounds, axis=2)
    towards = trial.towards or (lambda label, round_: np.eye(parts[0].shape[2]))
    rows = [np.atleast_2d(towards(label, round_)).T for round_ in range(1, trial.rounds + 1)]
    each = [part @ row for part, row in zip(parts, rows, strict=True)]
    apart = [(parts[i] - parts[j]) @ (rows[i] - rows[j]) for i, j in combinations(range(trial.rounds), 2)]
    return np.concatenate([*each, np.sum(each, axis=0), *apart], axis=2)


def _between_rounds(trial: Trial, numbers: Numbers) -> Numbers:
    """All numbers, and their differences between rounds."""
    each = np.split(numbers, trial.rounds, axis=2)
    return np.concatenate([numbers, *(one - other for one, other in combinations(each, 2))], axis=2)


def _direction(numbers: Numbers) -> np.ndarray:
    """The direction (a column) in which the data sets differ most, each number by itself against its spread."""
    difference = numbers[1].mean(0) - numbers[0].mean(0)
    spread = numbers.var(axis=1, ddof=1).mean(0)
    return (difference / np.maximum(spread, 1e-12 * max(1e-300, float(spread.max()))))[:, None]


def _apart(scores: Numbers) -> np.ndarray:
    """How many standard deviations lie between the data sets, for each score; by the data set that spreads it less."""
    difference = np.abs(scores[1].mean(0) - scores[0].mean(0))
    spread = scores.std(axis=1, ddof=1).min(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(difference / spread, nan=0.0, posinf=np.finfo(np.float64).max)
