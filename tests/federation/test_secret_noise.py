"""Privacy noise: from the seed in a simulation, from the operating system where the noise must be secret."""

from __future__ import annotations

from typing import Any

import torch

from fedsynth.data.federated import FederatedData
from fedsynth.engines.local import LocalEngine
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.federation.host import TaskHost
from fedsynth.federation.store import StateStore


class Drawn(Reply):
    noise: torch.Tensor = leaves("noise")
    other: torch.Tensor = leaves("random numbers that are no noise")


@task
def sn_draw(client: Client) -> Drawn:
    drawn = (torch.from_numpy(rng("p").normal(size=4)) for rng in (client.noise_rng, client.rng))
    return client.release(Drawn(**dict(zip(("noise", "other"), drawn, strict=True))))


def draws(federate: Any, digits: FederatedData, tmp_path: Any, **host: Any) -> list[Reply]:
    """What client 0 draws at two hosts of the same federation."""
    hosts = [TaskHost(digits, StateStore(tmp_path / name), **host) for name in ("one", "other")]
    return [federate(engine=LocalEngine(each)).broadcast(sn_draw)["0"] for each in hosts]


def test_seeded_noise_is_the_same_at_two_hosts(federate, digits, tmp_path):
    one, other = draws(federate, digits, tmp_path)
    assert torch.equal(one.noise, other.noise)
    assert torch.equal(one.noise, one.other)


def test_secret_noise_differs_between_two_hosts_and_nothing_else_does(federate, digits, tmp_path):
    one, other = draws(federate, digits, tmp_path, secret_noise=True)
    assert not torch.equal(one.noise, other.noise)
    assert torch.equal(one.other, other.other)


def test_the_server_has_secret_noise_too(federate):
    seeded, secret = ([federate(secret_noise=on).noise_rng("p").normal() for _ in range(2)] for on in (False, True))
    assert seeded[0] == seeded[1] == federate().rng("p").normal()
    assert secret[0] != secret[1]
