"""Trials run the code that releases: honest mechanisms stand, broken twins of each fall, whatever is broken in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedsynth.audit.statistics_trials import count_trials, means_trials, statistics_trial, statistics_trials
from fedsynth.audit.training_trials import clipped_trial, dpsgd_trial, own_gan_trials, visit_trials
from fedsynth.audit.trials import Finding, run_trial
from fedsynth.components import protected_updates as protection
from fedsynth.components.class_counts import count_classes, counts_guarantee
from fedsynth.components.local_training import train
from fedsynth.components.protected_updates import ClippedUpdates, DpSgdUpdates
from fedsynth.components.secure_updates import train_masked
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.federation.trials import Trial
from fedsynth.methods.feddpms.clients import share_statistics, train_augmented
from fedsynth.methods.feddpms.settings import FedDpmsConfig
from fedsynth.methods.gandalf.clients import train_gan_visit
from fedsynth.methods.gandalf.settings import GandalfConfig
from fedsynth.methods.pfl_gan.client_gans import train_own_gan
from fedsynth.privacy import (
    DiscreteGaussianEvent,
    GaussianEvent,
    Guarantee,
    PrivacyConfig,
    SampledGaussianEvent,
    discrete,
    dpsgd,
    epsilon,
    gaussian_sigma,
)
from fedsynth.privacy.discrete import discrete_gaussian_variance
from fedsynth.privacy.mechanisms import gaussian_event
from fedsynth.synthesis import gan_private, latent_statistics
from fedsynth.synthesis.latent_statistics import Calibration

DELTA = 1e-5
CLASSES = 4
PICTURES = Schema((1, 8, 8), CLASSES)


PRIVATE = DpSgdUpdates(clip=0.5, delta=DELTA, noise=0.7, target=None, trainings=1)
AT_CLIENT = ClippedUpdates(clip=0.5, delta=DELTA, noise=1.4, noise_at="client")
AT_SERVER = ClippedUpdates(clip=0.5, delta=DELTA, noise=0.7, noise_at="server")
STEPS = Guarantee(mechanism="DP-SGD", events=(SampledGaussianEvent(rate=0.3, noise=0.7, steps=5),))
COUNTS = GandalfConfig(counts_epsilon=6.0)
COUNTED = counts_guarantee(DiscreteGaussianEvent(sigma=math.sqrt(discrete_gaussian_variance(6.0, DELTA))))
TRIALS: dict[str, Callable[[], Trial]] = {
    "dp-sgd": lambda: dpsgd_trial(PRIVATE, 0.7, CLASSES, sampled=False),
    "dp-sgd, sampled": lambda: dpsgd_trial(PRIVATE, 0.7, CLASSES, sampled=True),
    "clipped": lambda: clipped_trial(AT_CLIENT, CLASSES, (GaussianEvent(mu=2 / 1.4),)),
    "clipped, server": lambda: clipped_trial(AT_SERVER, CLASSES, (GaussianEvent(mu=1 / 0.7),)),
    "gan visit": lambda: visit_trials(STEPS, None, PICTURES)[0],
    "gan visit, others": lambda: visit_trials(STEPS, None, PICTURES)[1],
    "own gan": lambda: own_gan_trials(STEPS, None, PICTURES)[0],
    "statistics": lambda: statistics_trial(
        8, Calibration(6.0, DELTA), CLASSES, (gaussian_event(gaussian_sigma(6.0, DELTA)),)
    ),
    "counts": lambda: count_trials(COUNTED, COUNTS, PICTURES)[0],
}


def evaluated(trial: str | Trial, runs: int = 240) -> Finding:
    return run_trial(TRIALS[trial]() if isinstance(trial, str) else trial, runs, DELTA, 0.95, np.random.default_rng(0))


@pytest.mark.parametrize("name", TRIALS)
def test_an_honest_mechanism_is_not_refuted(name: str) -> None:
    found = evaluated(name, 80)
    assert not found.refuted
    assert found.claim[DELTA] > 1


# -- broken twins ---------------------------------------------------------------------------------------------------


def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the noise, everywhere."""
    whole, added, drawn = dpsgd.noisy_sum, protection.add_gaussian, discrete.discrete_gaussian
    for module in (dpsgd, gan_private):
        monkeypatch.setattr(module, "noisy_sum", lambda total, std, rng: whole(total, std / 2, rng))
    for module in (protection, latent_statistics):
        monkeypatch.setattr(module, "add_gaussian", lambda x, std, rng: added(x, std / 2, rng))
    monkeypatch.setattr(discrete, "discrete_gaussian", lambda variance, rng: drawn(variance / 4, rng))


