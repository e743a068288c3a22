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
from fedsynth.components.server_work import TuningSettings, classify_images, invert_model, tune_at_server
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

    per_class: int = Field(5, ge=1, description="images of each class that one model makes")
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
        return Inversion(self.steps, self.image_lr, low=low, high=high, statistics=self.statistics, reduction="mean")

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
class ZeroShotTuning(ZeroShotSettings, TuningSettings, LateStart, PostAggregation, name="zero_shot"):
    """The server tunes the average on images synthesised from each received model."""

    unprotected: ClassVar[str] = UNPROTECTED

    def tune(self, context: AggregationContext) -> Weights:
        fed = context.fed
        if self.images == "none":
            return context.model
        fed.note(NOTHING_MORE)
        if self.tune_epochs == 0:
            return context.model
        images, labels = self.all_images(context)
        at_server = count_labels(labels, fed.schema.classes)
        record_at_server(fed, INSTEAD.get(self.images, SYNTHETIC), at_server)
        training = self.tuning(context.training)
        if context.last or not context.memory.get("pictured"):
            fed.show("zero-shot", *first_of_each(images, labels, PICTURED))
            context.memory["pictured"] = True
        return tune_at_server(fed, context.model, context.spec, images, labels, training, self.keep_statistics)

    def all_images(self, context: AggregationContext) -> tuple[Tensor, Tensor]:
        """A balanced set from each received model, all together."""
        fed, classes = context.fed, context.fed.schema.classes
        labels = torch.arange(classes).repeat_interleave(self.per_class)
        every = labels.repeat(len(context.received))
        rng = fed.rng("zero-shot control")
        noise = draw_start(self.start, len(every), fed.schema.shape, rng)
        images = stand_ins(self.images, every, noise, draw_from_all(fed) if self.images == "real" else None, rng)
        if images is None:
            common = {"spec": context.spec, "start": self.start, "labels": labels, "inversion": self.inversion()}
            done = fed.compute(invert_model, {c: {"model": w, **common} for c, w in context.received.items()})
            images = torch.cat([done[client].images for client in context.received])
        if self.amounts == "missing":
            kept = self.least_known(context, images, every)
            return images[kept], every[kept]
        return images, every

    def least_known(self, context: AggregationContext, images: Tensor, labels: Tensor) -> Tensor:
        """Which images to keep so that the classes the average recognises least have the most."""
        asked = {"average": {"model": context.model, "spec": context.spec, "images": images}}
        said = context.fed.compute(classify_images, asked)["average"].probabilities
        doubt = 1 - said.gather(1, labels[:, None]).squeeze(1)
        per_class = torch.stack([doubt[labels == c].mean() for c in range(context.fed.schema.classes)])
        share = per_class / per_class.max().clamp_min(1e-6)
        return torch.cat([spread(torch.nonzero(labels == c)[:, 0], float(share[c])) for c in range(len(share))])


def spread(rows: Tensor, share: float) -> Tensor:
    """A share of the rows, at least one, evenly spread over them: they come from one model after the other."""
    count = max(1, round(share * len(rows)))
    return rows[torch.arange(count) * len(rows) // count]


def first_of_each(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first few images of each class."""
    rows = torch.cat([torch.nonzero(labels == label)[:count, 0] for label in labels.unique()])
    return images[rows], labels[rows]


class ZdaConfig(ZeroShotSettings, TuningSettings, LateStart, LoopConfig):
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
