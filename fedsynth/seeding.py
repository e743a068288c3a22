"""All randomness comes from (seed, purpose, client, round), never from the order in which work was done.

So one worker and many workers, a resumed run and an uninterrupted one, draw the same numbers. What a proof of privacy
needs comes from a secret key in the seed's place.
"""

import hashlib
import hmac
from collections.abc import Callable

import numpy as np


def derive(seed: int, *purpose: object) -> int:
    """A 128-bit integer that depends on the seed and on every word of the purpose."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def generator(seed: int, *purpose: object) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))


Secret = Callable[[], bytes]
"""Gives a secret key, which is made when it is first asked for."""


def secret_generator(key: bytes, *purpose: object) -> np.random.Generator:
    """A numpy generator that only those who have the key can repeat."""
    text = "\x1f".join(map(str, purpose))
    return np.random.default_rng(int.from_bytes(hmac.digest(key, text.encode(), "sha256")))


def seed_torch(seed: int) -> None:
    """Seed PyTorch's global generators. `torch.manual_seed` does the same, and without a GPU takes a millisecond."""
    import torch  # on demand: commands that only read do without it

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
