"""Who was missing from a run, when, and which classes that cost."""

from __future__ import annotations

from typing import Any

from fedsynth.data.described import RunData
from fedsynth.federation.participation import EVALUATION, Participation

NOTABLE = 0.5  # a client that holds this share of a class's training examples is named with the class


def missed_clients(participation: Participation, data: RunData) -> list[dict[str, Any]]:
    """For each client that did not answer some request of the method: the rounds, and its share of each class."""
    rounds: dict[str, set[int]] = {}
    for row in participation.failures:
        if row["task"] != EVALUATION and row["client"] in data.clients:
            rounds.setdefault(row["client"], set()).add(row["round"])
    if not rounds:
        return []
    counts = data.counts()
    totals = counts.sum(axis=0)
    names = data.schema.class_names or tuple(map(str, range(data.schema.classes)))
    place = {client: position for position, client in enumerate(data.clients)}
    return [
        {
            "client": client,
            "rounds": sorted(missed),
            "classes": {
                name: round(float(own / total), 4)
                for name, own, total in zip(names, counts[place[client]], totals, strict=True)
                if own
            },
        }
        for client, missed in sorted(rounds.items())
    ]


def missed_words(missed: dict[str, Any]) -> str:
    """A sentence about one such client."""
    held = sorted(missed["classes"].items(), key=lambda entry: -entry[1])
    listed = ", ".join(f"{share:.0%} of class {name}" for name, share in held if share >= NOTABLE)
    holds = f"; it holds {listed}" if listed else ""
    return f"the result misses client {missed['client']} in round {_spans(missed['rounds'])}{holds}"


def _spans(rounds: list[int]) -> str:
    """1–3, 7 for 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)
