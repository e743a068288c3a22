"""Sections of a run's report about its course: who took part, what it cost, what left the clients, how to redo it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedsynth.components.class_counts import count_classes
from fedsynth.federation.participation import EVALUATION
from fedsynth.federation.timeline import ANSWERED, KEPT_ROWS
from fedsynth.privacy import ledger_words
from fedsynth.report import svg
from fedsynth.report.blocks import Block, Code, Figure, Table, Words, megabytes, percent, seconds
from fedsynth.report.holdings import client_counts, over_network, silent_sites
from fedsynth.report.outcome import class_names
from fedsynth.report.reading import RunRecord, number, pick
from fedsynth.report.svg import Cells

MOST_ROUNDS = 400
MOST_ROWS = 200  # clients of the timeline's picture
MOST_MISSING = 10  # sentences about clients that missed rounds
LOOK_FIRST = "The command names plug-ins of the run, Python files that it executes: look at them first."
HELD = 0.5  # a client with this share of a class is worth naming when it is missing
KINDS = (("answered", "ok", 1.0), ("answered in part", "part", 0.65), ("did not answer", "bad", 0.35))


def took_part(run: RunRecord) -> list[Block]:
    """Who was asked in which round and who answered, and what the missing ones held."""
    if not run.timeline:
        return [Words(["The run has no timeline: nobody was asked yet, or an older version made it."]), *_failures(run)]
    cells = _outcomes(run)
    if not cells:
        return [Words(["The method has asked nobody yet."]), *_failures(run)]
    clients = sorted({client for client, _ in cells}, key=lambda client: (len(client), client))
    rounds = sorted({round for _, round in cells})
    counted = Counter(cells.values())
    said = ", ".join(f"{counted[kind]} {kind}" for kind, _, _ in KINDS)
    words = (
        f"{len(clients)} clients, rounds {rounds[0]} to {rounds[-1]}; of the requests of the method, by client and "
        f"round: {said}. An empty cell was not asked; round 0 is before the first one."
    )
    drawn, blocks = _drawn(cells, clients, rounds, words), list[Block]()
    simulated = max((float(row["simulated_end"]) for row in run.timeline), default=0.0)
    if simulated:
        blocks.append(Words([f"Time is simulated: the clock stood at {seconds(simulated)} at the end."]))
    missing = _missing(run, clients, cells)
    if missing:
        unknown = ["Which classes that cost is not known: the sites did not tell what they hold."]
        blocks.append(Words([*_most_telling(missing), *(unknown if silent_sites(run) else [])], notice=True))
    if len(run.timeline) >= KEPT_ROWS:
        blocks.append(Words([f"The timeline keeps the first {KEPT_ROWS:,} requests; later ones are not drawn."]))
    return [drawn, *blocks, *_failures(run)]


def _outcomes(run: RunRecord) -> dict[tuple[str, int], str]:
    """For each client and round, what came of the method's requests; evaluation is left aside."""
    outcomes: dict[tuple[str, int], list[bool]] = {}
    asked_first = over_network(run) and pick(run.config, "evaluation", "class_counts")
    counting = {row["client"] for row in run.timeline} if asked_first else set()
    for row in run.timeline:
        if row["task"] == count_classes.name and row["client"] in counting:
            counting.discard(row["client"])  # that was for this report; what comes after it is the method's
        elif row["task"] != EVALUATION:
            outcomes.setdefault((row["client"], int(row["round"])), []).append(row["outcome"] == ANSWERED)
    return {key: KINDS[0][0] if all(ok) else KINDS[1][0] if any(ok) else KINDS[2][0] for key, ok in outcomes.items()}


