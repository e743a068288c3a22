"""The ledger as a table and in sentences: what was released, how often, and what is proven about it."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from fedsynth.privacy.budget import Spending, say_epsilon, say_number
from fedsynth.privacy.guarantee import MASKED, Guarantee, Scope, weakest

Entry = tuple[str, str, Guarantee | None]
"""Task, field and guarantee of a release."""
History = tuple[Counter[Entry], list[str]]
"""How often a client's entries were released, and the clients for which that is so."""
Released = tuple[str, str, frozenset[tuple[Guarantee | None, int]]]
Totalled = tuple[Scope, frozenset[tuple[Guarantee, int]], tuple[str, ...], tuple[str, ...]]

NONE = "none"
SHOWN = 3  # different texts in one cell
ASK_NOBODY = "With evaluation.clients = 0 and evaluation.final_clients = 0 it asks no client and sends nothing."
SEED_KNOWN = (
    "Every ε above holds only against those who do not know the seed, and the seed is in this run's folder "
    "(config.json): the noise came from it. Set privacy.secret_noise = true for an ε that can be relied on."
)
SPELLED_OUT = 2  # protected releases with a sentence of their own


class LedgerRow(BaseModel, frozen=True):
    """What a group of clients with the same history released, how often, and what is proven about it.

    Kind "total" is about all protected releases of one of them together. Without a proof `epsilon` is None.
    """

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
    known = [(g, times) for g, times in given if g is not None]
    guarantees = sorted((g for g, _ in known), key=lambda g: g.mechanism)
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
        **_proof(known, next((g.scope for g in guarantees if g.proven), None), delta),
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
    proof = _proof(given, scope, delta)
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


def _proof(given: Collection[tuple[Guarantee, int]], scope: Scope | None, delta: float) -> dict[str, object]:
    epsilon = Spending(given).epsilon(scope, delta) if scope else math.inf
    if scope is None or not math.isfinite(epsilon):
        return {"unit": "", "adjacency": "", "epsilon": None, "delta": None, "against": "", "proven": NONE}
    (unit, adjacency), against = scope, weakest(g.against for g, _ in given if g.proven)
    text = f"ε = {say_number(epsilon)} ({unit} level, {adjacency}, δ = {delta:g}, against {against})"
    scoped = {"unit": unit, "adjacency": adjacency, "epsilon": epsilon, "delta": delta}
    return {**scoped, "against": against, "proven": text}


def _joined(texts: Iterable[str]) -> str:
    different = [text for text in dict.fromkeys(texts) if text]
    rest = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return "; ".join(different[:SHOWN]) + rest


# -- in sentences ---------------------------------------------------------------------------------------------------


def ledger_words(rows: Sequence[LedgerRow]) -> list[str]:
    """Two to six sentences about the rows of a ledger."""
    releases = [row for row in rows if row.kind == "release"]
    if not releases:
        return ["Nothing left the clients."]
    protected = [row for row in releases if row.epsilon is not None]
    bare = [row for row in releases if row.epsilon is None]
    masked = [row for row in bare if row.mechanism.startswith(MASKED)]
    noisy = [row for row in bare if row.mechanism != "none" and row not in masked]
    method = [row for row in bare if row.mechanism == "none" and not row.evaluation]
    evaluation = [row for row in bare if row.mechanism == "none" and row.evaluation]
    words = list(_protected(protected, with_gaps=bool(bare)))
    told = [row for row in masked if row.not_covered]  # keys and shares of keys tell nothing
    if told:
        words.append(f"Seen as a sum only: {_noisy(told)}.")
    if noisy:
        words.append(f"Noise without a proof: {_noisy(noisy)}.")
    if method:
        start = "Without a guarantee" if protected else "No differential privacy"
        words.append(f"{start}: {_named(method)} left the clients{' without a guarantee' if not protected else ''}.")
    elif not protected and (noisy or told):
        words.append("No differential privacy: nothing that left the clients has a guarantee.")
    if evaluation:
        words.append(f"Evaluation sent {_named(evaluation)}, without a guarantee.")
    return [*words, _together(rows, bare), *_weaknesses(protected)]


def _weaknesses(protected: Sequence[LedgerRow]) -> Iterable[str]:
    """Against whom what was proven does not hold; the last words, because all before them depend on it."""
    against = {row.against for row in protected if row.cost}
    if any("the server" in who for who in against):
        yield "The server itself is not among those that it holds against: it sees what was sent before its noise."
    elif any("server" in who for who in against):
        yield "It holds against a server that keeps to the protocol: one that makes up clients sees more than a sum."
    if any("seed" in who for who in against):
        yield SEED_KNOWN


def _protected(rows: Sequence[LedgerRow], with_gaps: bool) -> Iterable[str]:
    """The costliest; constants, which cost nothing, only where there is nothing else."""
    worst: dict[tuple[str, str, str], LedgerRow] = {}
    for row in rows:
        key = (row.release, row.unit, row.adjacency)
        if key not in worst or row.cost > worst[key].cost:
            worst[key] = row
    by_cost = sorted(worst.values(), key=lambda row: -row.cost)
    shown = [row for row in by_cost if row.cost > 0] or by_cost
    for place, row in enumerate(shown[:SPELLED_OUT], 1):
        releases = f"composed over {row.times} release{'s' if row.times > 1 else ''}"
        more = len(shown) - SPELLED_OUT
        rest = f" ({more} more protected: see ledger.csv)" if place == SPELLED_OUT and more > 0 else ""
        rest += f"; not covered: {row.not_covered}" if with_gaps and row.not_covered else ""
        yield f"Protected: {row.what} — {_said(row)}, worst client {row.clients[0]}; {releases}{rest}."


def _together(rows: Sequence[LedgerRow], bare: Sequence[LedgerRow]) -> str:
    start = "All that left a client together:"
    if bare:
        if all(row.evaluation for row in bare):
            return f"{start} no finite ε, because what evaluation sent has no guarantee. {ASK_NOBODY}"
        return f"{start} no finite ε, because some of it has no guarantee."
    worst: dict[tuple[str, str], LedgerRow] = {}
    for row in rows:
        key = (row.unit, row.adjacency)
        if row.kind == "total" and (key not in worst or row.cost > worst[key].cost):
            worst[key] = row
    said = [f"{_said(row)}, worst client {row.clients[0]}" for row in worst.values()]
    if len(said) == 1:
        left_out = "; ".join(dict.fromkeys(gap for row in rows for gap in row.not_covered.split("; ") if gap))
        return f"{start} {said[0]}{f'; not covered: {left_out}' if left_out else ''}."
    return f"{start} no single ε, because its parts are protected for different units or neighbours: {'; '.join(said)}."


def _said(row: LedgerRow) -> str:
    said = say_epsilon(row.cost, (row.unit, row.adjacency), row.delta or 0.0)
    return f"{said} against {row.against}" if row.against else said


def _noisy(rows: Sequence[LedgerRow]) -> str:
    first = rows[0]
    claimed = f"; {first.claimed}" if first.claimed else ""
    others = [row for row in rows if row.release != first.release]
    more = f"; also {_named(others)}" if others else ""
    why = f", which leaves out {first.not_covered}" if first.not_covered else ""
    return f"{first.what} ({first.mechanism}{why}){claimed}{more}"


def _named(rows: Sequence[LedgerRow]) -> str:
    return "; ".join(dict.fromkeys(row.what for row in rows))
