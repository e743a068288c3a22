"""A method that only sends: each round asks every site once, with so many megabytes there and as many back.

The plugin of `network_overhead.py`, at the server and at the sites.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedsynth.components.settings import MethodConfig
from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task

MEGABYTE = 10**6


class Echo(Reply):
    """What came, sent back."""

    payload: np.ndarray = leaves("the random bytes that the server sent")


@task
def send_back(client: Client, payload: np.ndarray) -> Echo:
    """Send the payload back as it is."""
    return client.release(Echo(payload=payload))


class EchoConfig(MethodConfig):
    """How much to send in each round."""

    megabytes: tuple[int, ...] = Field((1,), description="size of the payload, round by round")


@method("network_echo", config=EchoConfig)
def network_echo(fed: Federation, cfg: EchoConfig) -> Outcome:
    """Bytes there and back, and nothing else."""
    state = State()
    for index in fed.rounds("echo", len(cfg.megabytes), state):
        payload = fed.rng("payload").integers(256, size=cfg.megabytes[index - 1] * MEGABYTE, dtype=np.uint8)
        replies = fed.broadcast(send_back, payload=payload)
        assert all((reply.payload == payload).all() for reply in replies.values())
    return Outcome(fed.initial_weights(cfg.model))