BEST = [name for name in TRIALS if name not in ("dp-sgd, sampled", "gan visit, others")]
"""Where nothing but the noise is in the way."""


@pytest.mark.parametrize("name", BEST)
def test_half_of_the_noise_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the data sets lie more than half as far apart as the claim allows: a trial looks where it would be seen."""
    halved(monkeypatch)
    assert evaluated(name, 400 if name in ("dp-sgd", "clipped", "clipped, server") else 240).refuted


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        *(("clipped", label) for label in (0, 1, 3)),
        *(("gan visit", label) for label in (0, 3)),
        *(("dp-sgd", 3), ("dp-sgd, sampled", 1)),  # the records are those of "clipped"
    ],
)
def test_a_clip_that_is_skipped_for_one_class_is_refuted_whichever_it_is(
    name: str, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient of that class is left as it is: the row of its class in the head tells which."""
    clip, clip_update = dpsgd.clip_rows, protection.clip_weights

    def rows(x: torch.Tensor, norm: float) -> torch.Tensor:
        flat = x.reshape(len(x), -1)
        if name == "gan visit":  # the embeddings of the classes are the last of the critic's weights
            of = flat[:, -CLASSES * 4 :].reshape(len(x), CLASSES, 4).abs().sum(2).argmax(1)
        else:  # weights before biases: the input of the class
            of = flat[:, : CLASSES * CLASSES].reshape(len(x), CLASSES, CLASSES).abs().sum(1).argmax(1)
        return torch.where((of == broken)[:, None], flat, clip(flat, norm)).reshape(x.shape)

    def update(delta: dict[str, torch.Tensor], norm: float) -> dict[str, torch.Tensor]:
        skipped = int(delta["head.weight"].abs().sum(0).argmax()) == broken
        return delta if skipped else clip_update(delta, norm)

    monkeypatch.setattr(dpsgd, "clip_rows", rows)
    monkeypatch.setattr(gan_private, "clip_rows", rows)
    monkeypatch.setattr(protection, "clip_weights", update)
    assert evaluated(name, 160).refuted


@pytest.mark.parametrize("name", ["dp-sgd", "clipped", "gan visit", "statistics"])
def test_noise_that_is_used_again_in_the_next_round_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: Client, purpose: str) -> np.random.Generator:
        assert self._secret is not None
        return np.random.default_rng(int.from_bytes(self._secret()))

    monkeypatch.setattr(Client, "noise_rng", again)
    assert evaluated(name, 200).refuted


def test_a_centre_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    added = latent_statistics.add_gaussian

    def but_for_the_sums(x: torch.Tensor, std: float, rng: np.random.Generator) -> torch.Tensor:
        noisy = added(x, std, rng)
        return torch.cat([x[:, :8], noisy[:, 8:]], 1)

    monkeypatch.setattr(latent_statistics, "add_gaussian", but_for_the_sums)
    assert evaluated("statistics", 160).refuted


