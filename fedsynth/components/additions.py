"""What a method adds to the data of clients: noted by each client at home, recorded by the server for people to see.

A client notes how many samples of each class it has added; the note stays in its private state and no task reads it. A
simulation reads the notes when a run ends, so its record is exact. Over a network nobody does: there the record is what
the server knows without asking, its own orders or what follows from counts that clients released for the method.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedsynth.federation import Client, Federation
from fedsynth.federation.records import ADDED, ADDED_AT_SERVER, SYNTHETIC

NOTE = "samples added"  # in the private state: of each class; the last note counts
COPIES = "augmented copies"
REAL = "real samples of other clients"
INSTEAD = {"noise": "samples of noise", "duplicates": "own examples once more", "real": REAL, "prior": REAL}
"""What the controls of a method add in place of synthetic samples."""

MOST_CLIENTS, MOST_NUMBERS = 2000, 100_000  # of these, times classes; beyond either there is no record by client


def is_recorded(fed: Federation) -> bool:
    """Whether the federation is small enough for a record by client."""
    return len(fed.clients) <= MOST_CLIENTS and len(fed.clients) * fed.schema.classes <= MOST_NUMBERS


def count_labels(labels: Tensor, classes: int) -> np.ndarray:
    """How many samples of each class these are."""
    return np.bincount(labels.cpu().numpy(), minlength=classes)


def note_additions(client: Client, labels: Tensor) -> None:
    """Note at the client that samples with these labels stand beside its own examples from now on."""
    client.state.note(NOTE, count_labels(labels, client.schema.classes).tolist())


def record_additions(
    fed: Federation,
    what: str = SYNTHETIC,
    *,
    planned: Mapping[str, np.ndarray] | None = None,
    held: Mapping[str, np.ndarray] | None = None,
    noise: float = 0.0,
    about: str = "",
) -> None:
    """Record `what` is added to whom, as far as the server knows; a simulation puts exact numbers in their place.

    `planned` are samples by client and class, `held` the counts that clients have released for the method, with noise
    of this σ on each.
    """
    small = is_recorded(fed)
    clients = [c for c in fed.clients if small and (c in (planned or {}) or c in (held or {}))]
    none = np.zeros(fed.schema.classes, np.int64)
    value: dict[str, object] = {
        "kind": "additions",
        "what": what,
        "basis": "unknown" if planned is None else "planned",
        "clients": clients,
        "added": [] if planned is None else [_whole(planned.get(c, none)) for c in clients],
        "held": [] if held is None else [_whole(held.get(c, none)) for c in clients],
        "noise": float(noise),
        "about": about,
    }
    fed.record(ADDED, value)


def record_at_server(fed: Federation, what: str, counts: np.ndarray) -> None:
    """Record how many samples of each class the server itself trains on: it lacks whatever it has not synthesised."""
    value = {"kind": "additions", "what": what, "basis": "exact", "clients": ["server"], "added": [_whole(counts)]}
    fed.record(ADDED_AT_SERVER, value)


def class_names(fed: Federation) -> list[str]:
    """The names of the classes, or their numbers."""
    return list(fed.schema.class_names) or [f"class {label}" for label in range(fed.schema.classes)]


def _whole(counts: np.ndarray) -> list[int]:
    """Whole numbers, none below 0."""
    return [max(0, int(count)) for count in np.rint(counts)]
