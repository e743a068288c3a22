"""Secure aggregation: the server learns the sum of a round's updates, and no single one.

The four stages of Bonawitz et al. 2017 as ordinary tasks: clients offer keys, share their secrets with each other,
send masked numbers (that stage is the method's own task, see `masked`) and open the sum. Who is lost before its masked
numbers came is left out, and its masks are removed with the help of the others; who is lost later is in the sum.

The server is taken to be honest but curious: it keeps to the protocol, and looks at all it gets. One that makes up
keys or clients, or names an old state of a client to ask it a second time, is not stopped by this. The sum itself is
not protected: this is not differential privacy, and it can be combined with it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from fedsynth.components.slots import SecureSettings
from fedsynth.federation import Client, Federation, QuorumError, Replies, Reply, leaves, task
from fedsynth.federation.tasks import Task
from fedsynth.privacy import Guarantee, secure_sum
from fedsynth.privacy.guarantee import EVERY_UPDATE, MASKED, Scope
from fedsynth.privacy.secure_sum import PublicKeys, Secrets, SecureSumError, Words

KEPT = "secure sum"  # in the private state: the secrets of the sum that is under way
Values = NDArray[np.float64]


class SecureRound(BaseModel, frozen=True, extra="forbid"):
    """What a client must know to mask its numbers: whose masks it shares, and whether all have equal weights."""

    session: str
    peers: tuple[str, ...]
    equal: bool = False


class OfferedKeys(Reply):
    """The keys of one sum."""

    keys: PublicKeys = leaves("two public keys, made anew for one sum; they tell nothing about the data")


class SharedSecrets(Reply):
    """Shares of a client's secrets for the others."""

    shares: dict[str, str] = leaves("shares of the secrets behind the masks, encrypted for each other client")


class Opened(Reply):
    """What removes the masks from the sum."""

    seeds: dict[str, str] = leaves("shares of the seeds of own masks, of clients whose numbers arrived")
    masks: dict[str, str] = leaves("shares of the mask keys of clients that were lost")


# -- at a client ----------------------------------------------------------------------------------------------------


@task
def offer_keys(client: Client, session: str, scope: Scope | None = None) -> OfferedKeys:
    """Make the secrets of a new sum, and tell what is public of them."""
    secrets = Secrets.new()
    client.state.keep_public(KEPT, {"session": session, "secrets": vars(secrets)})
    return client.release(OfferedKeys(keys=secrets.public()), **no_data(scope, "keys"))


@task
def share_secrets(
    client: Client, session: str, keys: dict[str, PublicKeys], threshold: int, scope: Scope | None = None
) -> SharedSecrets:
    """Share the secrets of a sum with the others, so that they can finish it should this client be lost."""
    kept, secrets = under_way(client, session)
    secure_sum.check_keys(client.id, secrets.public(), keys, threshold)
    shares, own = secure_sum.shares_for(client.id, secrets, keys, threshold)
    agreed = {"keys": {name: list(pair) for name, pair in keys.items()}, "threshold": threshold, "own": list(own)}
    client.state.keep_public(KEPT, kept | agreed)
    return client.release(SharedSecrets(shares=shares), **no_data(scope, "shares"))


def masked(client: Client, secure: SecureRound, values: Values, weight: int) -> Tensor:
    """A weight and the values times it, masked: what a client may send for one sum, once."""
    kept, secrets = under_way(client, secure.session)
    if "peers" in kept:
        raise SecureSumError("This client has sent its numbers for this sum already: masks are not used twice.")
    keys, peers = kept.get("keys", {}), set(secure.peers)
    if client.id not in peers or not peers <= set(keys) or len(peers) < kept["threshold"]:
        raise SecureSumError("The list of those who shared their secrets does not fit the list of keys.")
    words = secure_sum.mask(client.id, secrets, keys, peers, secure_sum.to_words(values, weight, len(keys)))
    client.state.keep_public(KEPT, kept | {"peers": sorted(peers)})
    return torch.from_numpy(words)


