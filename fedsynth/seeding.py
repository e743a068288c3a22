"""All randomness comes from (seed, purpose, client, round), never from the order in which work was done.

So one worker and many workers, a resumed run and an uninterrupted one, draw the same numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *purpose: object) -> int:
    """A 128-bit integer that depends on the seed and on every word of the purpose."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def generator(seed: int, *purpose: object) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))
