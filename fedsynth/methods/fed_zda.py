"""Fed-ZDA (Hao et al. 2021): images from models alone, by the statistics that BatchNorm layers store.

An image starts as Gaussian noise and is changed until a model sees the wanted class in it and its activations have the
stored statistics (algorithm 1, eq. 3). Fed-ZDAC (algorithm 2): each client makes some of every class from the received
model and trains on them and its own. Fed-ZDAS (algorithm 3): the server makes a balanced set from each received model
and tunes the average on their union. Both at once, or in turns, is the paper's future work.

Deviations: Adam on the images, which the paper does not name (with SGD hardly any image is recognised). BatchNorm's
stored statistics are kept free of synthetic images (`keep_statistics`): a client measures them on its own examples
after training, and the server's tuning leaves them alone. The paper does not say so; without it the images spoil the
statistics of the average, at the clients more than they teach it. Nor does it say how many there are or how long
the server tunes: settings. The claimed (0, δ)-privacy does not hold; what holds is that images are post-processing of
weights that were shared anyway.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.ablations import Controls, draw_from_all, stand_ins
from fedsynth.components.additions import INSTEAD, count_labels, note_additions, record_additions, record_at_server
from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.components.samples import Samples
from fedsynth.components.schedule import NEVER, LateStart
from fedsynth.components.server_images import (
    ServerImages,
    SourceSettings,
    from_each_model,
    from_ensemble,
    keep_rounds,
    opinions,
)
from fedsynth.components.server_work import TuningSettings, classify_images, tune_at_server
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slot_methods import settings_of
from fedsynth.components.slots import AggregationContext, LocalData, PostAggregation
from fedsynth.federation import Client, Federation, Outcome, method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.models import Classifier
from fedsynth.learning.training import measure_batch_norm
from fedsynth.learning.weights import Weights
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.class_balance import even_shortage
from fedsynth.synthesis.image_priors import Priors
from fedsynth.synthesis.inversion import Inversion, Start, draw_start, invert, require_batch_norm

NOTHING_MORE = (
    "No differential privacy. Zero-shot data is post-processing of the shared weights: it adds no leak beyond them and "
    "removes none."
)
UNPROTECTED = (
    "its images need the statistics that BatchNorm layers store, and BatchNorm mixes the examples of a batch, so that "
    "updates which have it cannot be protected"
)


class ZeroShotSettings(PublishedForm):
    """How images are synthesised."""

    published: ClassVar[dict[str, Any]] = {"start": "normal", "clamp": False, "image_lr": 0.1, "keep_statistics": False}

    per_class: int = Field(5, ge=1, description="images of each class that one model makes, or the ensemble")
    amounts: Literal["balanced", "missing"] = Field(
        "balanced", description="balanced, as published; missing: more of the classes that are lacking"
    )
    steps: int = Field(60, ge=0, description="optimisation steps for an image")
    start: Start = Field("grey", description="an image starts as standard Gaussian noise (normal) or as a noisy grey")
    clamp: bool = Field(True, description="keep pixels between 0 and 1")
    image_lr: float = Field(0.05, gt=0, description="learning rate for the images")
    statistics: float = Field(
        1.0, gt=0, description="weight of the BatchNorm statistics (eq. 3); that of the mean cross-entropy is 1"
    )
    variation: float = Field(0.0, ge=0, description="weight of the total variation of an image, for smoother ones")
    likeness: float = Field(0.0, ge=0, description="weight of how much images of one class are alike")
    shifts: int = Field(0, ge=0, description="the model sees the images moved by up to so many pixels, in each step")
    converged: float = Field(
        0.0, ge=0, lt=1, description="stop when ten steps lower the loss by less than this share; 0: take all steps"
    )
    images: Literal["synthetic", "noise", "real", "none"] = Field(
        "synthetic", description="controls: noise or real images with the same labels in their place, or no images"
    )
    keep_statistics: bool = Field(
        True,
        description="BatchNorm's stored statistics are those of the clients' own examples, not of synthetic images",
    )

    def inversion(self) -> Inversion:
        """The settings as the inversion wants them."""
        low, high = (0.0, 1.0) if self.clamp else (None, None)
        priors = Priors(self.variation, self.likeness, self.shifts)
        return Inversion(
            self.steps,
            self.image_lr,
            low=low,
            high=high,
            statistics=self.statistics,
            reduction="mean",
            priors=priors,
            converged=self.converged,
        )

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        """Without stored statistics there is nothing to go by."""
        require_batch_norm(net)


PICTURED = 64  # images of each class that people are shown, of the first round and of the last

CONTROLS: Controls = {
    "without synthesis": {"start_round": NEVER},
    "noise": {"images": "noise"},
    "real samples": {"images": "real"},
}
RE_MEASURED: Controls = {"re-measured, no images": {"images": "none"}}
"""Clients measure BatchNorm's statistics after training, which FedAvg's never do: is that the gain?"""


@method("fed_zdac", model="zda_cnn", controls=CONTROLS | RE_MEASURED, fedavg_when={"start_round": 10**6})
class ZeroShotData(ZeroShotSettings, LateStart, LocalData, name="zero_shot"):
    """Clients train on their own data and on images synthesised from the received model."""

    unprotected: ClassVar[str] = UNPROTECTED

    def given(self, fed: Federation) -> Samples | None:
        if self.images == "none":
            return None
        fed.note(NOTHING_MORE)
        record_additions(fed, INSTEAD.get(self.images, SYNTHETIC), planned=self.planned(fed))
        return draw_from_all(fed) if self.images == "real" else None

    def planned(self, fed: Federation) -> dict[str, np.ndarray] | None:
        """What every client adds, where that does not hang on what it lacks."""
        each = np.full(fed.schema.classes, self.per_class)
        return None if self.amounts == "missing" else dict.fromkeys(fed.clients, each)

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: Samples | None
    ) -> tuple[Tensor, Tensor]:
        if self.images == "none":
            return x, y
        counts = client.class_counts()
        wanted = np.full(len(counts), self.per_class)
        if self.amounts == "missing":
            wanted = np.minimum(even_shortage(counts), self.per_class * len(counts))
        labels = torch.from_numpy(np.repeat(np.arange(len(counts)), wanted))
        note_additions(client, labels)
        if not len(labels):
            return x, y
        start = draw_start(self.start, len(labels), client.schema.shape, client.rng("zero-shot"))
        images = stand_ins(self.images, labels, start, given, client.rng("control"))
        if images is None:
            images = invert(net, start.to(client.device), labels.to(client.device), self.inversion()).to(x.device)
        return torch.cat([x, images]), torch.cat([y, labels])

    def restore(self, client: Client, net: Classifier) -> None:
        if self.keep_statistics:
            measure_batch_norm(net, client.data.train.tensors()[0])


@method(
    "fed_zdas", model="zda_cnn", controls=CONTROLS, fedavg_when={"tune_epochs": 0}, search={"tune_rate": (0.05, 1.0)}
)
class ZeroShotTuning(ZeroShotSettings, SourceSettings, TuningSettings, LateStart, PostAggregation, name="zero_shot"):
    """The server tunes the average on images synthesised from each received model."""

    unprotected: ClassVar[str] = UNPROTECTED

    def tune(self, context: AggregationContext) -> Weights:
        fed = context.fed
        if self.images == "none":
            return context.model
        fed.note(NOTHING_MORE)
        if self.tune_epochs == 0:
            return context.model
        fresh = self.synthesise(context)
        made = keep_rounds(context.memory, fresh, self.store)
        at_server = count_labels(made.wanted, fed.schema.classes)
        record_at_server(fed, INSTEAD.get(self.images, SYNTHETIC), at_server)
        if not len(made.images):
            return context.model
        training = self.tuning(context.training)
        if len(fresh.images) and (context.last or not context.memory.get("pictured")):
            fed.show("zero-shot", *first_of_each(fresh.images, fresh.wanted, PICTURED))
            context.memory["pictured"] = True
        return tune_at_server(
            fed, context.model, context.spec, made.images, made.targets, training, self.keep_statistics
        )

    def synthesise(self, context: AggregationContext) -> ServerImages:
        """The images of this round, with what they are labelled with. Controls keep the wanted classes, and all."""
        images, wanted, makers = self.all_images(context)
        made = ServerImages(images, wanted, wanted)
        if self.images == "synthetic" and (self.soft or self.consensus):
            if self.soft:
                made = ServerImages(images, wanted, opinions(context, images))
            if self.consensus:
                agreed = opinions(context, images, makers).gather(1, wanted[:, None]).squeeze(1) >= self.consensus
                context.fed.measure("kept by consensus", float(agreed.float().mean()))
                made = made.rows(agreed)
        if self.amounts == "missing" and len(made.images):
            made = made.rows(self.least_known(context, made.images, made.wanted))
        return made

    def all_images(self, context: AggregationContext) -> tuple[Tensor, Tensor, Tensor | None]:
        """A balanced set from each received model or from all as one, all together, and which model made which."""
        fed, classes = context.fed, context.fed.schema.classes
        labels = torch.arange(classes).repeat_interleave(self.per_class)
        single = self.source == "models"
        every = labels.repeat(len(context.received)) if single else labels
        makers = torch.arange(len(context.received)).repeat_interleave(len(labels)) if single else None
        rng = fed.rng("zero-shot control")
        noise = draw_start(self.start, len(every), fed.schema.shape, rng)
        images = stand_ins(self.images, every, noise, draw_from_all(fed) if self.images == "real" else None, rng)
        if images is None and single:
            images = from_each_model(context, labels, self.start, self.inversion())
        elif images is None:
            images, every = from_ensemble(context, self.per_class, self.start, self.inversion())
        return images, every, makers

    def least_known(self, context: AggregationContext, images: Tensor, labels: Tensor) -> Tensor:
        """Which images to keep so that the classes the average recognises least have the most."""
        asked = {"average": {"model": context.model, "spec": context.spec, "images": images}}
        said = context.fed.compute(classify_images, asked)["average"].probabilities
        doubt = 1 - said.gather(1, labels[:, None]).squeeze(1)
        present = labels.unique().tolist()  # a consensus may have left nothing of a class
        per_class = torch.stack([doubt[labels == c].mean() for c in present])
        share = (per_class / per_class.max().clamp_min(1e-6)).tolist()
        return torch.cat([spread(torch.nonzero(labels == c)[:, 0], s) for c, s in zip(present, share, strict=True)])


def spread(rows: Tensor, share: float) -> Tensor:
    """A share of the rows, at least one, evenly spread over them: they come from one model after the other."""
    count = max(1, round(share * len(rows)))
    return rows[torch.arange(count) * len(rows) // count]


def first_of_each(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first few images of each class."""
    rows = torch.cat([torch.nonzero(labels == label)[:count, 0] for label in labels.unique()])
    return images[rows], labels[rows]


class ZdaConfig(ZeroShotSettings, SourceSettings, TuningSettings, LateStart, LoopConfig):
    """Settings of both together."""

    turns: Literal["both", "alternate"] = Field(
        "both", description="clients and server in every round, or in turns (clients first)"
    )


@method(
    "fed_zda",
    config=ZdaConfig,
    model="zda_cnn",
    controls=CONTROLS | RE_MEASURED,
    fedavg_when={"start_round": 10**6},
    search={"tune_rate": (0.05, 1.0)},
)
def fed_zda(fed: Federation, cfg: ZdaConfig) -> Outcome:
    """Images from models at clients and at the server, together or in turns."""
    turn = {"every": 2 * cfg.every} if cfg.turns == "alternate" else {}
    later = {"offset": cfg.offset + cfg.every} if cfg.turns == "alternate" else {}
    local_data = ZeroShotData(**settings_of(cfg, ZeroShotData) | turn)
    tuning = ZeroShotTuning(**settings_of(cfg, ZeroShotTuning) | turn | later)
    return federated_loop(fed, cfg, local_data=local_data, post_aggregation=tuning)
