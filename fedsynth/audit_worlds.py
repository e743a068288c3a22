"""Pairs of neighbouring data sets that a mechanism can least hide, each put through the code that really releases.

A `Trial` has a function that runs a mechanism in world 0 or 1 and gives the number by which an attacker who knows both
worlds tells them apart best; `fedsynth.privacy.audit.two_worlds` does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedsynth.methods.autoencoding import VaeNet
from fedsynth.methods.latent_release import Calibration, class_statistics, noisy_means
from fedsynth.methods.protection import Protection, protected_update, with_server_noise
from fedsynth.privacy import GaussianEvent, SampledGaussianEvent, gaussian_epsilon
from fedsynth.privacy.audit import Draw, Profile, profile
from fedsynth.privacy.discrete import discrete_gaussian_histogram
from fedsynth.privacy.dpsgd import dp_fit
from fedsynth.privacy.guarantee import Event
from fedsynth.synthesis.gan import GanSpec, GanTraining, train_gan_private
from fedsynth.synthesis.gan_model import build_gan

OTHERS = 3  # records that are the same in both worlds
MOST_STEPS = 4  # of DP-SGD in one run of a trial
FAR = 1e3  # times the clip: so far that clipping is certain
PUBLISHED_EPSILON = 1.21  # the largest that FedDPMS's paper claims for its settings (0.93 to 1.21)
PUBLISHED_SIGMA = 3.0  # the smallest σ of those settings


@dataclass(frozen=True)
class Trial:
    """How to draw, what one release claims (nothing, where it is empty), and what was done in words."""

    draw: Draw
    claim: Profile
    how: str


def statistics_trial(latent: int, calibration: Calibration, events: Iterable[Event], delta: float) -> Trial:
    """FedDPMS's calibrated release: a record comes to a class, where all that it adds is as long as can be."""
    corner = torch.full((1, latent), 0.5)
    corner[0, : max(1, math.floor(calibration.clip**2 * latent + 1e-9))] = 1.0
    worlds = [torch.full((OTHERS, latent), 0.5), torch.cat([torch.full((OTHERS, latent), 0.5), corner])]

    def release(world: int, rng: np.random.Generator) -> Tensor:
        z = worlds[world]
        return class_statistics(z, torch.zeros(len(z), dtype=torch.int64), 1, calibration, rng)

    # The same noise in both worlds: what is left is what the record moves.
    towards = release(1, np.random.default_rng(0)) - release(0, np.random.default_rng(0))
    return Trial(
        lambda world, rng: float((release(world, rng) * towards).sum()),
        profile(events, delta),
        "class statistics with and without a record at a corner of the latent space",
    )


def counts_trial(epsilon: float, delta: float, events: Iterable[Event]) -> Trial:
    """Noisy class counts: a record more or less in one class."""

    def draw(world: int, rng: np.random.Generator) -> float:
        noisy, _ = discrete_gaussian_histogram(np.array([OTHERS + world]), epsilon, delta, rng)
        return float(noisy[0])

    return Trial(draw, profile(events, delta), "class counts with and without one record")


def update_trial(protection: Protection, events: Iterable[Event], delta: float) -> Trial:
    """Clipped updates: noise at the client, two opposite updates; at the server, a client that is there or is not."""
    start = {"w": torch.zeros(OTHERS)}
    far = {"w": torch.zeros(OTHERS).index_fill_(0, torch.tensor([0]), FAR * protection.clip)}
    opposite = {"w": -far["w"]}

    def at_client(world: int, rng: np.random.Generator) -> float:
        return float(protected_update(start, far if world else opposite, ["w"], protection, rng)["w"][0])

    def at_server(world: int, rng: np.random.Generator) -> float:
        sent = [start] + [protected_update(start, far, ["w"], protection, rng)] * world
        mean = {"w": torch.stack([update["w"] for update in sent]).mean(0)}
        return len(sent) * float(with_server_noise(mean, ["w"], len(sent), protection, rng)["w"][0])

    if protection.noise_at == "client":
        return Trial(at_client, profile(events, delta), "an update against the opposite one, both longer than the clip")
    return Trial(at_server, profile(events, delta), "the noisy sum with and without a client at the clip")


class _Seen:
    """Stands in DP-SGD's place for an optimiser: adds up what the noisy gradients say for the canary, moves nothing."""

    def __init__(self, weight: Tensor, rate: float, noise: float, scale: float) -> None:
        self.weight, self.rate, self.noise, self.scale = weight, rate, noise, scale
        self.evidence = 0.0

    def step(self) -> None:
        """The log of how much likelier this gradient is with the canary than without."""
        assert self.weight.grad is not None
        along = self.scale * float(self.weight.grad[1, 0] - self.weight.grad[0, 0]) / math.sqrt(2)
        there = (2 * along - 1) / (2 * self.noise**2)
        absent = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        self.evidence += float(np.logaddexp(absent, math.log(self.rate) + there))


