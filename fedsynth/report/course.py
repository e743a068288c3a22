"""Sections of a run's report about its course: who took part, what it cost, what left the clients, how to redo it."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from fedsynth.components.class_counts import count_classes
from fedsynth.evaluation.results import MissedClient, OwnGan
from fedsynth.federation.participation import EVALUATION
from fedsynth.federation.timeline import ANSWERED, KEPT_ROWS
from fedsynth.privacy import LedgerRow, ledger_words
from fedsynth.report import svg
from fedsynth.report.blocks import Block, Code, Figure, Table, Words, megabytes, seconds
from fedsynth.report.coverage import class_shares, missed_words
from fedsynth.report.holdings import client_counts, over_network, silent_sites
from fedsynth.report.reading import RunRecord
from fedsynth.report.svg import Cells

MOST_ROUNDS = 400
MOST_ROWS = 200  # clients of the timeline's picture
MOST_MISSING = 10  # sentences about clients that missed rounds
LOOK_FIRST = "The command names plug-ins of the run, Python files that it executes: look at them first."
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
    asked_first = over_network(run) and run.setting("evaluation", "class_counts")
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
    known = {} if silent_sites(run) else client_counts(run)  # shares of what some have would say too much
    held = class_shares(known, run.manifest.classes)
    missed = [client for client in clients if client in rounds]
    return [missed_words(MissedClient(client=c, rounds=rounds[c], classes=held.get(c, {}))) for c in missed]


def _most_telling(lines: list[str]) -> list[str]:
    """At most ten of the sentences about missing clients, those that held much of a class first."""
    shown = sorted(lines, key=lambda line: "it holds" not in line)[:MOST_MISSING]
    if more := len(lines) - len(shown):
        shown.append(f"{more} more clients missed a round; the table of rounds by client counts them.")
    return shown


def _failures(run: RunRecord) -> list[Block]:
    kept = (run.summary.failures if run.summary else []) or run.participation.failures
    if not kept:
        return [] if run.state == "running" else [Words(["No failure was recorded."])]
    rows = [[row.client, str(row.round), row.task, row.kind, row.message] for row in kept]
    return [Table("Failures", ["client", "round", "task", "kind", "what happened"], rows, numbers=False, stacked=True)]


def cost(run: RunRecord) -> list[Block]:
    """Bytes by task, and time."""
    summary = run.summary
    if summary is None or not summary.bytes.by_task:
        return [Words(["Bytes by task are written when a run ends."])]
    rows = [
        [f"{task} (evaluation)" if task == EVALUATION else task, megabytes(moved.up), megabytes(moved.down)]
        for task, moved in summary.bytes.by_task.items()
    ]
    rows.append(["the method, without evaluation", megabytes(summary.bytes.up), megabytes(summary.bytes.down)])
    times = [
        ["Run, start to end", seconds(summary.seconds)],
        ["Clients' work, added up", seconds(run.participation.client_seconds)],
        ["Server's own work, over all cores", seconds(summary.server_seconds)],
        ["Simulated clock", seconds(summary.simulated_seconds)],
        ["Client epochs", f"{summary.client_epochs:,.0f}"],
    ]
    return [Table("Bytes by task", ["task", "up", "down"], rows), Table("Time", ["what", "how much"], times)]


def privacy(run: RunRecord) -> list[Block]:
    """The ledger in plain words, and as a table."""
    if run.summary is None:
        return [Words(["The ledger is added up when a run ends."])]
    rows = run.summary.privacy
    return [Words(ledger_words(rows)), _ledger_table(rows)]


def _ledger_table(rows: Iterable[LedgerRow]) -> Table:
    """What was released, how often, and what is proven about it."""
    cells = [
        [
            f"{row.what} ({row.task})" if row.task else row.what,
            _who(row.clients),
            str(row.times),
            row.mechanism,
            row.proven,
            row.not_covered or "–",
        ]
        for row in rows
    ]
    columns = ["what left a client", "clients", "times", "mechanism", "proven", "not covered"]
    return Table("The privacy ledger", columns, cells, numbers=False, stacked=True, folded=True)


def _who(clients: Sequence[str]) -> str:
    shown = ", ".join(clients[:6])
    return shown if len(clients) <= 6 else f"{shown} … ({len(clients)} in all)"


SHORT = {
    "trained on synthetic, evaluated on real": "synthetic → real",
    "trained on as many real, evaluated on real": "real → real",
    "trained on as many real, evaluated on synthetic": "real → synthetic",
    "recognised by the oracle": "oracle",
}
"""Names of measures, for the narrow columns of a phone."""


def quality(run: RunRecord) -> list[Block]:
    """What `fedsynth quality` found out about the synthetic data."""
    found = run.quality
    if found is None:
        text = f"Not measured. “fedsynth quality {run.path}” measures it, where the method showed synthetic images."
        return [Words([text])]
    rows = [[row.measure, row.value, row.meaning] for row in found.measures]
    names = run.manifest.classes
    cells = [
        [name, *("–" if v is None else f"{100 * v:.0f} %" for v in column)]
        for name, *column in zip(names, *found.per_class.values(), strict=True)
    ]
    return [
        Words(found.words),
        Table("Quality of the synthetic images", ["measure", "value", "meaning"], rows, numbers=False),
        Table("By class (trained on → tested on)", ["class", *(SHORT.get(n, n) for n in found.per_class)], cells),
        *(_own_gan(names, own) for own in found.own_gans),
    ]


def _own_gan(names: Sequence[str], own: OwnGan) -> Table:
    """Whether the images of one client's own GAN lie near to its records."""
    title = f"The GAN of client {own.client}: images nearer to its own records than to as many held-out ones"
    cells = [[names[label], str(records), f"{100 * share:.0f} %"] for label, records, share in own.rows]
    return Table(title, ["class", "own records", "nearer (about 50 % without copying)"], cells)


def command_again(run: RunRecord) -> str:
    """The command that makes a run anew; it names the plug-ins, which are executed only then."""
    words = [str(run.path / "config.json"), "name=again"]
    if run.config.get("plugins"):
        words.append(f"plugins={json.dumps(run.config['plugins'])}")
    return f"fedsynth run {shlex.join(words)}"


def reproduce(run: RunRecord) -> list[Block]:
    """Command, versions, seeds, hashes and the whole config."""
    seeds = {"seed": run.seed, "data_seed": run.setting("data_seed")}
    rows = [[name, "as seed" if value is None else str(value)] for name, value in seeds.items()]
    rows += [[f"hash of the {name}", value] for name, value in run.manifest.fingerprint.items()]
    rows += [
        [f"hash of the {name}" if name in ("code", "config") else name, value] for name, value in run.versions.items()
    ]
    return [
        Words(["The same versions on the same kind of processor give the same bits."]),
        Code("Command", command_again(run)),
        *([Words([LOOK_FIRST])] if run.config.get("plugins") else []),
        Table("Seeds, hashes and versions", ["what", "value"], rows, numbers=False),
        Code("The whole experiment (config.json)", json.dumps(run.config, indent=1, ensure_ascii=False), folded=True),
    ]
