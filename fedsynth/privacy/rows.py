"""The ledger as a table: what was released, how often, and what is proven about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedsynth.privacy.budget import Spending, say_number
from fedsynth.privacy.guarantee import Against, Guarantee, Scope, weakest

Entry = tuple[str, str, Guarantee | None]
"""Task, field and guarantee of a release."""
History = tuple[Counter[Entry], list[str]]
"""How often a client's entries were released, and the clients for which that is so."""
Released = tuple[str, str, frozenset[tuple[Guarantee | None, int]]]
Totalled = tuple[Scope, frozenset[tuple[Guarantee, int]], tuple[str, ...], tuple[str, ...]]

NONE = "none"
SHOWN = 3  # different texts in one cell


class LedgerRow(BaseModel):
    """What a group of clients with the same history released, how often, and what is proven about it.

    Kind "total" is about all protected releases of one of them together. Without a proof `epsilon` is None.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["release", "total"]
    release: str
    task: str
    field: str = ""
    what: str
    evaluation: bool
    clients: list[str]
    times: int
    mechanism: str
    unit: str
    adjacency: str
    epsilon: float | None
    delta: float | None
    against: str = ""
    proven: str
    covered: str
    not_covered: str
    claimed: str

    @property
    def cost(self) -> float:
        """The proven ε; 0 where nothing is proven."""
        return self.epsilon or 0.0

    @property
    def place(self) -> tuple[int, str]:
        """Client 2 comes before client 10."""
        return len(self.clients[0]), self.clients[0]


def ledger_rows(
    histories: Sequence[History], what: Mapping[str, str], evaluation: Collection[str], delta: float
) -> list[LedgerRow]:
    """A row per release and group of clients (kind "release"), then one per group for all protected releases of a
    client together (kind "total"). Evaluation comes last among the releases."""
    releases: dict[Released, list[str]] = {}
    totals: dict[Totalled, list[str]] = {}
    for entries, clients in histories:
        for released in _released(entries):
            releases.setdefault(released, []).extend(clients)
        for totalled in _totalled(entries):
            totals.setdefault(totalled, []).extend(clients)
    order = {name: place for place, name in enumerate(what)}
    rows = [_release_row(*key, clients, what, evaluation, delta) for key, clients in releases.items()]
    rows.sort(key=lambda row: (row.evaluation, order[row.release], -row.cost, row.place))
    ends = [_total_row(*key, clients, delta) for key, clients in totals.items()]
    ends.sort(key=lambda row: (row.unit, row.adjacency, -row.cost, row.place))
    return rows + ends


def _released(entries: Counter[Entry]) -> Iterable[Released]:
    """The releases of a history: task, field, and the guarantees of one scope with how often each was given."""
    found: dict[tuple[str, str, object], list[tuple[Guarantee | None, int]]] = {}
    for (task, name, guarantee), times in entries.items():
        scope = None if guarantee is None else guarantee.scope if guarantee.proven else NONE
        found.setdefault((task, name, scope), []).append((guarantee, times))
    return [(task, name, frozenset(given)) for (task, name, _), given in found.items()]


def _totalled(entries: Counter[Entry]) -> Iterable[Totalled]:
    """For each scope of a history: its guarantees, the releases they are about, and those that they are not."""
    scopes = sorted({g.scope for _, _, g in entries if g is not None and g.proven})
    for scope in scopes:
        inside = {e: n for e, n in entries.items() if e[2] is not None and e[2].proven and e[2].scope == scope}
        covered = tuple(dict.fromkeys(f"{task}.{name}" for task, name, _ in inside))
        left_out = tuple(dict.fromkeys(_left_out(entry, scope) for entry in entries if entry not in inside))
        counts: Counter[Guarantee] = Counter()
        for (_, _, guarantee), times in inside.items():
            assert guarantee is not None
            counts[guarantee] += times
        yield scope, frozenset(counts.items()), covered, left_out


def _left_out(entry: Entry, scope: Scope) -> str:
    task, name, guarantee = entry
    if guarantee is None or not guarantee.proven:
        return f"{task}.{name}"
    return f"{task}.{name} (protected per {guarantee.unit}, {guarantee.adjacency}: not part of this sum)"


def _release_row(
    task: str,
    name: str,
    given: frozenset[tuple[Guarantee | None, int]],
    clients: list[str],
    what: Mapping[str, str],
    evaluation: Collection[str],
    delta: float,
) -> LedgerRow:
    guarantees = sorted((g for g, _ in given if g is not None), key=lambda g: g.mechanism)
    first = next((g for g in guarantees if g.proven), None)
    epsilon = None if first is None else _epsilon(given, first.scope, delta)
    return LedgerRow(
        kind="release",
        release=f"{task}.{name}",
        task=task,
        field=name,
        what=what[f"{task}.{name}"],
        evaluation=task in evaluation,
        clients=sorted(clients, key=lambda client: (len(client), client)),
        times=sum(times for _, times in given),
        mechanism=_joined(g.mechanism for g in guarantees) or NONE,
        **_proof(epsilon, first.scope if first else None, delta, weakest(g.against for g in guarantees if g.proven)),
        covered=_joined(g.covered for g in guarantees),
        not_covered=_joined(g.not_covered for g in guarantees),
        claimed=_joined(g.claimed for g in guarantees),
    )


def _total_row(
    scope: Scope,
    given: frozenset[tuple[Guarantee, int]],
    covered: tuple[str, ...],
    left_out: tuple[str, ...],
    clients: list[str],
    delta: float,
) -> LedgerRow:
    proof = _proof(_epsilon(given, scope, delta), scope, delta, weakest(g.against for g, _ in given))
    if left_out and proof["epsilon"] is not None:
        proof["proven"] = f"{proof['proven']}, for the protected releases alone"
    return LedgerRow(
        kind="total",
        release="all",
        task="",
        field="",
        what="all protected releases of a client together",
        evaluation=False,
        clients=sorted(clients, key=lambda client: (len(client), client)),
        times=sum(times for _, times in given),
        mechanism="composition",
        **proof,
        covered="; ".join(covered),
        not_covered="; ".join(left_out),
        claimed="",
    )


def _epsilon(given: Iterable[tuple[Guarantee | None, int]], scope: Scope, delta: float) -> float | None:
    spending = Spending()
    for guarantee, times in given:
        if guarantee is not None:
            spending.add(guarantee, times)
    epsilon = spending.epsilon(scope, delta)
    return epsilon if math.isfinite(epsilon) else None


def _proof(epsilon: float | None, scope: Scope | None, delta: float, against: Against) -> dict[str, object]:
    if epsilon is None or scope is None:
        return {"unit": "", "adjacency": "", "epsilon": None, "delta": None, "against": "", "proven": NONE}
    unit, adjacency = scope
    text = f"ε = {say_number(epsilon)} ({unit} level, {adjacency}, δ = {delta:g}, against {against})"
    scoped = {"unit": unit, "adjacency": adjacency, "epsilon": epsilon, "delta": delta}
    return {**scoped, "against": against, "proven": text}


def _joined(texts: Iterable[str]) -> str:
    different = [text for text in dict.fromkeys(texts) if text]
    rest = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return "; ".join(different[:SHOWN]) + rest