def _drawn(cells: dict[tuple[str, int], str], clients: list[str], rounds: list[int], words: str) -> Figure:
    rows = {client: place for place, client in enumerate(clients[:MOST_ROWS])}
    columns = {round: place for place, round in enumerate(rounds[-MOST_ROUNDS:])}
    kinds = [
        Cells(
            style,
            [(rows[c], columns[r]) for (c, r), kind in cells.items() if kind == wanted and c in rows and r in columns],
            tall,
        )
        for wanted, style, tall in KINDS
    ]
    if len(rows) < len(clients) or len(columns) < len(rounds):
        words += f" Drawn: the first {len(rows)} clients and the last {len(columns)} rounds."
    drawn = svg.grid("Who took part", words, list(rows), [str(round) for round in columns], kinds, "round")
    counts = Counter((client, kind) for (client, _), kind in cells.items())
    table = Table(
        "Rounds by client",
        ["client", *(kind for kind, _, _ in KINDS)],
        [[client, *(str(counts[client, kind]) for kind, _, _ in KINDS)] for client in clients],
    )
    return Figure("Who took part", drawn, words, keys=[(style, kind) for kind, style, _ in KINDS], numbers=table)


def _missing(run: RunRecord, clients: Iterable[str], cells: dict[tuple[str, int], str]) -> list[str]:
    """A sentence per client that missed rounds: which, and the classes that it holds most of."""
    rounds: dict[str, list[int]] = {}
    for (client, round), kind in sorted(cells.items()):
        if kind == KINDS[2][0]:
            rounds.setdefault(client, []).append(round)
    counts, names = client_counts(run), class_names(run)
    if silent_sites(run):
        counts = {}  # shares of what some have would say too much
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines = []
    for client in (client for client in clients if client in rounds):
        missed = rounds[client]
        held = [
            (n / total, name) for n, total, name in zip(counts.get(client, []), totals, names, strict=False) if total
        ]
        most = [f"{percent(share, 0)} of class {name}" for share, name in sorted(held, reverse=True) if share >= HELD]
        text = f"The result leaves out client {client} in round{'s' if len(missed) > 1 else ''} {_ranges(missed)}"
        lines.append(f"{text}; it holds {', '.join(most)}." if most else f"{text}.")
    return lines


def _most_telling(lines: list[str]) -> list[str]:
    """At most ten of the sentences about missing clients, those that held much of a class first."""
    shown = sorted(lines, key=lambda line: "it holds" not in line)[:MOST_MISSING]
    more = len(lines) - len(shown)
    return (
        [*shown, f"{more} more clients missed a round; the table of rounds by client counts them."] if more else shown
    )


