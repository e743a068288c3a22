"""Protected updates in the shared loop: DP-SGD hides each record, clipping and noise hide each client.

With protection on, a reply holds protected weights and else only constants, the same for every client: no number of
examples, loss or number of steps leaves, and so all clients weigh alike. Work is counted as planned, not as done.

Noise on weights that were not clipped (Laplace in AggEnhance's paper, Gaussian in GANDALF's) proves nothing: all else
leaves as ever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from fedsynth.components.settings import MethodConfig, TrainConfig
from fedsynth.components.slots import (
    AfterAggregate,
    Aggregator,
    LeaveIt,
    LocalData,
    LocalRule,
    Mean,
    OwnExamples,
)
from fedsynth.errors import ConfigError
from fedsynth.federation import Client
from fedsynth.learning.effort import count_examples, measured_effort
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.weights import Weights
from fedsynth.privacy import (
    Event,
    GaussianEvent,
    Guarantee,
    PureEvent,
    gaussian_epsilon,
    gaussian_sigma,
    sampled_gaussian_noise,
)
from fedsynth.privacy.config import LARGEST, SMALLEST, NoiseAt
from fedsynth.privacy.dpsgd import DpSgdTraining, Loss, check_model, dp_fit, dp_rate, dp_steps
from fedsynth.privacy.mechanisms import add_gaussian, add_laplace, clip_weights
from fedsynth.privacy.words import EVERY_UPDATE

CALIBRATED = "calibrated noise"  # in the private state: the search takes seconds and is done once
NOISE = "update noise"  # the purpose of the random numbers
SAFE = 1 + 1e-12  # rounding must not bring ε past its target
NUMBER_PUBLIC = "the number of examples, which is taken as public: it decides sampling rate and divisor; who takes part"
CONSTANTS: dict[str, Any] = {"examples": 1, "loss": 0.0, "steps": 0, "extra": {}}
"""What a protected update says beside the weights."""


class Protection(BaseModel):
    """What clients are told about protecting updates. Without `noise`, each one calibrates its own to `target`.

    A client checks it: who asks may be lying. `rounds` is how often a client will be asked to train, at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    updates: Literal["dp_sgd", "clipped", "laplace", "gaussian"]
    clip: float = Field(ge=SMALLEST, le=LARGEST)
    noise: float | None = Field(ge=SMALLEST, le=LARGEST)
    noise_at: NoiseAt
    target: float | None = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    rounds: int = Field(ge=1)

    @model_validator(mode="after")
    def _has_noise(self) -> Protection:
        if self.noise is None and (self.target is None or self.updates != "dp_sgd"):
            raise ValueError("a noise is missing, or a target that a client can calibrate one to")
        return self

    @property
    def proves(self) -> bool:
        """Whether anything is proven about the updates."""
        return self.updates in ("dp_sgd", "clipped")

    @property
    def multiplier(self) -> float:
        """The noise multiplier, where it is the same for all clients."""
        assert self.noise is not None, "every client has its own"
        return self.noise

    @property
    def std(self) -> float:
        """Standard deviation of the noise on an update (or on the sum of all)."""
        return self.multiplier * self.clip


# -- at the server --------------------------------------------------------------------------------------------------


def chosen_protection(cfg: MethodConfig, visits: int = 1) -> Protection | None:
    """What the experiment asks for; noise on clipped updates is calibrated here, by the closed form.

    `visits` is how often a client trains in a round, at most.
    """
    privacy, rounds = cfg.privacy, max(1, cfg.train.rounds * visits)
    if privacy.updates == "none":
        return None
    noise: float | None = privacy.noise
    if privacy.target is not None:
        noise = None
        if privacy.updates == "clipped":
            sensitivity = _sensitivity(privacy.noise_at)
            noise = gaussian_sigma(privacy.target, privacy.delta) * sensitivity * math.sqrt(rounds) * SAFE
    return Protection(
        updates=privacy.updates,
        clip=privacy.clip,
        noise=noise,
        noise_at=privacy.noise_at,
        target=privacy.target,
        delta=privacy.delta,
        rounds=rounds,
    )


def check_protection(protection: Protection, train: TrainConfig, objective: LocalRule, aggregator: Aggregator) -> None:
    """Refuse what cannot be protected, before anything has left a client."""
    wanted = f'privacy.updates = "{protection.updates}"'
    check_objective(protection, objective)
    if aggregator.unprotected:
        raise ConfigError(f'{wanted} cannot be used with aggregator "{aggregator.name}": {aggregator.unprotected}.')
    if protection.updates == "dp_sgd" and train.max_grad_norm is not None:
        raise ConfigError(
            f"{wanted} cannot be used with train.max_grad_norm: privacy.clip shortens the gradient of every record."
        )
    if protection.noise_at == "server" and not isinstance(aggregator, Mean):
        raise ConfigError(
            f'privacy.noise_at = "server" cannot be used with aggregator "{aggregator.name}": its noise is made for '
            'the mean, of which every client is one part. Set noise_at = "client" or method.aggregator = "mean".'
        )