def least_in_sum(client: Client, secure: SecureRound) -> int:
    """How many clients the smallest sum has that this client will help to open."""
    return int(under_way(client, secure.session)[0]["threshold"])


@task
def open_sum(
    client: Client, session: str, stayed: list[str], left: list[str], shares: dict[str, str], scope: Scope | None = None
) -> Opened:
    """Give the shares that remove the masks: of each client one secret or the other. Then forget all of them."""
    kept, secrets = under_way(client, session)
    if sorted({*stayed, *left}) != kept.get("peers") or client.id not in stayed or len(stayed) < kept["threshold"]:
        raise SecureSumError(
            "Those who stayed and those who were lost are not those whose masks were used, or too few have stayed."
        )
    if not {*stayed, *left} <= {*shares, client.id}:
        raise SecureSumError("Shares of some of the clients are missing.")
    own = kept["own"][0], kept["own"][1]
    seeds, masks = secure_sum.disclose(client.id, secrets, kept["keys"], own, shares, stayed, left)
    del client.state[KEPT]  # asked once more, for whatever secret, there is none to give
    return client.release(Opened(seeds=seeds, masks=masks), **no_data(scope, "seeds", "masks"))


def under_way(client: Client, session: str) -> tuple[dict[str, Any], Secrets]:
    """What this client keeps for a sum."""
    kept = client.state.get(KEPT)
    if kept is None or kept["session"] != session:
        raise SecureSumError("This client takes part in no such secure sum, or has opened it already.")
    return kept, Secrets(**kept["secrets"])


def no_data(scope: Scope | None, *fields: str) -> dict[str, Guarantee]:
    """What is proven of random keys and shares; an ε of zero only where the ledger keeps an ε of that scope."""
    mechanism = f"{MASKED}: random, made without the data"
    if scope is None:
        return dict.fromkeys(fields, Guarantee.none(mechanism=mechanism, not_covered=""))
    return dict.fromkeys(fields, Guarantee.constant(mechanism, "nothing depends on the data", scope))


def secured(guarantee: Guarantee | None, clients: int) -> Guarantee:
    """What is proven of masked numbers: what was proven of the numbers, and that the server sees their sum alone."""
    masks = f"{MASKED} among {clients} clients"
    if guarantee is None:
        return Guarantee.none(
            mechanism=masks,
            not_covered="the sum, which the server learns; a server that does not keep to the protocol; who takes part",
        ).model_copy(update={"masked": True})
    seen = guarantee.not_covered.replace(EVERY_UPDATE, "which sees the sum before its noise")
    changes = {"mechanism": f"{guarantee.mechanism}; {masks}", "not_covered": seen, "masked": True}
    return guarantee.model_copy(update=changes)


# -- at the server --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SecureMean:
    """The weighted mean of the numbers of those whose numbers arrived. `least`: as few could have been opened."""

    values: Values
    clients: list[str]
    least: int


def secure_mean(
    fed: Federation,
    asked: Task,
    to: Sequence[str],
    settings: SecureSettings,
    fields: Mapping[str, Any],
    equal: bool = False,
) -> SecureMean | None:
    """The mean of what a task gives at these clients; nothing where too few stayed.

    The task takes `secure` beside the fields, and sends what `masked` gives under that name.
    """
    under_way = _Sum(fed, list(to), settings)
    if not under_way.agree():
        return None
    secure = SecureRound(session=under_way.session, peers=tuple(under_way.shares), equal=equal)
    sent = fed.broadcast(asked, to=list(under_way.shares), quorum=0, secure=secure, **fields)
    if not under_way.goes_on(asked, sent, len(sent)):
        return None
    total = under_way.opened(list(sent), _added(reply.masked for reply in sent.values()))
    return None if total is None else SecureMean(secure_sum.from_words(total)[1], list(sent), under_way.threshold)


