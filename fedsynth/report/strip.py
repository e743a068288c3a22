"""The repair strip: what each client has, and what a run added to it, as far as the run folder says.

Its pictures, with the samples themselves and what they are worth, are made in `strip_blocks.py`.
"""

from dataclasses import dataclass

from fedsynth.federation.records import ADDED, ADDED_AT_SERVER, Additions
from fedsynth.report.holdings import client_counts
from fedsynth.report.reading import RunRecord

SURE = 3.0  # standard deviations of the noise up to which a noisy count may be of nothing


@dataclass(frozen=True)
class Strip:
    """What a run has recorded of its additions, beside what clients have: rows are clients, columns classes."""

    classes: list[str]
    clients: list[str]
    held: list[list[int]]
    added: list[list[int]]
    record: Additions | None
    server: Additions | None
    told: bool = True  # whether it is known what clients have
    noise: float = 0.0  # σ of the noise on that, where clients released it for the method

    @property
    def what(self) -> str:
        """What was added."""
        record = self.record or self.server
        return record.what if record else ""

    @property
    def known(self) -> bool:
        """Whether it is known what was added to whom."""
        return self.record is None or self.record.basis != "unknown"

    def missing(self, after: bool) -> float:
        """How many classes a client lacks, on average, before or after the addition."""
        sure = SURE * self.noise
        rows = zip(self.held, self.added, strict=True)
        lacking = [
            sum(own <= sure and not (after and more) for own, more in zip(have, gets, strict=True))
            for have, gets in rows
        ]
        return sum(lacking) / max(1, len(lacking))


def strip_of(run: RunRecord) -> Strip | None:
    """The strip of a run that adds data; None where it adds none, or nothing of it is known."""
    record, server = (
        found if isinstance(found := run.records.get(name), Additions) else None for name in (ADDED, ADDED_AT_SERVER)
    )
    if record is None and server is None:
        return None
    counts, given, noise = client_counts(run), {}, 0.0
    if record is not None:
        given = dict(zip(record.clients, record.added or [[]] * len(record.clients), strict=True))
        if not counts and record.held:  # a network: what clients have released for the method
            counts, noise = dict(zip(record.clients, record.held, strict=True)), record.noise
    told = bool(counts)
    none = [0] * len(run.manifest.classes)
    clients = list(counts) or list(given)
    return Strip(
        classes=run.manifest.classes,
        clients=clients,
        held=[counts.get(client, none) for client in clients],
        added=[given.get(client) or none for client in clients],
        record=record,
        server=server,
        told=told,
        noise=noise,
    )


def sentence(strip: Strip) -> str:
    """What was missing and what of it is there now."""
    total, classes = sum(map(sum, strip.added)), len(strip.classes)
    if strip.record is None and strip.server is not None:
        made = sum(map(sum, strip.server.added))
        return f"Clients train on their own data; the server trains on {made:,} {strip.what}."
    before = short_number(strip.missing(after=False))
    if not strip.told:
        return f"{total:,} {strip.what} were added; what the sites have themselves they did not tell."
    lacked = f"{before} of {classes} classes missing"
    if not strip.known:
        return f"{lacked}. {strip.what[0].upper()}{strip.what[1:]} are added to that; how many, only the sites know."
    left = f"{short_number(strip.missing(after=True))} (mean over {len(strip.clients)} clients)"
    return f"{lacked} → {left}, by {total:,} {strip.what}."


def short_number(number: float) -> str:
    """A number with at most one digit behind the point."""
    return f"{number:.1f}".removesuffix(".0")
