"""Counting how many examples training has gone through, so that every result can say what it cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Effort:
    """Examples that were trained on, each time they were."""

    examples: int = 0


_CURRENT: ContextVar[Effort | None] = ContextVar("effort", default=None)


@contextmanager
def measured_effort() -> Iterator[Effort]:
    """Everything trained inside is counted."""
    effort = Effort()
    token = _CURRENT.set(effort)
    try:
        yield effort
    finally:
        _CURRENT.reset(token)


def count_examples(examples: int) -> None:
    """Say that so many examples were trained on; every training loop does."""
    effort = _CURRENT.get()
    if effort is not None:
        effort.examples += examples
