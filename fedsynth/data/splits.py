"""Which examples of a client are for training, validation and test; and the global test set.

The rules for a client with n examples:

* the test and validation parts have round(n x fraction) examples, at least one each if n >= 3;
* n = 2: one to train, one to test (to validate, if the test fraction is 0); n = 1: it is trained on;
* each part is stratified by class as well as small counts permit, and every class that the client has stays
  in its train part, as long as the train part is at least as large as the number of those classes;
* the choice depends on the seed, the client's id and its own examples only, never on other clients.
"""

from collections.abc import Sequence

import numpy as np

from fedsynth.data.sources import sample_stratified
from fedsynth.errors import DataError
from fedsynth.seeding import derive

TRAIN, VALIDATION, TEST = 0, 1, 2


def part_sizes(sizes: np.ndarray, validation: float, test: float) -> tuple[np.ndarray, np.ndarray]:
    """How many validation and test examples clients of the given sizes have."""
    parts = []
    for fraction in (validation, test):
        wanted = np.floor(sizes * fraction + 0.5).astype(np.int64)
        parts.append(np.where(sizes >= 3, np.maximum(wanted, 1), 0) if fraction > 0 else np.zeros_like(sizes))
    validations, tests = parts
    pairs = sizes == 2
    tests = np.where(pairs, int(test > 0), tests)
    validations = np.where(pairs, int(test == 0 and validation > 0), validations)
    excess = np.maximum(validations + tests - (sizes - 1), 0)  # rounding up twice must not empty the train part
    larger = validations >= tests
    return validations - np.where(larger, excess, 0), tests - np.where(larger, 0, excess)


def split_clients(
    labels: np.ndarray, parts: Sequence[np.ndarray], ids: Sequence[str], validation: float, test: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split every client at once.

    Returns all rows, client after client and within a client train, validation, test (each sorted), and
    for each client the four bounds of its parts in that array.
    """
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    owner = np.repeat(np.arange(len(parts)), sizes)
    starts = np.cumsum(sizes) - sizes
    rows = np.concatenate(list(parts)).astype(np.int64)
    rows = rows[np.lexsort((rows, owner))]
    validations, tests = part_sizes(sizes, validation, test)

    place = np.arange(len(rows)) - np.repeat(starts, sizes)
    order = np.lexsort((_position_in_class(labels[rows], owner, place, ids, seed), owner))
    # The first places in this order are for test, the next for validation, the rest for training.
    rank = np.empty(len(rows), dtype=np.int64)
    rank[order] = place
    part = np.full(len(rows), TRAIN, dtype=np.int8)
    part[rank < np.repeat(tests + validations, sizes)] = VALIDATION
    part[rank < np.repeat(tests, sizes)] = TEST
    ends = starts + sizes
    bounds = np.stack([starts, ends - tests - validations, ends - tests, ends], axis=1)
    return rows[np.lexsort((rows, part, owner))], bounds


def _position_in_class(
    labels: np.ndarray, owner: np.ndarray, place: np.ndarray, ids: Sequence[str], seed: int
) -> np.ndarray:
    """A number per example that runs evenly over [0, 1) within each class of each client.

    Taking the lowest ones takes every class in proportion. One example of each class comes after all
    others, so that it is the last to leave the train part.
    """
    salts = np.array([derive(seed, "split", client) % 2**64 for client in ids], dtype=np.uint64)
    noise = _scramble(salts[owner] + place.astype(np.uint64))
    order = np.lexsort((noise, labels, owner))
    group_start = np.ones(len(order), dtype=bool)
    group_start[1:] = (owner[order][1:] != owner[order][:-1]) | (labels[order][1:] != labels[order][:-1])
    starts = np.flatnonzero(group_start)
    counts = np.diff(starts, append=len(order))
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    # One shift per class, so that the parts are a systematic sample of it.
    shift = np.repeat(_scramble(noise[order][starts]) / 2.0**64, counts)
    size = np.repeat(counts, counts)
    position = np.empty(len(order))
    position[order] = np.where(rank == size - 1, 1 + shift, (rank + shift) / size)
    return position


def _scramble(numbers: np.ndarray) -> np.ndarray:
    """splitmix64: well-mixed 64-bit numbers from counters, the same on every machine."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def hold_out(
    labels: np.ndarray, fraction: float, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Rows of a stratified global test set; every natural client keeps at least one example."""
    size = int(np.floor(len(labels) * fraction + 0.5))
    if size == 0 or size == len(labels):
        raise DataError(
            f"data.global_test = {fraction} of {len(labels)} examples leaves a test or a train part empty; "
            "give more data or another fraction."
        )
    rows = sample_stratified(labels, size, rng)
    if groups is None:
        return rows
    held = np.zeros(len(labels), dtype=bool)
    held[rows] = True
    _, first, owner = np.unique(groups, return_index=True, return_inverse=True)
    emptied = np.bincount(owner[~held], minlength=len(first)) == 0
    held[first[emptied]] = False
    rows = np.flatnonzero(held)
    if len(rows) == 0:
        raise DataError(
            f"{len(first)} natural clients with {len(labels)} examples leave none for a global test; add a test part."
        )
    return rows


def assert_disjoint(rows: np.ndarray, pool: int, held_out: np.ndarray) -> None:
    """Refuse a split in which an example is used twice or is also in the global test set."""
    uses = np.bincount(rows, minlength=pool)
    if len(uses) > pool or (len(uses) and uses.max() > 1):
        raise AssertionError("A partitioner gave an example to two clients or parts, or one that does not exist.")
    if uses[held_out].any():
        raise AssertionError("A partitioner gave a client an example of the global test set.")
