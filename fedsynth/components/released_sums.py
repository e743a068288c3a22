"""One release of a sum over records: what a client tells of its examples, once, and what is proven about it.

A `Statistic` says which fixed vector stands for an example, and how long it is at most. A client releases the sum of
these vectors over its training examples: as it is, with noise of its own on all of it (ε against everybody), or in a
secure sum to which each client adds a share of the noise, so that what the server opens has it once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, ConfigDict, Field, SerializeAsAny
from torch import Tensor

from fedsynth.components.secure_aggregation import SecureRound, least_in_sum, masked, secure_mean, secured
from fedsynth.components.settings import MethodConfig
from fedsynth.components.slots import SecureSettings, SlotValue
from fedsynth.federation import Client, Federation, Replies, Reply, leaves, task
from fedsynth.federation.tasks import TaskError
from fedsynth.federation.trials import Trial
from fedsynth.privacy import GaussianEvent, Guarantee, gaussian_sigma
from fedsynth.privacy.guarantee import Scope
from fedsynth.privacy.mechanisms import add_gaussian
from fedsynth.privacy.secure_sum import LARGEST, SecureSumError, require_primitives

SCOPE: Scope = ("record", "add or remove one")
IN_SUM = 2.0**-12  # numbers of a secure sum are below 2^10: with this factor, sums of four million records fit
TRUSTED = "a server that makes up clients or works together with some: each knows its own share of the noise"


class Statistic(SlotValue, slot="statistic"):
    """A fixed, public vector of each training example, no longer (L2) than `sensitivity`: their sum is released.

    `about` says what the sum is, for the ledger. A client trusts no request: `total` must keep what `sensitivity` says
    whatever its settings are and whatever the examples hold, numbers that are not finite included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    about: ClassVar[str] = ""

    @property
    def sensitivity(self) -> float:
        """How long the vector of an example can be."""
        raise NotImplementedError

    def total(self, client: Client) -> Tensor:
        """The sum over the client's training examples, in float64 and of one dimension."""
        raise NotImplementedError

    def exact(self, client: Client) -> Tensor:
        """The sum that leaves where nothing covers it, neither noise nor the sums of others: perhaps less of it."""
        return self.total(client)

    def trial(self, schema: Any, mu: float) -> Trial | None:
        """How an audit puts the release to the test with noise for this μ; None where it cannot."""
        return None


StatisticSlot = Annotated[Statistic, BeforeValidator(Statistic.parse), SerializeAsAny()]


# -- at a client ----------------------------------------------------------------------------------------------------


class ReleasedSum(Reply):
    """A sum over a client's training examples."""

    total: Tensor = leaves("the sum over its training examples of a fixed vector of each (see the method's page)")


class MaskedSum(Reply):
    """A client's part of a sum that the server reads as a whole only."""

    masked: Tensor = leaves("its part of a sum over everybody's training examples, masked: readable as a whole only")


@task
def release_sum(client: Client, statistic: StatisticSlot, mu: float | None) -> ReleasedSum:
    """Release the sum once; with μ, noise of standard deviation sensitivity / μ is on every number of it."""
    if mu is None:
        return client.release(ReleasedSum(total=statistic.exact(client)))
    total = statistic.total(client)
    std = statistic.sensitivity / checked_mu(mu)
    noisy = add_gaussian(total, std, client.noise_rng(f"sum of {statistic.name}"))
    proven = sum_guarantee(statistic, mu, f"Gaussian noise of standard deviation {std:.4g} on every number")
    return client.release(ReleasedSum(total=noisy), total=proven)


@task
def release_masked_sum(
    client: Client, secure: SecureRound, statistic: StatisticSlot, mu: float | None, trusting: bool
) -> MaskedSum:
    """Release the sum as a part of everybody's, once.

    `trusting`: with μ, each client adds the share of the noise that makes it whole in the smallest sum that can be
    opened. Otherwise each adds all of it, and needs nobody's word.
    """
    total, proven = statistic.total(client), None
    if mu is not None:
        shares = least_in_sum(client, secure) if trusting else 1
        std = statistic.sensitivity / (checked_mu(mu) * math.sqrt(shares))
        total = add_gaussian(total, std, client.noise_rng(f"sum of {statistic.name}"))
        words = f"Gaussian noise of standard deviation {std:.4g} on every number"
        words += f", of at least {shares} clients together" if trusting else ""
        proven = sum_guarantee(statistic, mu, words, trusting)
    hidden = masked(client, secure, fitting(total).numpy(), weight=1)
    return client.release(MaskedSum(masked=hidden), masked=secured(proven, len(secure.peers)))


