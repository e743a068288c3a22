"""AggEnhance (Ou et al. 2022): the server tunes the aggregate on class interior points of the received models.

Algorithm 2: for every class and every received model an input is optimised (eq. 11), from the middle between the
class's last kept point and uniform noise. Each candidate is scored by the summed probability of its class over the
models that predict it; the best of each class joins a set S, and the aggregate is tuned on S (algorithm 1, eq. 6).
It stands on any method of the shared loop by one setting: `post_aggregation = "interior_points"`.

`form = "published"`: S has no bound and the server tunes at the clients' rate. `decay = 0.01` is the weighted set of
its fig. 16. Ours: points of this round alone, started from noise, and a rate of `max_tune_lr` at most. Deviations of
both: the first points start from noise alone; a class that has no last point does so too. The score is the mean over
the models in place of the sum, which chooses alike. "Decay rate 0.01 by time" is read as weights 0.99^age.

`secure = true` is the paper's variant for secure aggregation: clients make candidates from their own models and score
everybody's, so the server needs no single model. With `privacy.secure_aggregation` updates and scores are then seen as
sums only. The candidates themselves leave the clients as they are.
"""

import torch
from torch import Tensor

from fedsynth.components.ablations import Controls, draw_from_all, stand_ins
from fedsynth.components.additions import INSTEAD, count_labels, record_at_server
from fedsynth.components.schedule import NEVER, Scheduled
from fedsynth.components.server_work import tune_at_server
from fedsynth.components.slots import AggregationContext, PostAggregation
from fedsynth.errors import ConfigError
from fedsynth.federation import method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.models import Classifier
from fedsynth.learning.weights import Weights
from fedsynth.methods.agg_enhance.kept import KeptPoints
from fedsynth.methods.agg_enhance.search import Points, Search
from fedsynth.methods.agg_enhance.settings import InteriorSettings
from fedsynth.privacy import PrivacyConfig

PICTURED = 10  # rounds of points, or as many as are kept, before people are shown the first picture

CONTROLS: Controls = {
    "without synthesis": {"start_round": NEVER},
    "noise": {"points": "noise"},
    "no filter": {"choice": "random"},
    "real samples": {"points": "real"},
    "one real sample of each class": {"points": "prior"},
}


@method(
    "agg_enhance", model="agg_cnn", controls=CONTROLS, fedavg_when={"tune_epochs": 0}, search={"tune_rate": (0.02, 1.0)}
)
class InteriorPoints(InteriorSettings, Scheduled, PostAggregation, name="interior_points"):
    """The server tunes the aggregate on class interior points of the received models."""

    @property
    def single_models(self) -> bool:
        return self.points == "synthetic"

    @property
    def asks_clients(self) -> bool:
        return self.secure and self.single_models

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        if privacy.secure_aggregation and self.labels == "soft":
            raise ConfigError(
                'labels = "soft" needs what each model says of a point, and with privacy.secure_aggregation only the '
                'sum of the scores of its class is seen: set labels = "hard".'
            )

    def tune(self, context: AggregationContext) -> Weights:
        if self.tune_epochs == 0:
            return context.model
        fed, kept = context.fed, KeptPoints(context.memory)
        found = self.of_this_round(context, kept)
        if found is None:  # nobody could be reached
            return context.model
        kept.add(found, 1 if self.points == "prior" else self.queue)
        points = kept.points()
        record_at_server(fed, INSTEAD.get(self.points, SYNTHETIC), count_labels(points.labels, fed.schema.classes))
        if not len(points.labels):  # of which too few models were convinced
            return context.model
        self.show(context, kept)
        targets = self.targets(points, kept.weights(self.decay))
        fed.measure_alignment("alignment", context.spec, context.model, (points.images, targets))
        training = self.tuning(context.training)
        return tune_at_server(fed, context.model, context.spec, points.images, targets, training)

    def of_this_round(self, context: AggregationContext, kept: KeptPoints) -> Points | None:
        """New points of each class: synthesised, or what a control puts in their place."""
        fed, classes = context.fed, context.fed.schema.classes
        if self.points == "prior" and kept.turns:
            return kept.points()
        drawn = fed.rng("interior points").random((self.restarts * classes, *fed.schema.shape))
        start = torch.from_numpy(drawn).float()
        if self.start == "last":
            start = kept.half_way(start)
        if self.points == "synthetic":
            return Search(context, self).points(start)
        real = draw_from_all(fed, per_class=1) if self.points in ("real", "prior") else None
        kind = "noise" if real is None else "real"
        images = stand_ins(kind, torch.arange(classes), start[:classes], real, fed.rng("control"))
        assert images is not None
        return Points.of_classes(images, classes)

    def targets(self, points: Points, weights: Tensor) -> Tensor:
        """Labels, or where points weigh or mean more than one thing, probabilities times weights.

        Cross-entropy is linear in them, so that this weighs the loss of each point.
        """
        if self.labels == "hard" and self.decay == 0:
            return points.labels
        return points.targets * weights[:, None]

    def show(self, context: AggregationContext, kept: KeptPoints) -> None:
        """Let people see the points: once there are some, and of the last round."""
        enough = kept.turns >= min(self.queue or PICTURED, PICTURED)
        if context.last or (enough and not context.memory.get("pictured")):
            points = kept.points()
            context.fed.show("interior-points", points.images, points.labels)
            context.memory["pictured"] = True
