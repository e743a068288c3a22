"""Who helps whom (FedDPMS, algorithm 3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np


def match(
    receiver: str,
    scarce: Collection[int],
    abundant: Mapping[str, Collection[int]],
    senders: int,
    rng: np.random.Generator,
) -> list[str]:
    """The `senders` clients that have most of what the receiver lacks, best first; never itself.

    Each next one is the one with the largest |scarce ∩ abundant_j| among the classes not served yet, so that one sender
    is the paper's choice and several complete each other. Ties fall by `rng`. Who would add nothing is not chosen,
    except that the first is (the paper always names one).
    """
    others = sorted(client for client in abundant if client != receiver)
    order = [others[row] for row in rng.permutation(len(others))]
    left, chosen = set(scarce), list[str]()
    while order and len(chosen) < senders:
        best = max(order, key=lambda client: len(left & set(abundant[client])))
        if chosen and not left & set(abundant[best]):
            break
        chosen.append(best)
        order.remove(best)
        left -= set(abundant[best])
    return chosen


def abundant_classes(counts: np.ndarray, n: int) -> list[int]:
    """The n classes with the most examples, most first; classes without any are left out."""
    order = np.argsort(-counts, kind="stable")[:n]
    return [int(label) for label in order if counts[label] > 0]


def scarce_classes(counts: np.ndarray, n: int) -> list[int]:
    """The n classes with the fewest examples, fewest first."""
    return [int(label) for label in np.argsort(counts, kind="stable")[:n]]


def decidedly_scarce(counts: np.ndarray) -> int:
    """How many classes have decidedly fewer examples than the rest: less than half of an even share; at least one."""
    return max(1, int((counts < counts.sum() / len(counts) / 2).sum()))
