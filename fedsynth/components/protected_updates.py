"""Protected updates: DP-SGD hides each record, clipping and noise hide each client as a whole.

A reply holds protected weights and else only constants, the same for every client: no number of examples, loss or
number of steps leaves, and so all clients have equal weights. Work is counted as planned, not as done.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedsynth.components.local_training import TrainRequest, Update, UpdatePrivacy, fit_objective, kept_entries
from fedsynth.components.local_training import shared_entries as shared_entries_of
from fedsynth.components.slots import LocalContext, LocalData, LocalObjective, Mean, OwnExamples, SlotValue
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Federation
from fedsynth.learning.aggregators import only
from fedsynth.learning.effort import count_examples, measured_effort
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.weights import Weights
from fedsynth.privacy import GaussianEvent, Guarantee, PrivacyConfig, gaussian_sigma, sampled_gaussian_noise
from fedsynth.privacy.config import LARGEST, SMALLEST
from fedsynth.privacy.dpsgd import DpSgdTraining, check_model, dp_fit, dp_rate, dp_steps
from fedsynth.privacy.guarantee import EVERY_UPDATE, NUMBER_PUBLIC, constant_guarantee
from fedsynth.privacy.mechanisms import add_gaussian, clip_weights

if TYPE_CHECKING:
    from fedsynth.components.loop import Loop

CALIBRATED = "calibrated noise"  # in the private state: the search takes seconds and is done once
NOISE = "update noise"  # the purpose of the random numbers
SAFE = 1 + 1e-12  # rounding must not bring ε past its target
CONSTANTS = [name for name in Update.model_fields if name != "model"]  # what a protected update says beside the weights


class ProtectedUpdates(UpdatePrivacy):
    """What DP-SGD and clipped updates have in common."""

    clip: float = Field(ge=SMALLEST, le=LARGEST)
    delta: float = Field(gt=0, lt=1)

    @property
    def wanted(self) -> str:
        """What the experiment asks for, in its own words."""
        return f'privacy.updates = "{self.name}"'

    def check(self, loop: "Loop") -> None:
        slots = loop.slots
        self.refuse(slots.objective, slots.local_data, slots.aggregator, slots.post_aggregation)
        self.check_here(slots.objective, slots.local_data, loop.net)
        check_model(loop.net)
        if exposed := slots.post_aggregation.exposes(self.hides_records):
            raise ConfigError(
                f'{self.wanted} cannot be used with post_aggregation "{slots.post_aggregation.name}": {exposed}.'
            )
        if slots.post_aggregation.asks_clients:
            raise ConfigError(
                f'{self.wanted} cannot be used with post_aggregation "{slots.post_aggregation.name}" where it asks the '
                "clients: what they would answer is made from models that are not protected. Set secure = false."
            )

    def refuse(self, *values: SlotValue) -> None:
        """Refuse values that say why they do not go with protected updates."""
        for value in values:
            if value.unprotected:
                raise ConfigError(
                    f'{self.wanted} cannot be used with {value.slot} "{value.name}": {value.unprotected}.'
                )

    def check_here(self, objective: LocalObjective, local_data: LocalData, net: nn.Module) -> None:
        self.refuse(objective, local_data)
        if not isinstance(local_data, OwnExamples) and not self.allows(local_data):
            why = local_data.private_when if self.hides_records else LocalData.private_when
            raise ConfigError(f'{self.wanted} cannot be used with local_data "{local_data.name}": {why}.')

    def allows(self, local_data: LocalData) -> bool:
        """Whether examples beside the client's own go with the proof."""
        return False

    def update(self, local: LocalContext, x: Tensor, request: TrainRequest, model: Weights) -> Update:
        """Train, and let nothing but protected weights and constants leave; entries not trained stay as sent."""
        names = {name for name, p in local.net.named_parameters() if p.requires_grad}
        with plan_effort(local.client, local.training):
            shared, guarantee = self.protect(local, x, request, model, names - kept_entries(local.net, request.keeps))
        return local.client.release(Update(model=shared), **all_guarantees(guarantee))

    def protect(
        self, local: LocalContext, x: Tensor, request: TrainRequest, model: Weights, names: set[str]
    ) -> tuple[Weights, Guarantee]:
        """The received weights with the named entries as they leave, and what is proven about them."""
        raise NotImplementedError


