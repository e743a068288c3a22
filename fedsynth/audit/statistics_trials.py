"""The trials of what tasks claim about statistics of the data: class counts, and FedDPMS's means of latents."""

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsynth.audit.training_trials import OTHERS, SHAPE, labelled
from fedsynth.components.class_counts import count_classes
from fedsynth.components.settings import MethodConfig
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.federation import Client
from fedsynth.federation.trials import FAR, Trial
from fedsynth.learning.models import ModelSpec, initial_model
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.feddpms.clients import share_statistics, train_augmented
from fedsynth.methods.feddpms.settings import FedDpmsConfig
from fedsynth.privacy import Event, Guarantee, gaussian_epsilon
from fedsynth.synthesis.latent_statistics import COUNT_WEIGHT, Calibration, MeanSearch, noisy_means
from fedsynth.synthesis.vae_classifier import LATENT, VaeNet, VaeSpec, start_vae

PUBLISHED_EPSILON = 1.21  # the largest that FedDPMS's paper claims for its settings (0.93 to 1.21)
PUBLISHED_SIGMA = 3.0  # the smallest σ of those settings


@count_classes.trial
def count_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """Noisy class counts: a record more or less in one class."""
    epsilon, delta = getattr(cfg, "counts_epsilon", None), cfg.privacy.delta
    if epsilon is None:
        return []

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        rest = [label] * OTHERS
        return labelled(np.zeros((OTHERS, 1)), rest), labelled(np.zeros((OTHERS + 1, 1)), [label, *rest])

    def release(client: Client, label: int) -> np.ndarray:
        return np.asarray(count_classes(client, epsilon, delta).fields()["counts"], np.float64)

    return [
        Trial(
            how="class counts without and with one record",
            schema=Schema((1,), schema.classes),
            neighbours=neighbours,
            release=release,
            towards=lambda label, round_: np.eye(schema.classes)[label],
            events=guarantee.events,
        )
    ]


@share_statistics.trial
def statistics_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """FedDPMS's calibrated release."""
    if not isinstance(cfg, FedDpmsConfig):
        return []
    calibration = Calibration(cfg.epsilon, cfg.privacy.delta, cfg.clip, moments=cfg.spread is None)
    return [statistics_trial(latent_size(cfg, schema), calibration, schema.classes, guarantee.events)]


def latent_size(cfg: FedDpmsConfig, schema: Schema) -> int:
    """The latent dimensions of a run."""
    return int(cfg.latent or (32 if schema.shape[0] == 1 else 128))


def statistics_trial(latent: int, calibration: Calibration, classes: int, events: tuple[Event, ...]) -> Trial:
    """A record comes to a class, where all that it adds is as long as can be: its latent lies in a corner.

    The encoder that the server sends puts black images in the middle and a bright one into a corner, in the second
    round into the opposite one.
    """
    spec, shape = ModelSpec(name="cnn", channels=(1,), hidden=(1,)), SHAPE
    vae, schema = VaeSpec(latent, False, 0.0), Schema(shape, classes)
    corner = max(1, math.floor(calibration.clip**2 * latent + 1e-9))
    networks = {1: corner_encoder(spec, vae, schema, corner, 1.0), 2: corner_encoder(spec, vae, schema, corner, -1.0)}

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        rest, of = np.zeros((OTHERS, *shape)), [label] * OTHERS
        return labelled(rest, of), labelled(np.concatenate([rest, np.full((1, *shape), FAR)]), [*of, label])

    def release(client: Client, label: int) -> np.ndarray:
        reply = share_statistics(client, networks[client.round], spec, vae, calibration)
        return np.asarray(reply.fields()["statistics"][label], np.float64)

    return Trial(
        how="class statistics without and with a record in a corner of the latent space",
        schema=schema,
        neighbours=neighbours,
        release=release,
        towards=lambda label, round_: corner_directions(latent, corner, calibration.moments, round_),
        events=events,
    )


def corner_encoder(spec: ModelSpec, vae: VaeSpec, schema: Schema, corner: int, side: float) -> Weights:
    """An encoder that sends a bright image into a corner of the latent space: so many dimensions, to this side."""
    blank = start_vae(0, spec, vae, schema, weights_of(initial_model(0, spec, schema))).entries()
    weights = {name: torch.zeros_like(entry) for name, entry in blank.items()}
    for name, entry in weights.items():
        if name.startswith("body.") and name.endswith("weight"):
            entry += 1.0
    weights[f"{LATENT}mean.weight"][:corner] = side
    return weights


def corner_directions(latent: int, corner: int, moments: bool, round_: int) -> np.ndarray:
    """Where a record in the corner moves the sum, the count and the second moment, and all of them."""
    blocks = np.zeros((4, latent + 1 + (latent if moments else 0)))
    blocks[0, :corner], blocks[1, latent] = (1 if round_ == 1 else -1) / math.sqrt(corner), COUNT_WEIGHT
    if moments:
        blocks[2, latent + 1 : latent + 1 + corner] = 0.5 / math.sqrt(corner)
    blocks[3] = blocks.sum(0)
    return blocks


# -- FedDPMS as published -------------------------------------------------------------------------------------------


class _Given:
    """An encoder that hands on the latents it is given."""

    def encode(self, x: Tensor) -> Tensor:
        """As they are."""
        return x


@train_augmented.trial
def published_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """By the three readings of its σ; for a class of 100 examples, as the paper's own."""
    if not isinstance(cfg, FedDpmsConfig) or not isinstance(cfg.quota, int):
        return []
    return list(means_trials(latent_size(cfg, schema), cfg.quota, cfg.sigma, 100, cfg.privacy.delta).values())


def means_trials(latent: int, quota: int, sigma: float, examples: int, delta: float) -> dict[str, Trial]:
    """FedDPMS as published, by the three readings of its σ: one of a class's latents goes from corner to corner.

    The encoder is taken as public and nothing is filtered, which is what the paper's claim is about.
    """
    net = cast(VaeNet, _Given())
    pair = [np.zeros((examples, latent)), np.zeros((examples, latent))]
    pair[1][0] = 1.0
    readings = {"A": sigma, "B": sigma / examples, "C": sigma / math.sqrt(examples)}
    claim = {delta: PUBLISHED_EPSILON} if sigma >= PUBLISHED_SIGMA else {}

    def trial(name: str, std: float) -> Trial:
        search = MeanSearch(quota=quota, sigma=std, certainty=None, tries=1)

        def release(client: Client, label: int) -> np.ndarray:
            x, y = client.data.train.tensors()
            means, _ = noisy_means(net, x, y, [0], search, client.noise_rng("means"))
            return np.array([float(means.double().sum())])

        honest = gaussian_epsilon(math.sqrt(quota * latent) / (examples * std), delta)
        return Trial(
            how=f"reading {name}: means of {examples} latents with noise of standard deviation {std:.3g}; "
            f"honestly counted ε = {honest:.3g}",
            schema=Schema((latent,), 1),
            neighbours=lambda label: (labelled(pair[0], [0] * examples), labelled(pair[1], [0] * examples)),
            release=release,
            rounds=1,
            claim=claim,
        )

    return {name: trial(name, std) for name, std in readings.items()}