def checked_mu(mu: float) -> float:
    """μ as a client takes it: a request may say anything."""
    if not (math.isfinite(mu) and mu > 0):
        raise TaskError(f"mu = {mu} cannot be used: it must be more than 0.")
    return mu


def fitting(total: Tensor) -> Tensor:
    """The sum as numbers that can be masked."""
    small = total * IN_SUM
    if not bool((small.abs() < LARGEST).all()):
        raise SecureSumError("The sum over this client's examples is too large for a secure sum.")
    return small


def sum_guarantee(statistic: Statistic, mu: float, mechanism: str, trusting: bool = False) -> Guarantee:
    """What is proven about a sum with such noise."""
    return Guarantee(
        mechanism=f"{mechanism} of a sum of sensitivity {statistic.sensitivity:.4g}",
        events=(GaussianEvent(mu=mu),),
        unit=SCOPE[0],
        adjacency=SCOPE[1],
        covered=f"{statistic.about}; all that is made of it",
        not_covered=f"{TRUSTED}; who takes part" if trusting else "who takes part",
        against="all but a malicious server" if trusting else "everybody",
    )


# -- at the server --------------------------------------------------------------------------------------------------


class ReleaseConfig(MethodConfig):
    """Settings of what is released once as a sum."""

    requires_individual_updates: ClassVar[str] = ""

    epsilon: float | None = Field(
        None,
        gt=0,
        description="ε of the release, per record (add or remove one), at privacy.delta; none: exact sums leave",
    )

    def mu(self, share: float = 1.0) -> float | None:
        """μ of a release that takes this share of the squared whole; None where nothing is protected."""
        if self.epsilon is None:
            return None
        return math.sqrt(share) / gaussian_sigma(self.epsilon, self.privacy.delta)

    def sums(self) -> SecureSettings | None:
        """How sums are kept secure; None where the server sees each client's."""
        if not self.privacy.secure_aggregation:
            return None
        scope = None if self.epsilon is None else SCOPE
        return SecureSettings(threshold=self.privacy.secure_threshold, scope=scope)


@dataclass(frozen=True)
class Sum:
    """The sum of those who answered. `std`: of the noise on every number of it."""

    total: Tensor
    clients: list[str]
    std: float


def released_sum(
    fed: Federation,
    statistic: Statistic,
    mu: float | None = None,
    secure: SecureSettings | None = None,
    *,
    to: Sequence[str] | None = None,
    attempts: int = 1,
) -> Sum | None:
    """The sum over the examples of all these clients, noise included; None where nobody could be reached.

    One reply after the other is added, so that memory does not grow with the number of clients.
    """
    if secure is not None:
        return _opened_sum(fed, statistic, mu, secure, to)
    replies = released_sums(fed, statistic, mu, to=to, attempts=attempts)
    if not replies:
        return None
    total: Tensor | None = None
    for reply in replies.values():
        total = reply.total if total is None else total + reply.total
    assert total is not None
    std = 0.0 if mu is None else statistic.sensitivity / mu * math.sqrt(len(replies))
    return Sum(total, list(replies), std)


def released_sums(
    fed: Federation,
    statistic: Statistic,
    mu: float | None = None,
    *,
    to: Sequence[str] | None = None,
    attempts: int = 1,
) -> Replies:
    """Each client's own sum, as a `ReleasedSum`."""
    clients = fed.clients if to is None else to
    return fed.broadcast(release_sum, to=clients, attempts=attempts, statistic=statistic, mu=mu)


def _opened_sum(
    fed: Federation, statistic: Statistic, mu: float | None, secure: SecureSettings, to: Sequence[str] | None
) -> Sum | None:
    """The same, where the server opens nothing but the sum. A share of the noise comes from each client."""
    require_primitives()
    clients = list(fed.clients if to is None else to)
    asked = {"statistic": statistic, "mu": mu, "trusting": True}
    found = secure_mean(fed, release_masked_sum, clients, secure, asked, equal=True)
    if found is None:
        return None
    there = len(found.clients)
    total = torch.from_numpy(found.values) * (there / IN_SUM)
    std = 0.0 if mu is None else statistic.sensitivity / mu * math.sqrt(there / found.least)
    return Sum(total, found.clients, std)
