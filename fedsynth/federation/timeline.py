"""Who was asked for what, when, and what came of it, ask by ask."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsynth.federation.port import Failure

COLUMNS = ("client", "task", "round", "start", "end", "simulated_start", "simulated_end", "outcome")
ANSWERED = "answered"
KEPT_ROWS = 50_000  # of a whole run; a file of some 3 MB

Moment = tuple[float, float]
"""Seconds of the run, and simulated seconds where time is simulated."""


@dataclass
class Timeline:
    """Rows in the order of the asks. Whoever keeps them in a file takes them, so that checkpoints stay small."""

    rows: list[list[Any]] = field(default_factory=list)
    noted: int = 0  # rows so far, those that were taken included

    def add(
        self,
        task: str,
        round: int,
        start: Moment,
        end: Moment,
        answered: Iterable[str],
        failures: Mapping[str, Failure],
        spans: Mapping[str, tuple[float, float]],
    ) -> None:
        """Note one ask: a row per client, with "answered" or the kind of its failure.

        `spans` are the simulated times of single clients, where the engine knows them.
        """
        outcomes = dict.fromkeys(answered, ANSWERED) | {c: str(f.kind) for c, f in failures.items()}
        for client, outcome in outcomes.items():
            if self.noted < KEPT_ROWS:
                simulated = spans.get(client, (start[1], end[1]))
                times = [round_to_ms(value) for value in (start[0], end[0], *simulated)]
                self.rows.append([client, task, round, *times, outcome])
                self.noted += 1

    def take(self) -> list[list[Any]]:
        """The rows since they were last taken."""
        rows, self.rows = self.rows, []
        return rows


def round_to_ms(seconds: float) -> float:
    """Milliseconds are enough for people."""
    return round(seconds, 3)
