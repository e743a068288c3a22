"""Who was missing from a run, when, and which classes that cost."""

from collections.abc import Mapping, Sequence

from fedsynth.components.class_counts import count_classes
from fedsynth.data.federated import RunData
from fedsynth.evaluation.results import MissedClient
from fedsynth.federation.participation import EVALUATION, Participation

NOTABLE = 0.5  # a client that holds this share of a class's training examples is named with the class


def missed_clients(participation: Participation, data: RunData, counted: bool = False) -> list[MissedClient]:
    """For each client that did not answer some request of the method: the rounds, and its share of each class.

    The shares are None where not all clients told what they hold. `counted`: they were asked that before the method
    began.
    """
    rounds: dict[str, set[int]] = {}
    silent = {client for client in data.clients if data.train_size(client) is None} if counted else set()
    for row in participation.failures:
        client = row["client"]
        if row["task"] == count_classes.name and client in silent:
            silent.discard(client)  # that was for the report; what comes after it is the method's
        elif row["task"] != EVALUATION and client in data.clients:
            rounds.setdefault(client, set()).add(row["round"])
    counts = data.counts() if rounds else None
    names = data.schema.class_names or tuple(map(str, range(data.schema.classes)))
    held = None if counts is None else class_shares(dict(zip(data.clients, counts.tolist(), strict=True)), names)
    return [
        MissedClient(client=client, rounds=sorted(missed), classes=None if held is None else held[client])
        for client, missed in sorted(rounds.items())
    ]


def class_shares(counts: Mapping[str, Sequence[int]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each client, its share of each class that it has."""
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    return {
        client: {name: round(n / total, 4) for name, n, total in zip(names, own, totals, strict=False) if n}
        for client, own in counts.items()
    }


def missed_words(missed: MissedClient) -> str:
    """A sentence about one such client, with the classes that it holds most of."""
    held = sorted((missed.classes or {}).items(), key=lambda entry: -entry[1])
    listed = ", ".join(f"{100 * share:.0f} % of class {name}" for name, share in held if share >= NOTABLE)
    holds = f"; it holds {listed}" if listed else ""
    if missed.classes is None:
        holds = "; which classes that cost is not known: the sites did not tell what they hold"
    rounds = f"round{'s' if len(missed.rounds) > 1 else ''} {_say_spans(missed.rounds)}"
    return f"The result leaves out client {missed.client} in {rounds}{holds}."


def _say_spans(rounds: Sequence[int]) -> str:
    """1–3, 7 for 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)