class DpSgdUpdates(ProtectedUpdates, name="dp_sgd"):
    """Clients train by DP-SGD. Without `noise`, each one calibrates its own to `target`, over all its trainings."""

    hides_records: ClassVar[bool] = True

    noise: float | None = Field(ge=SMALLEST, le=LARGEST)
    target: float | None = Field(gt=0)
    trainings: int = Field(ge=1)

    @model_validator(mode="after")
    def _has_noise(self) -> "DpSgdUpdates":
        if self.noise is None and self.target is None:
            raise ValueError("a noise is missing, or a target that a client can calibrate one to")
        return self

    @classmethod
    def planned(cls, privacy: PrivacyConfig, trainings: int) -> "DpSgdUpdates":
        noise = privacy.noise if privacy.target is None else None
        return cls(clip=privacy.clip, delta=privacy.delta, noise=noise, target=privacy.target, trainings=trainings)

    def check(self, loop: "Loop") -> None:
        super().check(loop)
        if loop.cfg.train.max_grad_norm is not None:
            raise ConfigError(
                f"{self.wanted} cannot be used with train.max_grad_norm: privacy.clip shortens the gradient of every "
                "record."
            )

    def prepare(self, fed: Federation, objective: LocalObjective) -> None:
        objective.prepare(fed, self.delta)

    def check_here(self, objective: LocalObjective, local_data: LocalData, net: nn.Module) -> None:
        super().check_here(objective, local_data, net)
        if not objective.by_record:
            known = LocalObjective.known.items()
            possible = " or ".join(f'"{n}"' for n, o in known if issubclass(o, LocalObjective) and o.by_record)
            raise ConfigError(
                f'{self.wanted} cannot be used with objective "{objective.name}": the loss of every record must be '
                f"clipped by itself, and this one is not made for that. Set method.objective = {possible}, or "
                'updates = "clipped".'
            )
        check_model(net)

    def allows(self, local_data: LocalData) -> bool:
        return local_data.post_processing

    def protect(
        self, local: LocalContext, x: Tensor, request: TrainRequest, model: Weights, names: set[str]
    ) -> tuple[Weights, Guarantee]:
        client, net, training = local.client, local.net, local.training
        size = client.public_size + len(x) - len(client.data.train)  # synthetic examples are treated like records
        noise = self.noise_of(client, CALIBRATED, dp_rate(size, training.batch_size), self._steps(size, training))
        private = DpSgdTraining(
            clip=self.clip, noise=noise, examples=size, batch_size=training.batch_size, epochs=training.epochs
        )
        optimizer, loss = make_optimizer(net.parameters(), training), request.objective.record_loss(local)
        done = dp_fit(net, x, local.labels, private, optimizer, client.noise_rng("dp-sgd"), loss)
        assert done.event is not None
        guarantee = Guarantee(
            mechanism=f"DP-SGD, gradients clipped to {self.clip:g}, noise multiplier {noise:.4g}",
            events=(done.event,),
            unit="record",
            adjacency="add or remove one",
            covered="the weights",
            not_covered=NUMBER_PUBLIC,
        )
        return model | only(shared_entries_of(client, net, request.keeps, protected=True), names), guarantee

    def _steps(self, examples: int, training: LocalTraining) -> int:
        return self.trainings * dp_steps(examples, training.batch_size, training.epochs)

    def noise_of(self, client: Client, place: str, rate: float, steps: int) -> float:
        """The given one, or the smallest that keeps so many steps within the target; kept in its state."""
        if self.target is None:
            assert self.noise is not None
            return self.noise
        wanted = [self.target, self.delta, rate, steps]
        kept = client.state.get(place)
        if kept is None or kept["for"] != wanted:
            kept = {"for": wanted, "noise": sampled_gaussian_noise(self.target, self.delta, rate, steps) * SAFE}
            client.state.keep_public(place, kept)
        return float(kept["noise"])


