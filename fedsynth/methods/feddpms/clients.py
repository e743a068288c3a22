"""Clients' part of FedDPMS: train with an auto-encoder, share what is allowed, synthesise what is missing."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsynth.components.ablations import stand_ins
from fedsynth.components.additions import note_additions
from fedsynth.components.local_training import TrainRequest, Update, fit_objective
from fedsynth.components.samples import Samples
from fedsynth.components.slots import LocalContext
from fedsynth.federation import Client, Message, Reply, leaves, task
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.privacy.guarantee import Guarantee
from fedsynth.privacy.mechanisms import gaussian_event
from fedsynth.synthesis.class_balance import abundant_classes, decidedly_scarce, scarce_classes, wanted_of_scarce
from fedsynth.synthesis.latent_statistics import (
    Calibration,
    LatentModel,
    MeanSearch,
    Synthetic,
    class_statistics,
    decode,
    draw_images,
    noisy_means,
    soften,
)
from fedsynth.synthesis.vae_classifier import (
    DECODER,
    VaeNet,
    VaeSpec,
    part,
    require_unit_range,
    start_vae,
    with_prefix,
    without,
)

UNCOVERED = "model weights, which are trained on the same records; numbers of examples; who takes part"


class Order(Message):
    """What a client is given to synthesise from: noisy means with their classes, or where to draw latents."""

    means: Tensor | None = None
    labels: Tensor | None = None
    latents: LatentModel | None = None


class Synthesis(Message):
    """How a client synthesises. `real` images are for the control that takes them in place of synthetic ones."""

    synthetic: str
    certainty: float | None
    tries: int
    quota: int | Literal["even"]
    classes: int | Literal["auto"]
    hardness: float
    redraw: bool
    real: Samples | None


class ShareRequest(Message):
    """How a client is to share noisy means: of how many classes, by which latent heads; what the paper claims."""

    heads: Weights
    classes: int
    search: MeanSearch
    claimed: str


class AugmentedUpdate(Update):
    """What a client sends after a secondary round."""

    means: Tensor | None = leaves("noisy mean latents of its most frequent classes", default=None)
    labels: Tensor | None = leaves("the classes of these means: its most frequent ones", default=None)


class ScarceClasses(Reply):
    """Which classes a client lacks most."""

    scarce: list[int] = leaves("its rarest classes")
    decidedly: int = leaves("how many classes it calls decidedly rare")


class Statistics(Reply):
    """Protected statistics of a client's latents."""

    statistics: Tensor = leaves("noisy sum, number and second moment of the latents of each class")


@task
def train_vae(client: Client, model: Weights, request: TrainRequest, vae: VaeSpec, upload_decoder: bool) -> Update:
    """A preliminary round: train classifier, encoder and decoder; the decoder stays here until it is asked for."""
    x, y = client.data.train.tensors()
    require_unit_range(x)
    mine = client.state.get("decoder", {}) if not part(model, DECODER) else {}
    net = start_vae(client.seed, request.spec, vae, client.schema, model | mine).to(client.device)
    local = LocalContext(client, net.classifier, part(model, ""), request.training, y, request.sent)
    around = lambda objective: vae.objective(objective, net)  # noqa: E731
    result, extra = fit_objective(local, request.objective, x, y, net, around)
    entries = net.entries()
    if not upload_decoder:
        client.state["decoder"] = with_prefix(entries, DECODER)
        entries = without(entries, [DECODER])
    elif "decoder" in client.state:
        del client.state["decoder"]
    return client.release(Update(model=entries, examples=len(y), loss=result.loss, steps=result.steps, extra=extra))


@task
def name_scarce_classes(client: Client, n: int) -> ScarceClasses:
    """The n rarest classes (algorithm 2, before line 1); exact, so nothing protects them."""
    counts = client.class_counts()
    return client.release(ScarceClasses(scarce=scarce_classes(counts, n), decidedly=decidedly_scarce(counts)))


@task
def share_statistics(
    client: Client, model: Weights, spec: ModelSpec, vae: VaeSpec, calibration: Calibration
) -> Statistics:
    """Encode with the broadcast encoder and release each class's statistics, once, with calibrated noise."""
    net = start_vae(client.seed, spec, vae, client.schema, model)
    x, y = client.data.train.tensors()
    found = class_statistics(net.encode(x), y, client.schema.classes, calibration, client.noise_rng("statistics"))
    guarantee = Guarantee(
        mechanism=f"Gaussian noise of standard deviation {calibration.noise:.4f} on statistics of sensitivity "
        f"{calibration.sensitivity:.4f}",
        events=(gaussian_event(calibration.noise, calibration.sensitivity),),
        unit="record",
        adjacency="add or remove one",
        covered="the latents, their number and their spread in every class; all that is drawn from them",
        not_covered=UNCOVERED,
    )
    return client.release(Statistics(statistics=found), statistics=guarantee)


