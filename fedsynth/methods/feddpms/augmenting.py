"""Clients' part of FedDPMS's secondary rounds: share what is allowed, make what is missing, train on both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsynth.components.ablations import stand_ins
from fedsynth.components.loop import Update, fit_by_rule
from fedsynth.components.slots import Visit
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.feddpms.autoencoding import VaeNet, VaeSpec, start_vae
from fedsynth.methods.feddpms.latent_release import (
    Calibration,
    LatentModel,
    class_statistics,
    decode,
    draw_images,
    noisy_means,
    opinion,
)
from fedsynth.methods.feddpms.matching import abundant_classes, decidedly_scarce, even_shortage, scarce_classes
from fedsynth.privacy.guarantee import Guarantee
from fedsynth.privacy.mechanisms import gaussian_event

UNCOVERED = "model weights, which are trained on the same records; numbers of examples; who takes part"


class AugmentedUpdate(Update):
    """What a client sends after a secondary round."""

    means: Tensor | None = leaves("noisy mean latents of its most frequent classes")
    labels: Tensor | None = leaves("the classes of these means: its most frequent ones")


class ScarceClasses(Reply):
    """Which classes a client lacks most."""

    scarce: list[int] = leaves("its rarest classes")
    decidedly: int = leaves("how many classes it calls decidedly rare")


class Statistics(Reply):
    """Protected statistics of a client's latents."""

    statistics: Tensor = leaves("noisy sum, number and second moment of the latents of each class")


@task
def name_scarce_classes(client: Client, n: int) -> ScarceClasses:
    """The n rarest classes (algorithm 2, before line 1); exact, so nothing protects them."""
    counts = client.data.train.counts(client.schema.classes)
    return client.release(ScarceClasses(scarce=scarce_classes(counts, n), decidedly=decidedly_scarce(counts)))


@task
def share_statistics(
    client: Client, model: Weights, spec: ModelSpec, vae: dict[str, Any], calibration: Calibration
) -> Statistics:
    """Encode with the broadcast encoder and release each class's statistics, once, with calibrated noise."""
    net = start_vae(client.seed, spec, VaeSpec(**vae), client.schema, model)
    x, y = client.data.train.tensors()
    made = class_statistics(net.encode(x), y, client.schema.classes, calibration, client.noise_rng("statistics"))
    guarantee = Guarantee(
        mechanism=f"Gaussian noise of standard deviation {calibration.noise:.4f} on statistics of sensitivity "
        f"{calibration.sensitivity:.4f}",
        events=(gaussian_event(calibration.noise, calibration.sensitivity),),
        unit="record",
        adjacency="add or remove one",
        covered="the latents, their number and their spread in every class; all that is drawn from them",
        not_covered=UNCOVERED,
    )
    return client.release(Statistics(statistics=made), statistics=guarantee)


@task
def train_augmented(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    vae: dict[str, Any],
    training: LocalTraining,
    rule: dict[str, Any],
    sent: dict[str, Any],
    decoder: Weights,
    order: dict[str, Any] | None,
    making: dict[str, Any],
    share: dict[str, Any] | None,
) -> AugmentedUpdate:
    """A secondary round (algorithm 2, lines 2 to 20): synthesise if something came, train, share if asked."""
    if decoder:  # comes once, and is kept
        client.state["global decoder"] = decoder
    if order is not None:
        client.state["order"] = order
    shape = VaeSpec(**vae)
    made = synthetic_examples(client, model, spec, shape, making)
    x, y = client.data.train.tensors()
    size, targets = len(y), y
    if len(made):
        # |D_i| of the |D̄_i| examples, so that a round costs what it costs in FedAvg.
        rows = torch.from_numpy(client.rng("augmented").choice(size + len(made), size, replace=False))
        x, targets = torch.cat([x, made.images])[rows], made.beside(y, client.schema.classes)[rows]
        y = torch.cat([y, made.labels])[rows]
    net = instantiate(spec, client.schema.shape, client.schema.classes, model).to(client.device)
    result, extra = fit_by_rule(Visit(client, net, model, training, y, sent), rule, x, targets)
    trained = weights_of(net)
    means, classes = None, None
    guarantees: dict[str, Guarantee] = {}
    if share is not None:
        means, classes, guarantees = published_means(client, trained, spec, shape, share)
    update = AugmentedUpdate(
        model=trained,
        examples=size + len(made),
        loss=result.loss,
        steps=result.steps,
        extra=extra,
        means=means,
        labels=classes,
    )
    return client.release(update, **guarantees)