class ClippedUpdates(ProtectedUpdates, name="clipped"):
    """The change of the weights is clipped and gets noise, at the client or, once for all, at the server."""

    noise: float = Field(ge=SMALLEST, le=LARGEST)
    noise_at: Literal["client", "server"] = "client"

    @classmethod
    def planned(cls, privacy: PrivacyConfig, trainings: int) -> "ClippedUpdates":
        noise = privacy.noise
        if privacy.target is not None:  # by the closed form
            sensitivity = _sensitivity(privacy.noise_at)
            noise = gaussian_sigma(privacy.target, privacy.delta) * sensitivity * math.sqrt(trainings) * SAFE
        return cls(clip=privacy.clip, delta=privacy.delta, noise=noise, noise_at=privacy.noise_at)

    @property
    def std(self) -> float:
        """Standard deviation of the noise on an update (or on the sum of all)."""
        return self.noise * self.clip

    def check(self, loop: "Loop") -> None:
        super().check(loop)
        aggregator, tuning = loop.slots.aggregator, loop.slots.post_aggregation
        if self.noise_at == "server" and not isinstance(aggregator, Mean):
            raise ConfigError(
                f'privacy.noise_at = "server" cannot be used with aggregator "{aggregator.name}": its noise is made '
                'for the mean, of which every client is one part. Set noise_at = "client" or method.aggregator = '
                '"mean".'
            )
        if self.noise_at == "server" and tuning.single_models:
            raise ConfigError(
                f'privacy.noise_at = "server" cannot be used with post_aggregation "{tuning.name}": it works with the '
                'updates of single clients, and only their sum has noise. Set noise_at = "client".'
            )

    def protect(
        self, local: LocalContext, x: Tensor, request: TrainRequest, model: Weights, names: set[str]
    ) -> tuple[Weights, Guarantee]:
        fit_objective(local, request.objective, x, local.labels)
        trained = shared_entries_of(local.client, local.net, request.keeps)
        return self.clipped(model, trained, names, local.client.noise_rng(NOISE)), self.guarantee()

    def clipped(self, received: Weights, trained: Weights, names: Collection[str], rng: np.random.Generator) -> Weights:
        """The received weights and, for the named entries, the clipped change; with noise where the client adds it."""
        change = {name: trained[name].to(received[name]).double() - received[name].double() for name in sorted(names)}
        cut = clip_weights(change, self.clip)
        if self.noise_at == "server":
            return received | {name: _no_farther(received[name], step) for name, step in cut.items()}
        noisy = {name: add_gaussian(step, self.std, rng) for name, step in cut.items()}
        return received | {name: (received[name].double() + s).to(received[name].dtype) for name, s in noisy.items()}

    def protect_mean(self, fed: Federation, mean: Weights, names: set[str], replies: int) -> Weights:
        if self.noise_at == "client":
            return mean
        return self.with_server_noise(mean, names, replies, fed.noise_rng(NOISE))

    def with_server_noise(
        self, mean: Weights, names: Collection[str], replies: int, rng: np.random.Generator
    ) -> Weights:
        """Noise on the named entries of a mean of so many clipped updates, as if their sum had got it."""
        return mean | {name: add_gaussian(mean[name], self.std / replies, rng) for name in sorted(names)}

    def guarantee(self) -> Guarantee:
        """What is proven about one clipped update."""
        event = GaussianEvent(mu=_sensitivity(self.noise_at) / self.noise)
        noise = f"Gaussian noise of standard deviation {self.std:.4g}"
        if self.noise_at == "client":
            return Guarantee(
                mechanism=f"update clipped to {self.clip:g}, {noise}",
                events=(event,),
                unit="client",
                adjacency="replace one",
                covered="the weights",
                not_covered="who takes part",
            )
        return Guarantee(
            mechanism=f"update clipped to {self.clip:g}; the server adds {noise} to the sum",
            events=(event,),
            unit="client",
            adjacency="add or remove one",
            covered="what everybody but the server can learn",
            not_covered=f"the server, {EVERY_UPDATE}; who takes part",
            against="all but the server",
        )


@contextmanager
def plan_effort(client: Client, training: LocalTraining) -> Iterator[None]:
    """Report what training was to cost: what it did cost, such as sizes of random batches, tells about the data."""
    with measured_effort():
        yield
    count_examples(training.epochs * max(1, client.public_size))


def all_guarantees(model: Guarantee) -> dict[str, Guarantee]:
    """The guarantee of the weights, and one for each of the constants beside them."""
    return {"model": model, **dict.fromkeys(CONSTANTS, constant_guarantee(model))}


def _sensitivity(noise_at: str) -> float:
    """In units of clip: a client's own update turns into any other, or comes to (or goes from) the sum."""
    return 2.0 if noise_at == "client" else 1.0


def _no_farther(start: Tensor, step: Tensor) -> Tensor:
    """`start + step`, rounded so that no coordinate moves farther than its step: a clipped update stays clipped."""
    end = (start.double() + step).to(start.dtype)
    beyond = (end.double() - start.double()).abs() > step.abs()
    return torch.where(beyond, torch.nextafter(end, start), end)