def test_latents_that_are_dealt_by_position_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record more moves all later ones to other latents, which are no secret."""

    def public(self: Any, count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        dealt = np.random.default_rng(0)
        z = dealt.standard_normal((count, self.generator.latent)).astype(np.float32)
        return torch.from_numpy(z), torch.from_numpy(dealt.random((count, 1, 1, 1)).astype(np.float32))

    monkeypatch.setattr(gan_private._Records, "drawn", public)
    assert evaluated("gan visit, others", 160).refuted


def test_batches_that_are_no_sample_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsgd, "poisson_batch", lambda n, rate, rng: np.arange(n))
    assert evaluated("dp-sgd, sampled", 500).refuted


def test_a_mechanism_that_is_not_finite_where_a_record_is_is_refuted() -> None:
    def release(client: Client, label: int) -> np.ndarray:
        there = bool((client.data.train.x > 1).any())
        return np.array([np.nan if there else client.noise_rng("n").normal()])

    assert evaluated(of_my_own(release), 120).refuted


# -- mechanisms of one's own ----------------------------------------------------------------------------------------


def of_my_own(release: Callable[[Client, int], np.ndarray], **options: Any) -> Trial:
    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        y = np.zeros(1, np.int64)
        return Dataset(np.zeros((1, 1), np.float32), y), Dataset(np.full((1, 1), 9, np.float32), y)

    return Trial("a trial of my own", Schema((1,), 1), neighbours, release, **{"claim": {DELTA: 1.0}} | options)


class Summed(Reply):
    total: float = leaves("a noisy sum")


def summed(client: Client, noise: float) -> Summed:
    total = float(np.clip(client.data.train.x, 0, 1).sum()) + noise * client.noise_rng("sum").normal()
    proven = Guarantee(mechanism="noise of deviation 1 on values up to 1", events=(GaussianEvent(mu=1.0),))
    return client.release(Summed(total=total), total=proven)


@pytest.mark.parametrize(("noise", "refuted"), [(1.0, False), (0.3, True)])
def test_a_mechanism_of_ones_own_can_declare_a_trial(noise: float, refuted: bool) -> None:
    trial = of_my_own(lambda client, label: np.array([summed(client, noise).total]), claim=None)
    found = evaluated(trial, 400)
    assert found.claim[DELTA] == pytest.approx(epsilon([GaussianEvent(mu=1.0)] * 2, DELTA))
    assert found.refuted == refuted


@task
def at_raw_images(client: Client) -> Summed:
    return client.release(Summed(total=0.0))


def test_every_task_of_ours_that_claims_something_declares_a_trial() -> None:
    ours = [train, train_masked, train_gan_visit, train_own_gan, share_statistics, count_classes, train_augmented]
    assert not [each.name for each in ours if each.make_trials is None]
    assert at_raw_images.make_trials is None


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 80"):
        evaluated("counts", 40)


# -- FedDPMS as published -------------------------------------------------------------------------------------------


def test_reading_b_of_feddpms_is_refuted() -> None:
    """Fashion-MNIST's settings: the paper claims 0.93 to 1.21; whatever the class's size, μ is 13."""
    found = evaluated(means_trials(32, 50, 3.0, 100, DELTA)["B"], 1000)
    assert found.bound.epsilon > 4.5
    assert found.refuted
    assert found.claim == {DELTA: 1.21}


def test_reading_a_of_feddpms_is_not_refuted_for_large_classes() -> None:
    assert not run_trial(means_trials(32, 50, 3.0, 100, DELTA)["A"], 400, DELTA, 0.95, np.random.default_rng(0)).refuted


def test_the_settings_of_a_run_decide_the_trial() -> None:
    cfg = FedDpmsConfig(epsilon=3.0, privacy=PrivacyConfig())
    one = Guarantee(mechanism="noise", events=(GaussianEvent(mu=1.0),))
    [trial] = statistics_trials(one, cfg, PICTURES)
    assert evaluated(trial, 80).claim[DELTA] == pytest.approx(epsilon([GaussianEvent(mu=1.0)] * 2, DELTA))
    assert not visit_trials(Guarantee(mechanism="n", events=(GaussianEvent(mu=1.0),)), None, PICTURES)


@pytest.fixture(autouse=True)
def _steady() -> None:
    torch.set_num_threads(1)