@dataclass(frozen=True)
class Synthetic:
    """Synthetic images, the classes they were made for and, where they are not those alone, their soft labels."""

    images: Tensor
    labels: Tensor
    soft: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def beside(self, y: Tensor, classes: int) -> Tensor:
        """The labels of real examples with these behind them: whole classes, or shares of classes."""
        if self.soft is None:
            return torch.cat([y, self.labels])
        return torch.cat([F.one_hot(y, classes).float(), self.soft])


def synthetic_examples(
    client: Client, classifier: Weights, spec: ModelSpec, shape: VaeSpec, making: dict[str, Any]
) -> Synthetic:
    """The client's synthetic examples: made when an order has come, then kept or, with `redraw`, made anew."""
    if "synthetic" in client.state:
        return Synthetic(**client.state["synthetic"])
    order = client.state.get("order")
    if order is None:
        return Synthetic(torch.zeros((0, *client.schema.shape)), torch.zeros(0, dtype=torch.int64))
    net = start_vae(client.seed, spec, shape, client.schema, classifier | client.state["global decoder"])
    images, labels = filled_order(client, net, order, making)
    soft = softened(net, images, labels, client.schema.classes, making["hardness"])
    kind = making["synthetic"]
    rng = client.rng("stand-in")
    noise = torch.from_numpy(rng.random(tuple(images.shape), dtype=np.float32))
    instead = stand_ins(kind, labels, noise, order["real"], rng)
    made = Synthetic(images if instead is None else instead, labels, None if kind == "real" else soft)
    if not making["redraw"]:
        client.state["synthetic"] = vars(made)
        del client.state["order"]
    return made


def softened(net: VaeNet, images: Tensor, labels: Tensor, classes: int, hardness: float) -> Tensor | None:
    """Labels that are `hardness` the wanted class and for the rest what the received classifier says of the image."""
    if hardness == 1 or not len(labels):
        return None
    return hardness * F.one_hot(labels, classes).float() + (1 - hardness) * opinion(net, images)


def filled_order(client: Client, net: VaeNet, order: dict[str, Any], making: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Decode the received means (as published), or draw what this client lacks from the received latent model."""
    if order["kind"] == "means":
        labels = order["labels"]
        return decode(net, order["means"], labels), labels
    latents = LatentModel(order["mean"], order["spread"], order["known"])
    wanted = shortage(client.data.train.counts(client.schema.classes), making["classes"], making["quota"])
    return draw_images(net, latents, wanted, making["certainty"], making["tries"], client.rng("synthesis"))


def shortage(counts: np.ndarray, classes: int | Literal["auto"], quota: int | Literal["even"]) -> np.ndarray:
    """How many examples of each class to make: for the scarcest classes, `quota` each or up to an even share."""
    n = decidedly_scarce(counts) if classes == "auto" else classes
    wanted = np.zeros(len(counts), dtype=np.int64)
    scarce = scarce_classes(counts, n)
    wanted[scarce] = even_shortage(counts)[scarce] if quota == "even" else quota
    return wanted


def published_means(
    client: Client, trained: Weights, spec: ModelSpec, shape: VaeSpec, share: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Guarantee]]:
    """DPMS as published: the local encoder and classifier, the global decoder, the most frequent classes."""
    net = start_vae(client.seed, spec, shape, client.schema, trained | share["heads"] | client.state["global decoder"])
    x, y = client.data.train.tensors()
    abundant = abundant_classes(client.data.train.counts(client.schema.classes), share["classes"])
    noise = client.noise_rng("means")
    means, labels = noisy_means(
        net, x, y, abundant, share["quota"], share["sigma"], share["certainty"], share["tries"], noise
    )
    nothing = Guarantee.none(
        mechanism=f"Gaussian noise of standard deviation {share['sigma']:g} on mean latents",
        not_covered="the filter by the private classifier, the encoder (trained on the records), the list of classes",
        claimed=share["claimed"],
    )
    return means, labels, {"means": nothing}
