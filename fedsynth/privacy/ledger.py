"""The ledger: what each client released, how often, under which guarantee, and what that comes to.

Most clients have the same history, so a history is kept as counts of parcels: a parcel is what one reply held, the
task with its fields and their guarantees. That stays small with many clients and many rounds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsynth.privacy.budget import Budget, Spending
from fedsynth.privacy.guarantee import Guarantee, Scope, Unit
from fedsynth.privacy.rows import Entry, History, LedgerRow, ledger_rows, ledger_words

Parcel = tuple[str, tuple[tuple[str, int | None], ...]]
"""A task, and its fields with the number of their guarantee (None: unprotected)."""


@dataclass
class Ledger:
    """What the clients of a run released."""

    guarantees: list[Guarantee] = field(default_factory=list)
    parcels: list[Parcel] = field(default_factory=list)
    histories: dict[str, Counter[int]] = field(default_factory=dict)  # client to parcels
    latest: dict[str, Counter[int]] = field(default_factory=dict)  # of the last round in which a client took part
    what: dict[str, str] = field(default_factory=dict)  # release to what is in it
    evaluation: set[str] = field(default_factory=set)  # tasks that only evaluate models

    def __post_init__(self) -> None:
        self._guarantee_numbers = {guarantee: number for number, guarantee in enumerate(self.guarantees)}
        self._parcel_numbers = {parcel: number for number, parcel in enumerate(self.parcels)}
        self._in_round: set[str] | None = None

    # -- writing ------------------------------------------------------------------------------------------------

    def record(
        self,
        client: str,
        task: str,
        fields: Mapping[str, Guarantee | None],
        what: Mapping[str, str],
        evaluation: bool = False,
    ) -> None:
        """Enter one reply: its fields that were not empty, each with its guarantee or None."""
        if not fields:
            return
        for name in fields:
            self.what[f"{task}.{name}"] = what[name]
        if evaluation:
            self.evaluation.add(task)
        numbered = tuple((name, None if g is None else self._number(g)) for name, g in fields.items())
        parcel = self._parcel_numbers.setdefault((task, numbered), len(self.parcels))
        if parcel == len(self.parcels):
            self.parcels.append((task, numbered))
        self.histories.setdefault(client, Counter())[parcel] += 1
        if self._in_round is not None and any(g is not None and g.proven for g in fields.values()):
            if client not in self._in_round:
                self._in_round.add(client)
                self.latest[client] = Counter()
            self.latest[client][parcel] += 1

    def begin_phase(self) -> None:
        """What a round costs is not known yet."""
        self.latest = {}

    def begin_round(self) -> None:
        """From here on releases are costs of this round."""
        self._in_round = set()

    def end_round(self) -> None:
        """The round is over: what is released now is not a cost of it."""
        self._in_round = None

    def _number(self, guarantee: Guarantee) -> int:
        number = self._guarantee_numbers.setdefault(guarantee, len(self.guarantees))
        if number == len(self.guarantees):
            self.guarantees.append(guarantee)
        return number

    # -- adding up ----------------------------------------------------------------------------------------------

    def spent(self, client: str, unit: Unit, delta: float) -> float:
        """The ε that a client has reached by its protected releases; the larger, where there are two adjacencies."""
        spending = self._spending(self.histories.get(client, {}))
        return max((spending.epsilon(scope, delta) for scope in spending.events if scope[0] == unit), default=0.0)

    def would_overspend(self, budget: Budget) -> tuple[str, Scope, float] | None:
        """The first client that one more round like its last would bring past the budget, and the ε it would reach."""
        similar: dict[tuple[Any, Any], list[str]] = {}
        for client, cost in self.latest.items():
            similar.setdefault((_key(self.histories[client]), _key(cost)), []).append(client)
        over = []
        for (history, cost), clients in similar.items():
            exceeded = budget.exceeded(self._spending(Counter(dict(history)) + Counter(dict(cost))))
            if exceeded:
                over.append((_in_order(clients)[0], *exceeded))
        return min(over, key=lambda found: (-found[2], _place(found[0])), default=None)

    def _spending(self, parcels: Mapping[int, int]) -> Spending:
        fields = ((number, times) for parcel, times in parcels.items() for _, number in self.parcels[parcel][1])
        return Spending((self.guarantees[number], times) for number, times in fields if number is not None)

    # -- reading ------------------------------------------------------------------------------------------------

    def rows(self, delta: float) -> list[LedgerRow]:
        """A row per release and group of clients with the same history, then the totals; see `ledger_rows`."""
        return ledger_rows(list(self._histories()), self.what, self.evaluation, delta)

    def words(self, delta: float) -> list[str]:
        """A few plain sentences for the end of a run."""
        return ledger_words(self.rows(delta))

    def _histories(self) -> Iterator[History]:
        for parcels, clients in _grouped(self.histories):
            entries: Counter[Entry] = Counter()
            for number, times in parcels:
                task, fields = self.parcels[number]
                for name, guarantee in fields:
                    entries[task, name, None if guarantee is None else self.guarantees[guarantee]] += times
            yield entries, clients

    # -- keeping ------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, object]:
        """JSON-ready; equal ledgers give equal dicts, in whatever order the clients answered."""
        return {
            "guarantees": [guarantee.as_dict() for guarantee in self.guarantees],
            "parcels": [[task, [list(entry) for entry in fields]] for task, fields in self.parcels],
            "histories": [[[list(entry) for entry in key], clients] for key, clients in _grouped(self.histories)],
            "latest": [[[list(entry) for entry in key], clients] for key, clients in _grouped(self.latest)],
            "what": dict(self.what),
            "evaluation": sorted(self.evaluation),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ledger":
        """Rebuild from `as_dict`."""
        return cls(
            [Guarantee.model_validate(guarantee) for guarantee in values["guarantees"]],
            [(task, tuple((name, number) for name, number in fields)) for task, fields in values["parcels"]],
            _by_client(values["histories"]),
            _by_client(values["latest"]),
            dict(values["what"]),
            set(values["evaluation"]),
        )


def _key(parcels: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(parcels.items()))


def _grouped(histories: Mapping[str, Mapping[int, int]]) -> list[tuple[tuple[tuple[int, int], ...], list[str]]]:
    """Histories, each once, with the clients that have it; all in a fixed order."""
    groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for client, parcels in histories.items():
        groups.setdefault(_key(parcels), []).append(client)
    return [(key, _in_order(groups[key])) for key in sorted(groups)]


def _by_client(groups: Iterable[Any]) -> dict[str, Counter[int]]:
    return {client: Counter(dict(map(tuple, key))) for key, clients in groups for client in clients}


def _place(client: str) -> tuple[int, str]:
    return len(client), client  # 2 before 10


def _in_order(clients: Iterable[str]) -> list[str]:
    return sorted(clients, key=_place)
