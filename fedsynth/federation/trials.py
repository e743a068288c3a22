"""How a task's claim is put to the test: neighbouring data sets that it can least hide, and what an attacker sees.

A task declares its trial, so that an audit runs the code that a run ran, at a real `Client`:

    @my_task.trial
    def my_trial(guarantee, cfg, schema):
        return [Trial(how="…", schema=…, neighbours=…, release=…)]

A claim whose task declares none cannot be tested, and an audit says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsynth.data.dataset import Dataset, Schema
from fedsynth.federation.client import Client
from fedsynth.privacy import Event, Guarantee

FAR = 1e3  # times the clip: so far that clipping is certain


@dataclass(frozen=True)
class Trial:
    """Two neighbouring data sets, and several releases about one of them.

    `neighbours(label)` are the training examples without and with a record (or of one client and another) that is as
    hard to hide as can be, of that label: an audit tries every class. Both clients tell `declared` as their number of
    examples, where that is public. `release(client, label)` does what the task does at this client in this round, and
    gives the numbers that an attacker looks at. Rounds follow each other with the client's own state and noise: what
    the record adds should be as long in each and differ between them, or noise that is used twice is not seen.
    `towards(label, round)`: directions (rows) in which the record moves the numbers of a round, as far as they are
    known. `events` are what one round costs by the claim that is tested; without any, what the releases themselves
    say. `claim` in place of both: an ε for each of some δ.
    """

    how: str
    schema: Schema
    neighbours: Callable[[int], tuple[Dataset, Dataset]]
    release: Callable[[Client, int], np.ndarray]
    rounds: int = 2
    declared: int | None = None
    towards: Callable[[int, int], np.ndarray] | None = None
    events: tuple[Event, ...] = ()
    claim: Mapping[float, float] | None = None


TrialMaker = Callable[[Guarantee, Any, Schema], Sequence[Trial]]
"""Trials of a guarantee, from it, the settings of the method and the schema of the run's data; none where none fits."""


def flat_numbers(weights: Mapping[str, Any], start: Mapping[str, Any]) -> np.ndarray:
    """How far weights are from where they started, as one vector in float64."""
    moved = [(weights[name].double() - start[name].double()).flatten() for name in sorted(start)]
    return np.concatenate([part.numpy(force=True) for part in moved])