class _Sum:
    """A secure sum, as the server sees it. Whether enough have stayed is its own affair: quorums are of the start."""

    def __init__(self, fed: Federation, clients: list[str], settings: SecureSettings) -> None:
        # Never the same twice: a site answers a request that it knows as before, and these keys must be new.
        self.session = os.urandom(16).hex()
        self.fed, self.clients, self.settings = fed, clients, settings
        self.common: dict[str, Any] = {"session": self.session, "scope": settings.scope}
        self.threshold = secure_sum.FEWEST
        self.keys: dict[str, PublicKeys] = {}
        self.shares: dict[str, dict[str, str]] = {}

    def agree(self) -> bool:
        """The first two stages: everybody's keys, and the shares of their secrets."""
        offered = self.fed.broadcast(offer_keys, to=self.clients, quorum=0, **self.common)
        self.keys = {client: reply.keys for client, reply in offered.items() if secure_sum.are_keys(reply.keys)}
        if not self.goes_on(offer_keys, offered, len(self.keys)):
            return False
        self.threshold = secure_sum.enough(self.settings.threshold, len(self.keys))
        about: dict[str, Any] = {"keys": self.keys, "threshold": self.threshold}
        shared = self.fed.broadcast(share_secrets, to=list(self.keys), quorum=0, **about, **self.common)
        found = {client: reply.shares for client, reply in shared.items()}
        self.shares = {client: box for client, box in found.items() if {*box, client} == set(self.keys)}
        return self.goes_on(share_secrets, shared, len(self.shares))

    def opened(self, stayed: list[str], total: Words) -> Words | None:
        """The last stage: the sum of those who stayed, without masks. Who is lost now is in it all the same."""
        left = [client for client in self.shares if client not in stayed]
        requests = {
            client: {
                "stayed": stayed,
                "left": left,
                "shares": {sender: box[client] for sender, box in self.shares.items() if sender != client},
                **self.common,
            }
            for client in stayed
        }
        replies = self.fed.scatter(open_sum, requests, quorum=0)
        said = [r for r in replies.values() if set(r.seeds) == set(stayed) and set(r.masks) == set(left)]
        if not self.goes_on(open_sum, replies, len(said), quorum=0.0):
            return None
        seeds = {client: [reply.seeds[client] for reply in said] for client in stayed}
        masks = {client: [reply.masks[client] for reply in said] for client in left}
        return secure_sum.unmask(total, self.keys, stayed, seeds, masks, self.threshold)

    def goes_on(self, asked: Task, replies: Replies, answered: int, quorum: float | None = None) -> bool:
        """Whether enough answered usefully: by the quorum, of those picked, and by the threshold, which stands."""
        fed = self.fed
        quorum = fed.policy.quorum if quorum is None else quorum
        if answered >= self.threshold and answered >= quorum * len(self.clients):
            return True
        said = (
            f'Round {fed.round}, task "{asked.name}": {answered} of {len(self.clients)} clients are left in the secure '
            f"sum, which can be opened with {self.threshold} at least"
        )
        if fed.policy.quorum > 0:
            first = next(iter(replies.failures.values()), None)
            trace = f"\n{first.traceback.rstrip()}" if first and first.traceback else ""
            raise QuorumError(f"{said}; {fed.policy.quorum:.0%} must be. First failure: {first or 'none'}.{trace}")
        fed.note(f"{said}: it was left out.")
        return False


def _added(parts: Iterable[Tensor]) -> Words:
    """The sum modulo 2^64, holding two of the parts in memory."""
    total: Words | None = None
    for part in parts:
        words = part.numpy()
        if words.dtype != np.uint64 or words.ndim != 1 or (total is not None and words.shape != total.shape):
            raise SecureSumError("A client sent something other than masked numbers of the length of the others.")
        total = words.copy() if total is None else total + words
    assert total is not None
    return total
