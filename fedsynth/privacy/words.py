"""The ledger in a few sentences, for the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsynth.privacy.budget import say_epsilon
from fedsynth.privacy.rows import LedgerRow

NUMBER_PUBLIC = "the number of examples, which is taken as public: it decides sampling rate and divisor; who takes part"
EVERY_UPDATE = "which sees every clipped update"  # what a guarantee against all but the server leaves out
MASKED = "secure aggregation"  # begins the mechanism of what the server sees as a sum alone
ASK_NOBODY = "With evaluation.clients = 0 and evaluation.final_clients = 0 it asks no client and sends nothing."
SEED_KNOWN = (
    "Every ε above holds only against those who do not know the seed, and the seed is in this run's folder "
    "(config.json): the noise came from it. Set privacy.secret_noise = true for an ε that can be relied on."
)
SPELLED_OUT = 2  # protected releases with a sentence of their own


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
    if any("server" in who for who in against):
        yield "The server itself is not among those that it holds against: it sees what was sent before its noise."
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