def _ranges(numbers: Sequence[int]) -> str:
    """1–3, 7."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _failures(run: RunRecord) -> list[Block]:
    kept = pick(run.summary, "failures") or pick(run.participation, "failures") or []
    if not kept:
        return [] if run.state == "running" else [Words(["No failure was recorded."])]
    rows = [[str(row.get(key, "")) for key in ("client", "round", "task", "kind", "message")] for row in kept]
    return [Table("Failures", ["client", "round", "task", "kind", "what happened"], rows, numbers=False, stacked=True)]


def cost(run: RunRecord) -> list[Block]:
    """Bytes by task, and time."""
    by_task = pick(run.summary, "bytes", "by_task")
    if not by_task:
        return [Words(["Bytes by task are written when a run ends."])]
    rows = [
        [f"{task} (evaluation)" if task == EVALUATION else task, megabytes(moved["up"]), megabytes(moved["down"])]
        for task, moved in by_task.items()
    ]
    rows.append(
        ["the method, without evaluation", *(megabytes(number(run.summary, "bytes", way)) for way in ("up", "down"))]
    )
    times = [
        ["Run, start to end", seconds(number(run.summary, "seconds"))],
        ["Clients' work, added up", seconds(number(run.participation, "client_seconds"))],
        ["Server's own work, over all cores", seconds(number(run.summary, "server_seconds"))],
        ["Simulated clock", seconds(number(run.summary, "simulated_seconds"))],
        ["Client epochs", f"{number(run.summary, 'client_epochs') or 0:,.0f}"],
    ]
    return [Table("Bytes by task", ["task", "up", "down"], rows), Table("Time", ["what", "how much"], times)]


def privacy(run: RunRecord) -> list[Block]:
    """The ledger in plain words, and as a table."""
    rows = pick(run.summary, "privacy")
    if rows is None:
        return [Words(["The ledger is added up when a run ends."])]
    return [Words(ledger_words(rows)), ledger_table(rows)]


def ledger_table(rows: Iterable[dict[str, Any]]) -> Table:
    """What left, how often, and what is proven about it."""
    cells = [
        [
            f"{row['what']} ({row['task']})" if row["task"] else str(row["what"]),
            _who(row["clients"]),
            str(row["times"]),
            str(row["mechanism"]),
            str(row["proven"]),
            str(row["not_covered"] or "–"),
        ]
        for row in rows
    ]
    columns = ["what left a client", "clients", "times", "mechanism", "proven", "not covered"]
    return Table("The privacy ledger", columns, cells, numbers=False, stacked=True, folded=True)


def _who(clients: Sequence[str]) -> str:
    shown = ", ".join(map(str, clients[:6]))
    return shown if len(clients) <= 6 else f"{shown} … ({len(clients)} in all)"


SHORT = {
    "trained on synthetic, judged on real": "made → real",
    "trained on as many real, judged on real": "real → real",
    "trained on as many real, judged on synthetic": "real → made",
    "recognised by the oracle": "oracle",
}
"""Names of measures, for the narrow columns of a phone."""


def quality(run: RunRecord) -> list[Block]:
    """What `fedsynth quality` found out about the synthetic data."""
    if not run.quality:
        text = f"Not measured. “fedsynth quality {run.path}” measures it, where the method showed synthetic images."
        return [Words([text])]
    rows = [[str(row["measure"]), str(row["value"]), str(row["meaning"])] for row in run.quality["measures"]]
    per_class = run.quality["per_class"]
    names = class_names(run)
    cells = [
        [name, *("–" if v is None else f"{100 * v:.0f} %" for v in column)]
        for name, *column in zip(names, *per_class.values(), strict=True)
    ]
    return [
        Words([str(text) for text in run.quality["words"]]),
        Table("Quality of the synthetic images", ["measure", "value", "meaning"], rows, numbers=False),
        Table("By class (trained on → judged on)", ["class", *(SHORT.get(name, name) for name in per_class)], cells),
        *(_own_gan(names, **found) for found in run.quality.get("own_gans", [])),
    ]


def _own_gan(names: Sequence[str], client: str, rows: list[list[Any]]) -> Table:
    """Whether the images of one client's own GAN lie near to its records."""
    title = f"The GAN of client {client}: images nearer to its own records than to as many held-out ones"
    cells = [[names[label], str(records), f"{100 * share:.0f} %"] for label, records, share in rows]
    return Table(title, ["class", "own records", "nearer (about 50 % without copying)"], cells)


def command_again(run: RunRecord) -> str:
    """The command that makes a run anew; it names the plug-ins, which are executed only then."""
    words = [str(run.path / "config.json"), "name=again"]
    if run.config.get("plugins"):
        words.append(f"plugins={json.dumps(run.config['plugins'])}")
    return f"fedsynth run {shlex.join(words)}"


def reproduce(run: RunRecord) -> list[Block]:
    """Command, versions, seeds, hashes and the whole config."""
    seeds = {"seed": run.seed, "data_seed": pick(run.config, "data_seed")}
    rows = [[name, "as seed" if value is None else str(value)] for name, value in seeds.items()]
    rows += [[f"hash of the {name}", str(value)] for name, value in (pick(run.manifest, "fingerprint") or {}).items()]
    rows += [
        [f"hash of the {name}" if name in ("code", "config") else name, str(value)]
        for name, value in run.versions.items()
    ]
    return [
        Words(["The same versions on the same kind of processor give the same bits."]),
        Code("Command", command_again(run)),
        *([Words([LOOK_FIRST])] if run.config.get("plugins") else []),
        Table("Seeds, hashes and versions", ["what", "value"], rows, numbers=False),
        Code("The whole experiment (config.json)", json.dumps(run.config, indent=1, ensure_ascii=False), folded=True),
    ]