@task
def train_augmented(
    client: Client,
    model: Weights,
    request: TrainRequest,
    vae: VaeSpec,
    synthesis: Synthesis,
    order: Order | None,
    share: ShareRequest | None,
    decoder: Weights,
) -> AugmentedUpdate:
    """A secondary round (algorithm 2, lines 2 to 20): synthesise if something came, train, share if asked."""
    if decoder:  # comes once, and is kept
        client.state["global decoder"] = decoder
    if order is not None:
        client.state["order"] = order
    synthetic = synthetic_examples(client, model, request.spec, vae, synthesis)
    x, y = client.data.train.tensors()
    size, targets = len(y), y
    if len(synthetic):
        # |D_i| of the |D̄_i| examples, so that a round costs what it costs in FedAvg.
        rows = torch.from_numpy(client.rng("augmented").choice(size + len(synthetic), size, replace=False))
        targets = synthetic.targets_behind(y, client.schema.classes)[rows]
        x, y = torch.cat([x, synthetic.images])[rows], torch.cat([y, synthetic.labels])[rows]
    net = client.build(request.spec, model)
    local = LocalContext(client, net, model, request.training, y, request.sent)
    result, extra = fit_objective(local, request.objective, x, targets)
    trained = weights_of(net)
    means, labels = (None, None) if share is None else published_means(client, trained, request.spec, vae, share)
    update = AugmentedUpdate(
        model=trained,
        examples=size + len(synthetic),
        loss=result.loss,
        steps=result.steps,
        extra=extra,
        means=means,
        labels=labels,
    )
    return client.release(update, **({} if share is None else {"means": no_guarantee(share)}))


def synthetic_examples(
    client: Client, classifier: Weights, spec: ModelSpec, vae: VaeSpec, synthesis: Synthesis
) -> Synthetic:
    """The client's synthetic examples: drawn when an order has come, then kept or, with `redraw`, drawn anew."""
    if "synthetic" in client.state:
        return Synthetic(**client.state["synthetic"])
    if "order" not in client.state:
        return Synthetic(torch.zeros((0, *client.schema.shape)), torch.zeros(0, dtype=torch.int64))
    order = Order.model_validate(client.state["order"])
    net = start_vae(client.seed, spec, vae, client.schema, classifier | client.state["global decoder"])
    images, labels = fill_order(client, net, order, synthesis)
    soft = soften(net, images, labels, client.schema.classes, synthesis.hardness)
    rng = client.rng("stand-in")
    noise = torch.from_numpy(rng.random(tuple(images.shape), dtype=np.float32))
    instead = stand_ins(synthesis.synthetic, labels, noise, synthesis.real, rng)
    soft = None if synthesis.synthetic == "real" else soft
    drawn = Synthetic(images if instead is None else instead, labels, soft)
    note_additions(client, labels)
    if not synthesis.redraw:
        client.state["synthetic"] = vars(drawn)
        del client.state["order"]
    return drawn


def fill_order(client: Client, net: VaeNet, order: Order, synthesis: Synthesis) -> tuple[Tensor, Tensor]:
    """Decode the received means (as published), or draw what this client lacks from the received latent model."""
    if order.means is not None and order.labels is not None:
        return decode(net, order.means, order.labels), order.labels
    assert order.latents is not None
    wanted = wanted_of_scarce(client.class_counts(), synthesis.classes, synthesis.quota)
    return draw_images(net, order.latents, wanted, synthesis.certainty, synthesis.tries, client.rng("synthesis"))


def published_means(
    client: Client, trained: Weights, spec: ModelSpec, vae: VaeSpec, share: ShareRequest
) -> tuple[Tensor, Tensor]:
    """DPMS as published: the local encoder and classifier, the global decoder, the most frequent classes."""
    net = start_vae(client.seed, spec, vae, client.schema, trained | share.heads | client.state["global decoder"])
    abundant = abundant_classes(client.class_counts(), share.classes)
    return noisy_means(net, *client.data.train.tensors(), abundant, share.search, client.noise_rng("means"))


def no_guarantee(share: ShareRequest) -> Guarantee:
    """What is proven about noisy means as published: nothing."""
    return Guarantee.none(
        mechanism=f"Gaussian noise of standard deviation {share.search.sigma:g} on mean latents",
        not_covered="the filter by the private classifier, the encoder (trained on the records), the list of classes",
        claimed=share.claimed,
    )
