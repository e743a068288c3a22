"""Who was asked, who answered, who did not and why, and what crossed the line between server and clients."""

import dataclasses
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from fedsynth.federation.payload import empty
from fedsynth.federation.port import Failure
from fedsynth.federation.timeline import Timeline
from fedsynth.privacy import Guarantee, Ledger

EVALUATION = "views.score"  # the task that evaluates models; what it sends is not a cost of the method
KEPT_FAILURES = 1000  # a long faulty run must not grow its checkpoints without bound; the total is always exact


@dataclass
class Participation:
    """Running totals, small enough to go into every checkpoint."""

    asked: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    bytes_up: Counter[str] = field(default_factory=Counter)  # by task
    bytes_down: Counter[str] = field(default_factory=Counter)
    client_seconds: float = 0.0
    client_epochs: float = 0.0
    server_seconds: float = 0.0  # the server's own work, over all cores
    failures: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    notes: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    timeline: Timeline = field(default_factory=Timeline)
    records: dict[str, Any] = field(default_factory=dict)  # what the method wants people to see, by name

    def request(self, client: str, task: str, size: int) -> None:
        """Note a request that was sent."""
        self.asked[client] += 1
        self.bytes_down[task] += size

    def answer(self, client: str, task: str, size: int, seconds: float, epochs: float) -> None:
        """Note a reply that was accepted."""
        self.answered[client] += 1
        self.bytes_up[task] += size
        self.client_seconds += seconds
        self.client_epochs += epochs

    def bytes(self) -> dict[str, Any]:
        """Bytes up and down of the method itself, those of its evaluation apart, and both by task."""
        by_task = {t: {"up": self.bytes_up[t], "down": self.bytes_down[t]} for t in sorted(self.bytes_down)}
        evaluation = by_task.get(EVALUATION, {"up": 0, "down": 0})
        return {
            "up": self.bytes_up.total() - evaluation["up"],
            "down": self.bytes_down.total() - evaluation["down"],
            "evaluation": evaluation,
            "by_task": by_task,
        }

    def failure(self, failure: Failure, task: str, round: int) -> None:
        """Note a client that did not answer."""
        self.failed += 1
        if len(self.failures) < KEPT_FAILURES:
            row = asdict(failure) | {"task": task, "round": round}
            row.pop("traceback")
            self.failures.append(row)

    def release(
        self, client: str, task: str, what: dict[str, str], fields: dict[str, Any], guarantees: dict[str, Guarantee]
    ) -> None:
        """Enter what a client sent in one reply: the fields that were not empty, or that a mechanism made so."""
        left = {name: guarantees.get(name) for name in what if name in guarantees or not empty(fields[name])}
        self.ledger.record(client, task, left, what, evaluation=task == EVALUATION)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready copy."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Participation":
        """Rebuild from `as_dict`."""
        kept: dict[str, Any] = dict(values)
        for name in ("asked", "answered", "bytes_up", "bytes_down"):
            kept[name] = Counter(kept[name])
        kept["ledger"] = Ledger.from_dict(kept["ledger"])
        kept["timeline"] = Timeline(**kept.get("timeline", {}))
        return cls(**kept)


def _plain(value: Any) -> Any:
    if isinstance(value, Ledger):
        return value.as_dict()
    if isinstance(value, Timeline):
        return asdict(value)
    return dict(value) if isinstance(value, Counter) else value
