"""Privacy noise: from the seed in a simulation, from the operating system where the noise must be secret."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from fedsynth.data.federated import FederatedData
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Policy, Reply, leaves, task
from fedsynth.federation.host import TaskHost
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.store import StateStore, kept_secret


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
    keys = {name: partial(kept_secret, tmp_path / name) for name in ("a", "b")}
    hosts = [TaskHost(digits, StateStore(tmp_path / name), secret=key) for name, key in keys.items()]
    one, other = (federate(engine=LocalEngine(each)).broadcast(sn_draw)["0"] for each in hosts)
    assert not torch.equal(one.noise, other.noise)
    assert not torch.equal(one.noise, one.other)
    assert torch.equal(one.other, other.other)


def test_the_server_has_secret_noise_too(federate, tmp_path):
    seeded = [federate().noise_rng("p").normal() for _ in range(2)]
    secret = [federate(secret=partial(kept_secret, tmp_path / name)).noise_rng("p").normal() for name in "aab"]
    assert seeded[0] == seeded[1] == federate().rng("p").normal()
    assert secret[0] == secret[1] != seeded[0]
    assert secret[0] != secret[2]


def sent(host: TaskHost, **changes: Any) -> torch.Tensor:
    """The noise that client 0 draws for a request."""
    request = {
        "task": sn_asked.name,
        "id": "0",
        "step": 1,
        "seed": 0,
        "round": 1,
        "states": {},
        "fields": {"what": 1.0},
    }
    return decode(host.handle("0", encode(request | changes)))["fields"]["noise"]


@task
def sn_asked(client: Client, what: float) -> Drawn:
    drawn = torch.from_numpy(client.noise_rng("p").normal(size=4))
    client.state.keep_public("seen", what)
    return client.release(Drawn(noise=drawn, other=drawn))


def test_the_same_request_again_gets_the_same_secret_noise_and_any_other_gets_other_noise(digits, tmp_path):
    """So a request that is repeated after a deadline tells nothing new, and noise is never used for two things."""
    host = TaskHost(digits, StateStore(tmp_path / "state"), secret=partial(kept_secret, tmp_path / "key"))
    first = sent(host)
    assert torch.equal(first, sent(host, id="7", step=3))
    for other in ({"fields": {"what": 2.0}}, {"round": 2}, {"seed": 1}, {"turn": 1}, {"states": {"0": "000001-0"}}):
        assert not torch.equal(first, sent(host, **other))


@task
def sn_twice(client: Client) -> Drawn:
    one, other = (torch.from_numpy(client.noise_rng("p").normal(size=4)) for _ in range(2))
    return client.release(Drawn(noise=one, other=other))


def test_noise_for_one_purpose_is_drawn_once_in_a_task(federate):
    failed = federate(policy=Policy(quorum=0.0)).broadcast(sn_twice).failures["0"]
    assert "drawn twice" in failed.message


def test_the_key_is_the_owners_alone_and_stays_the_same(tmp_path):
    file = tmp_path / "folder" / "noise.key"
    key = kept_secret(file)
    assert len(key) == 32
    assert kept_secret(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"short")
    with pytest.raises(FedsynthError, match="damaged"):
        kept_secret(file)
