"""The sums of all clients: asked for a few at a time, kept for later runs where that is wanted, taken up from one."""

import hashlib
from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from fedsynth.components.feature_sums import FeatureSum
from fedsynth.components.released_sums import released_sum, released_sums
from fedsynth.errors import ConfigError, UserError, nearest
from fedsynth.federation import Federation, State
from fedsynth.federation.journal import Journal
from fedsynth.federation.payload import encode
from fedsynth.learning.ridge import RidgeSums
from fedsynth.methods.analytic.settings import CENTRE_SHARE, AnalyticConfig
from fedsynth.methods.analytic.statistics import RidgeMoments

PHASE = "sums"
AT_A_TIME = 50  # clients: no more of their replies are in memory at once
ATTEMPTS = 2


class SumsState(State):
    """What has come in: the sum, of how many clients, the variance of its noise; where they are kept, each one's."""

    total: Tensor | None
    clients: int
    variance: float
    each: dict[str, Tensor]
    about: str

    def add(self, total: Tensor, clients: int = 1, variance: float = 0.0) -> None:
        """Add the sum of some clients."""
        self.total = total if self.total is None else self.total + total
        self.clients, self.variance = self.clients + clients, self.variance + variance


class Gathering:
    """Adds up what clients send."""

    def __init__(self, fed: Federation, cfg: AnalyticConfig, moments: RidgeMoments, features: int) -> None:
        self.fed, self.cfg, self.moments, self.features = fed, cfg, moments, features
        self.state = SumsState(total=None, clients=0, variance=0.0, each={}, about=fingerprint(moments))

    def gather(self) -> SumsState:
        """The sums of all clients but those who leave: of an earlier run, or asked for now."""
        fed, cfg = self.fed, self.cfg
        kept = earlier_sums(cfg.start, self.state.about) if cfg.start else {}
        left = leaving(fed, cfg, kept)
        if kept:
            fed.note(f'Sums of "{Path(str(cfg.start)).name}" are used: what clients sent then is in the ledger there.')
        for client, total in kept.items():
            if client not in left:
                self.add_one(client, total)
        new = [client for client in fed.clients if client not in left and client not in kept]
        groups = groups_of(new, cfg)
        for step in fed.steps(PHASE, len(groups), self.state):
            self.ask(groups[step - 1])
        return self.state

    def ask(self, clients: list[str]) -> None:
        """Ask some clients and add what they answer."""
        fed, cfg = self.fed, self.cfg
        if cfg.needs_each:
            for client, reply in released_sums(fed, self.moments, to=clients, attempts=ATTEMPTS).items():
                self.add_one(client, reply.total)
            return
        mu = cfg.mu(1 - CENTRE_SHARE)
        found = released_sum(fed, self.moments, mu, cfg.sums(), to=clients, attempts=ATTEMPTS)
        if found is not None:
            self.state.add(found.total, len(found.clients), found.std**2)

    def add_one(self, client: str, total: Tensor) -> None:
        """Add the exact sums of one client, weighed as asked."""
        if self.cfg.keep:
            self.state.each = {**self.state.each, client: total}
        self.state.add(weighed(total, self.cfg.weights, self.features, self.fed.schema.classes))


def groups_of(clients: list[str], cfg: AnalyticConfig) -> list[list[str]]:
    """Who is asked together: a few, or all where one secure sum is made of them."""
    size = max(1, len(clients)) if cfg.privacy.secure_aggregation else AT_A_TIME
    return [clients[first : first + size] for first in range(0, len(clients), size)]


def noisy_mean(fed: Federation, cfg: AnalyticConfig, asked: FeatureSum) -> Tensor | None:
    """The mean of the features of all clients but those who leave; None where nobody could be reached."""
    left, total = leaving(fed, cfg, {}), None
    for clients in groups_of([client for client in fed.clients if client not in left], cfg):
        found = released_sum(fed, asked, cfg.mu(CENTRE_SHARE), cfg.sums(), to=clients, attempts=ATTEMPTS)
        if found is not None:
            total = found.total if total is None else total + found.total
    return None if total is None else asked.mean(total)


def weighed(total: Tensor, weights: str, features: int, classes: int) -> Tensor:
    """A client's sums; where clients weigh alike, divided by the number of its examples."""
    if weights != "clients":
        return total
    return total / max(1.0, float(RidgeSums.unpacked(total, features, classes).examples.sum()))


def leaving(fed: Federation, cfg: AnalyticConfig, kept: Collection[str]) -> set[str]:
    """The clients that are left out."""
    known = {*fed.clients, *kept}
    for client in cfg.leave:
        if client not in known:
            raise ConfigError(f'method.leave names "{client}", which is no client here.{nearest(client, known)}')
    gone = sorted(set(kept) - {*fed.clients, *cfg.leave})
    if gone:
        raise ConfigError(
            f'method.start = "{cfg.start}": "{gone[0]}" took part then and is no client now. If it is to be forgotten, '
            f'set method.leave = ["{gone[0]}"].'
        )
    return set(cfg.leave)


def earlier_sums(start: str, about: str) -> dict[str, Tensor]:
    """The sums of each client that an earlier run kept: nothing leaves them again."""
    try:
        kept = Journal(Path(start)).phase(PHASE)["state"]
        each, made_of = dict(kept["each"]), kept["about"]
    except (UserError, KeyError, TypeError):
        raise ConfigError(f'method.start = "{start}": this is no finished run of "analytic".') from None
    if not each:
        raise ConfigError(f'method.start = "{start}": that run kept no sums. Run it with method.keep = true.')
    if made_of != about:
        raise ConfigError(f'method.start = "{start}": its sums are of other features than those asked for here.')
    return each


def fingerprint(moments: RidgeMoments) -> str:
    """A hash of what is summed."""
    return hashlib.sha256(encode({"moments": moments})).hexdigest()
