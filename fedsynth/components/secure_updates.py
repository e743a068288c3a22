"""Updates that are summed securely: the server learns their mean, and no single one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsynth.components.local_training import TrainRequest, Update, UpdatePrivacy, UpdatesSlot, train
from fedsynth.components.secure_aggregation import SecureRound, SecureSettings, Values, masked, secure_mean, secured
from fedsynth.components.slots import LocalObjective, Mean
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.federation.state import picked
from fedsynth.learning.weights import Weights
from fedsynth.privacy import PrivacyConfig
from fedsynth.privacy.guarantee import Scope
from fedsynth.privacy.secure_sum import FEWEST, require_primitives

if TYPE_CHECKING:
    from fedsynth.components.loop import Loop

SCOPES: dict[tuple[str, str], Scope] = {
    ("dp_sgd", "client"): ("record", "add or remove one"),
    ("clipped", "client"): ("client", "replace one"),
    ("clipped", "server"): ("client", "add or remove one"),
}
"""What the ε of protected updates is about, by what protects them and who adds the noise."""


class MaskedUpdate(Reply):
    """What a client sends in place of an update where updates are summed securely."""

    masked: Tensor = leaves("the change of the weights and the number of examples, masked: readable as a sum only")


@task
def train_masked(client: Client, secure: SecureRound, model: Weights, request: TrainRequest) -> MaskedUpdate:
    """Train as `train` does on this request, and release the update as a part of a sum only."""
    asked = {"model": model, "request": request}
    client.answers(train.name, asked)  # asked for again, in a sum with other masks, it is the same update
    update = train.run(client, asked)
    assert isinstance(update, Update)
    hidden = masked(client, secure, flatten_change(model, update.model), 1 if secure.equal else update.examples)
    proven = secured(client.guarantees.get("model"), len(secure.peers))
    return client.release(MaskedUpdate(masked=hidden), masked=proven)  # in place of the update


class SecureSum(UpdatePrivacy, name="secure_sum"):
    """The server's half: it stands around what protects each update, and asks for them masked."""

    inner: UpdatesSlot
    sums: SecureSettings

    @classmethod
    def around(cls, inner: UpdatePrivacy, privacy: PrivacyConfig) -> "SecureSum":
        """What the experiment asks for."""
        scope = SCOPES.get((privacy.updates, privacy.noise_at))
        return cls(inner=inner, sums=SecureSettings(threshold=privacy.secure_threshold, scope=scope))

    @property
    def secure(self) -> SecureSettings | None:
        return self.sums

    def at_clients(self) -> UpdatePrivacy:
        return self.inner

    def check(self, loop: "Loop") -> None:
        self.inner.check(loop)
        check_secure(loop)

    def prepare(self, fed: Federation, objective: LocalObjective) -> None:
        self.inner.prepare(fed, objective)

    def collect(
        self, fed: Federation, clients: list[str], model: Weights, request: TrainRequest, equal: bool
    ) -> Mapping[str, Update]:
        """As if all that stayed in the sum had sent the mean; nobody where too few stayed."""
        fields = {"model": model, "request": request}
        found = secure_mean(fed, train_masked, clients, self.sums, fields, equal)
        return {} if found is None else dict.fromkeys(found.clients, Update(model=add_change(model, found.values)))

    def protect_mean(self, fed: Federation, mean: Weights, names: set[str], replies: int) -> Weights:
        return self.inner.protect_mean(fed, mean, names, replies)


def check_secure(loop: "Loop") -> None:
    """Refuse what needs single updates, before anything has left a client."""
    wanted, aggregator, tuning = "privacy.secure_aggregation = true", loop.slots.aggregator, loop.slots.post_aggregation
    require_primitives()
    if not isinstance(aggregator, Mean):
        raise ConfigError(
            f'{wanted} cannot be used with aggregator "{aggregator.name}", which needs what each client sends: the '
            'server learns the sum alone. Set method.aggregator = "mean", or secure_aggregation = false.'
        )
    if tuning.single_models and not tuning.asks_clients:
        raise ConfigError(
            f'{wanted} cannot be used with post_aggregation "{tuning.name}", which works with the model of each '
            "client: the server learns their mean alone. Set secure_aggregation = false; agg_enhance can have secure "
            "= true instead."
        )
    if loop.cfg.train.norm_buffers in ("recalibrate", "pooled"):
        raise ConfigError(
            f'{wanted} cannot be used with train.norm_buffers = "{loop.cfg.train.norm_buffers}", in which the server '
            'reads the statistics of each client: set "average" or "local".'
        )
    clients, fraction = len(loop.fed.clients), loop.cfg.train.fraction
    if picked(fraction, clients) < FEWEST:
        raise ConfigError(
            f"{wanted} needs {FEWEST} clients in a round at least, and train.fraction = {fraction:g} of "
            f"{clients} is {picked(fraction, clients)}: of fewer, one could be told from the sum."
        )


def flatten_change(received: Weights, trained: Weights) -> Values:
    """The change of all entries, one after the other by name. Counters of BatchNorm are numbers like all others."""
    change = [(trained[name].double() - received[name].double()).reshape(-1) for name in sorted(trained)]
    return torch.cat(change).numpy() if change else np.zeros(0)


def add_change(received: Weights, change: Values) -> Weights:
    """The weights after a change that is given as one vector; whole numbers are rounded."""
    sizes = [received[name].numel() for name in sorted(received)]
    parts = torch.from_numpy(change).split(sizes)
    result: Weights = {}
    for name, part in zip(sorted(received), parts, strict=True):
        entry = received[name]
        end = entry.double() + part.reshape(entry.shape)
        result[name] = (end if entry.is_floating_point() else end.round()).to(entry.dtype)
    return {name: result[name] for name in received}