def check_objective(protection: Protection, objective: LocalRule) -> None:
    """Refuse an objective whose updates cannot be protected; clients do, too."""
    wanted = f'privacy.updates = "{protection.updates}"'
    if objective.unprotected:
        raise ConfigError(f'{wanted} cannot be used with objective "{objective.name}": {objective.unprotected}.')
    if protection.updates == "dp_sgd" and not objective.by_record:
        known = LocalRule.known.items()
        possible = " or ".join(f'"{n}"' for n, rule in known if issubclass(rule, LocalRule) and rule.by_record)
        raise ConfigError(
            f'{wanted} cannot be used with objective "{objective.name}": the loss of every record must be clipped by '
            f'itself, and this one is not made for that. Set method.objective = {possible}, or updates = "clipped".'
        )


def check_data_and_tuning(protection: Protection, local_data: LocalData, after: AfterAggregate) -> None:
    """The same for what clients train on and for what the server does to the aggregate."""
    wanted = f'privacy.updates = "{protection.updates}"'
    check_local_data(protection, local_data)
    if after.unprotected:
        raise ConfigError(f'{wanted} cannot be used with after "{after.name}": {after.unprotected}.')
    if after.asks_clients:
        raise ConfigError(
            f'{wanted} cannot be used with after "{after.name}" where it asks the clients: what they would answer is '
            "made from models that are not protected. Set secure = false."
        )
    if protection.noise_at == "server" and not isinstance(after, LeaveIt):
        raise ConfigError(
            f'privacy.noise_at = "server" cannot be used with after "{after.name}": it works with the updates of '
            'single clients, and only their sum has noise. Set noise_at = "client".'
        )


def check_local_data(protection: Protection, local_data: LocalData) -> None:
    """Refuse to protect training on what follows from records in ways that no proof is about; clients do, too."""
    wanted = f'privacy.updates = "{protection.updates}"'
    if local_data.unprotected:
        raise ConfigError(f'{wanted} cannot be used with local_data "{local_data.name}": {local_data.unprotected}.')
    if not isinstance(local_data, OwnExamples) and not (protection.updates == "dp_sgd" and local_data.post_processing):
        raise ConfigError(f'{wanted} cannot be used with local_data "{local_data.name}": it is for own examples.')


def with_server_noise(
    mean: Weights, names: Collection[str], replies: int, protection: Protection, rng: np.random.Generator
) -> Weights:
    """Noise on the named entries of a mean of so many clipped updates, as if their sum had got it."""
    std = protection.std / replies
    return mean | {name: add_gaussian(mean[name], std, rng) for name in sorted(names)}


# -- at a client ----------------------------------------------------------------------------------------------------


def check_here(protection: Protection, objective: LocalRule, local_data: LocalData, net: nn.Module) -> None:
    """What a proof rests on, checked where the data is: the server's own checks may have been left out."""
    check_objective(protection, objective)
    check_local_data(protection, local_data)
    if protection.updates == "dp_sgd":
        check_model(net)


@contextmanager
def planned_effort(client: Client, training: LocalTraining) -> Iterator[None]:
    """Report what training was to cost: what it did cost, such as sizes of random batches, tells about the data."""
    with measured_effort():
        yield
    count_examples(training.epochs * max(1, client.public_size))


def private_fit(
    client: Client, net: nn.Module, x: Tensor, y: Tensor, training: LocalTraining, protection: Protection, loss: Loss
) -> Guarantee:
    """Train by DP-SGD; what that proves about the weights. Made examples among (x, y) are treated like records."""
    size = client.public_size + len(x) - len(client.data.train)
    noise = client_noise(client, size, training, protection)
    private = DpSgdTraining(
        clip=protection.clip, noise=noise, examples=size, batch_size=training.batch_size, epochs=training.epochs
    )
    optimizer = make_optimizer(net.parameters(), training)
    done = dp_fit(net, x, y, private, optimizer, client.noise_rng("dp-sgd"), loss)
    assert done.event is not None
    return Guarantee(
        mechanism=f"DP-SGD, gradients clipped to {protection.clip:g}, noise multiplier {noise:.4g}",
        events=(done.event,),
        unit="record",
        adjacency="add or remove one",
        covered="the weights",
        not_covered=NUMBER_PUBLIC,
    )