def dpsgd_trial(event: SampledGaussianEvent, clip: float, delta: float) -> Trial:
    """DP-SGD: a canary whose gradient is as long as allowed, among records whose gradients are 0, for a few steps."""
    examples = min(MOST_STEPS, max(1, round(1 / max(event.rate, 1e-9))))
    rate = 1 / examples
    y = torch.zeros(examples, dtype=torch.int64)
    canary = torch.zeros((examples, 1), dtype=torch.float64)
    canary[0] = FAR * clip

    def draw(world: int, rng: np.random.Generator) -> float:
        model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        seen = _Seen(model.weight, rate, event.noise, rate * examples / clip)
        x = canary if world else torch.zeros_like(canary)
        dp_fit(model, x, y, epochs=1, batch_size=1, clip=clip, noise=event.noise, rng=rng, optimizer=seen)
        return seen.evidence

    tested = SampledGaussianEvent(rate=rate, noise=event.noise, steps=examples)
    how = f"DP-SGD with and without a canary at the clip, {examples} steps at rate {rate:.3g}"
    return Trial(draw, profile([tested], delta), how)


def gan_trial(event: SampledGaussianEvent, clip: float, delta: float) -> Trial:
    """The private critic: one step on one record, whose class is known (it counts) or not (it adds nothing)."""
    spec = GanSpec(channels=2, latent=2)
    training = GanTraining(batch_size=1, critic_steps=1)
    fresh = build_gan(spec, (1, 4, 4), 2, seed=0)
    start = {name: weight.clone() for name, weight in fresh.state_dict().items()}
    known, x = torch.tensor([False, True]), torch.ones((1, 1, 4, 4))

    def release(world: int, rng: np.random.Generator) -> Tensor:
        fresh.load_state_dict(start)
        fixed = np.random.default_rng(0)  # what is drawn beside the noise is no secret
        fit = train_gan_private(fresh, x, torch.tensor([world]), training, 1, clip, event.noise, fixed, rng, known)
        # Without memory of earlier steps Adam's first moments are the noisy gradient itself.
        return torch.cat([m.flatten().double() for name, m in fit.moments.items() if name.startswith("critic.first.")])

    towards = release(1, np.random.default_rng(0)) - release(0, np.random.default_rng(0))
    tested = SampledGaussianEvent(rate=1.0, noise=event.noise, steps=1)
    return Trial(
        lambda world, rng: float(release(world, rng) @ towards),
        profile([tested], delta),
        "a step of the private critic with and without a record",
    )


class _Given:
    """An encoder that hands on the latents it is given."""

    def encode(self, x: Tensor) -> Tensor:
        """As they are."""
        return x


def means_trials(latent: int, quota: int, sigma: float, examples: int, delta: float) -> dict[str, Trial]:
    """FedDPMS as published, by the three readings of its σ: one of a class's latents goes from corner to corner.

    The encoder is taken as public and nothing is filtered, which is what the paper's claim is about.
    """
    net = cast(VaeNet, _Given())
    y = torch.zeros(examples, dtype=torch.int64)
    worlds = [torch.zeros((examples, latent)), torch.zeros((examples, latent)).index_fill_(0, torch.tensor([0]), 1.0)]
    readings = {"A": sigma, "B": sigma / examples, "C": sigma / math.sqrt(examples)}
    claim = {delta: PUBLISHED_EPSILON} if sigma >= PUBLISHED_SIGMA else {}

    def trial(name: str, std: float) -> Trial:
        def draw(world: int, rng: np.random.Generator) -> float:
            means, _ = noisy_means(net, worlds[world], y, [0], quota, std, None, 1, rng)
            return float(means.double().sum())

        honest = gaussian_epsilon(math.sqrt(quota * latent) / (examples * std), delta)
        how = (
            f"reading {name}: means of {examples} latents with noise of standard deviation {std:.3g}; "
            f"honestly counted ε = {honest:.3g}"
        )
        return Trial(draw, claim, how)

    return {name: trial(name, std) for name, std in readings.items()}


def chosen_trial(task: str, events: tuple[Event, ...], settings: dict[str, Any]) -> Trial | None:
    """The trial of a release by its task and what it claims; None where fedsynth knows no worst case for it.

    `settings`: delta, and as far as the run has them calibration and latent, counts_epsilon, protection and clip.
    """
    delta, event = settings["delta"], events[0]
    if task == "share_statistics" and "calibration" in settings:
        return statistics_trial(settings["latent"], settings["calibration"], events, delta)
    if task == "count_classes" and settings.get("counts_epsilon") is not None:
        return counts_trial(settings["counts_epsilon"], delta, events)
    if isinstance(event, SampledGaussianEvent) and event.rate > 0 and event.steps:
        trial = gan_trial if task == "train_gan_visit" else dpsgd_trial
        return trial(event, settings["clip"], delta)
    protection = settings.get("protection")
    if isinstance(event, GaussianEvent) and protection is not None and protection.updates == "clipped":
        return update_trial(protection, events, delta)
    return None
