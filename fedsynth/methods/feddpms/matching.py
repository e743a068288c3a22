"""Who helps whom (FedDPMS, algorithm 3)."""

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