def client_noise(client: Client, examples: int, training: LocalTraining, protection: Protection) -> float:
    """The noise multiplier: the given one, or the smallest that keeps all rounds of this client within the target."""
    if protection.target is None:
        return protection.multiplier
    steps = protection.rounds * dp_steps(examples, training.batch_size, training.epochs)
    return calibrated_noise(client, CALIBRATED, protection, dp_rate(examples, training.batch_size), steps)


def calibrated_noise(client: Client, place: str, protection: Protection, rate: float, steps: int) -> float:
    """The smallest noise multiplier that keeps so many steps within the target; kept in this place of the state."""
    assert protection.target is not None
    wanted = [protection.target, protection.delta, rate, steps]
    kept = client.state.get(place)
    if kept is None or kept["for"] != wanted:
        noise = sampled_gaussian_noise(protection.target, protection.delta, rate, steps) * SAFE
        kept = {"for": wanted, "noise": noise}
        client.state.keep_public(place, kept)
    return float(kept["noise"])


def protected_update(
    received: Weights, trained: Weights, names: Collection[str], protection: Protection, rng: np.random.Generator
) -> Weights:
    """The received weights and, for the named entries, the clipped change; with noise where the client adds it."""
    change = {name: trained[name].to(received[name]).double() - received[name].double() for name in sorted(names)}
    clipped = clip_weights(change, protection.clip)
    if protection.noise_at == "server":
        return received | {name: _no_farther(received[name], step) for name, step in clipped.items()}
    noisy = {name: add_gaussian(step, protection.std, rng) for name, step in clipped.items()}
    return received | {name: (received[name].double() + s).to(received[name].dtype) for name, s in noisy.items()}


def with_bare_noise(
    weights: Weights, names: Collection[str], protection: Protection, rng: np.random.Generator
) -> Weights:
    """Noise on every one of the named weights, as they are (AggEnhance, eq. 20; GANDALF, algorithms 1 and 3)."""
    add = add_laplace if protection.updates == "laplace" else add_gaussian
    return weights | {name: add(weights[name], protection.multiplier, rng) for name in sorted(names)}


def bare_noise_guarantee(protection: Protection) -> Guarantee:
    """What is proven about such weights: nothing."""
    kind, claimed = "Laplace", "the paper calls it differential privacy and gives no ε"
    if protection.updates == "gaussian":
        epsilon = gaussian_epsilon(1 / protection.multiplier, protection.delta)
        kind = "Gaussian"
        claimed = (
            f"granting the sensitivity that the paper assumes and nothing enforces, ε = {epsilon:.1e} at "
            f"δ = {protection.delta:g} each time it leaves"
        )
    return Guarantee.none(
        mechanism=f"{kind} noise of scale {protection.multiplier:g} on every weight, without clipping",
        not_covered="everything: a weight that is not clipped has no sensitivity, so nothing is proven by any noise "
        "on it; BatchNorm's statistics get none",
        claimed=claimed,
    )


def update_guarantee(protection: Protection) -> Guarantee:
    """What is proven about one clipped update."""
    event: Event = GaussianEvent(mu=_sensitivity(protection.noise_at) / protection.multiplier)
    noise = f"Gaussian noise of standard deviation {protection.std:.4g}"
    if protection.noise_at == "client":
        return Guarantee(
            mechanism=f"update clipped to {protection.clip:g}, {noise}",
            events=(event,),
            unit="client",
            adjacency="replace one",
            covered="the weights",
            not_covered="who takes part",
        )
    return Guarantee(
        mechanism=f"update clipped to {protection.clip:g}; the server adds {noise} to the sum",
        events=(event,),
        unit="client",
        adjacency="add or remove one",
        covered="what everybody but the server can learn",
        not_covered=f"the server, {EVERY_UPDATE}; who takes part",
        against="all but the server",
    )


def all_guarantees(model: Guarantee) -> dict[str, Guarantee]:
    """The guarantee of the weights, and one for each of the constants beside them."""
    return {"model": model, **dict.fromkeys(CONSTANTS, says_nothing(model))}


def says_nothing(beside: Guarantee) -> Guarantee:
    """The guarantee of a constant that leaves beside something protected."""
    return Guarantee(
        mechanism="the same constant for every client",
        events=(PureEvent(epsilon=0),),
        unit=beside.unit,
        adjacency=beside.adjacency,
        covered="all of it: nothing depends on the data",
    )


def _sensitivity(noise_at: NoiseAt) -> float:
    """In units of clip: a client's own update turns into any other, or comes to (or goes from) the sum."""
    return 2.0 if noise_at == "client" else 1.0


def _no_farther(start: Tensor, step: Tensor) -> Tensor:
    """`start + step`, rounded so that no coordinate moves farther than its step: a clipped update stays clipped."""
    end = (start.double() + step).to(start.dtype)
    beyond = (end.double() - start.double()).abs() > step.abs()
    return torch.where(beyond, torch.nextafter(end, start), end)
