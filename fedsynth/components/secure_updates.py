"""Secure aggregation in the shared loop: what goes with it, and the mean of updates that nobody has seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedsynth.components.secure_aggregation import SecureSettings, Values, secure_mean
from fedsynth.components.settings import MethodConfig
from fedsynth.components.slots import AfterAggregate, Aggregator, LeaveIt, Mean
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation
from fedsynth.federation.state import picked
from fedsynth.federation.tasks import Task
from fedsynth.learning.weights import Weights
from fedsynth.privacy.guarantee import Scope
from fedsynth.privacy.secure_sum import FEWEST, require_primitives

SCOPES: dict[tuple[str, str], Scope] = {
    ("dp_sgd", "client"): ("record", "add or remove one"),
    ("clipped", "client"): ("client", "replace one"),
    ("clipped", "server"): ("client", "add or remove one"),
}
"""What the ε of protected updates is about, by what protects them and who adds the noise."""


def chosen_security(cfg: MethodConfig) -> SecureSettings | None:
    """What the experiment asks for."""
    privacy = cfg.privacy
    if not privacy.secure_aggregation:
        return None
    scope = SCOPES.get((privacy.updates, privacy.noise_at))
    return SecureSettings(threshold=privacy.secure_threshold, scope=scope)


def check_secure(fed: Federation, cfg: MethodConfig, aggregator: Aggregator, after: AfterAggregate) -> None:
    """Refuse what needs single updates, before anything has left a client."""
    wanted = "privacy.secure_aggregation = true"
    require_primitives()
    if not isinstance(aggregator, Mean):
        raise ConfigError(
            f'{wanted} cannot be used with aggregator "{aggregator.name}", which needs what each client sends: the '
            'server learns the sum alone. Set method.aggregator = "mean", or secure_aggregation = false.'
        )
    if not isinstance(after, LeaveIt) and not after.asks_clients:
        raise ConfigError(
            f'{wanted} cannot be used with after "{after.name}", which works with the model of each client: the server '
            "learns their mean alone. Set secure_aggregation = false; agg_enhance can have secure = true instead."
        )
    if cfg.train.norm_buffers == "recalibrate":
        raise ConfigError(
            f'{wanted} cannot be used with train.norm_buffers = "recalibrate", in which each client sends statistics '
            'of its data: set "average" or "local".'
        )
    few = picked(cfg.train.fraction, len(fed.clients))
    if few < FEWEST:
        raise ConfigError(
            f"{wanted} needs {FEWEST} clients in a round at least, and train.fraction = {cfg.train.fraction:g} of "
            f"{len(fed.clients)} is {few}: of fewer, one could be told from the sum."
        )


def in_one_vector(received: Weights, trained: Weights) -> Values:
    """The change of all entries, one after the other by name. Counters of BatchNorm are numbers like all others."""
    change = [(trained[name].double() - received[name].double()).reshape(-1) for name in sorted(trained)]
    return torch.cat(change).numpy() if change else np.zeros(0)


def securely_averaged(
    fed: Federation,
    asked: Task,
    clients: list[str],
    secure: SecureSettings,
    request: dict[str, Any],
    aggregator: Aggregator,
) -> tuple[Weights, list[str]]:
    """The mean of the clients' models, and whose they are; nobody's where too few stayed."""
    assert isinstance(aggregator, Mean)
    equal = aggregator.weights == "equal"
    found = secure_mean(fed, asked, clients, secure, {"request": request}, equal)
    return ({}, []) if found is None else (moved(request["model"], found.values), found.clients)


def moved(received: Weights, change: Values) -> Weights:
    """The weights after a change that is given as one vector; whole numbers are rounded."""
    sizes = [received[name].numel() for name in sorted(received)]
    parts = torch.from_numpy(change).split(sizes)
    result: Weights = {}
    for name, part in zip(sorted(received), parts, strict=True):
        entry = received[name]
        end = entry.double() + part.reshape(entry.shape)
        result[name] = (end if entry.is_floating_point() else end.round()).to(entry.dtype)
    return {name: result[name] for name in received}
