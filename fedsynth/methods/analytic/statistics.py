"""What ridge regression asks of a client: two moments of the features of its examples."""

import math

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.feature_sums import COLUMNS, SIDE, Features, far_column_trial
from fedsynth.components.released_sums import Statistic
from fedsynth.data.dataset import Schema
from fedsynth.federation import Client
from fedsynth.federation.trials import Trial
from fedsynth.learning.ridge import RidgeSums, lifted
from fedsynth.privacy.mechanisms import clip_rows


class RidgeMoments(Statistic, name="ridge_moments"):
    """What ridge regression needs of each example; see `learning/ridge.py`, which proves the sensitivity.

    It does not depend on the centre: q is shortened after it was taken off, and what is not finite then is 0.
    `fewest`: where nothing covers the sums, a class with fewer examples is left out.
    """

    about = "second moments of the features, and their sum for each class"

    of: Features
    centre: Tensor | None = None
    radius: float | None = Field(None, gt=0, description="farthest from the centre; the rest is cut; none: nothing is")
    fewest: int = Field(1, ge=1)

    @property
    def sensitivity(self) -> float:
        return math.inf if self.radius is None else math.sqrt(2)

    def total(self, client: Client) -> Tensor:
        return self._sums(client, torch.ones(client.schema.classes, dtype=torch.bool))

    def exact(self, client: Client) -> Tensor:
        return self._sums(client, torch.from_numpy(client.class_counts() >= self.fewest))

    def _sums(self, client: Client, told: Tensor) -> Tensor:
        """Over the examples of these classes."""
        network = self.of.network(client)
        sums = RidgeSums.none(network.head.in_features, client.schema.classes)
        for features, labels in self.of.batches(client, network):
            rows = told[labels]
            sums.add(lifted(self.measured(features[rows.to(features.device)])), labels[rows])
        return sums.packed()

    def measured(self, features: Tensor) -> Tensor:
        """q: how far features are from the centre, no longer than 1 where there is a radius."""
        q = features if self.centre is None else features - self.centre.to(features)
        return q if self.radius is None else clip_rows(q / self.radius, 1.0)

    def trial(self, schema: Schema, mu: float) -> Trial:
        statistic = self.model_copy(update={"of": COLUMNS, "centre": None, "radius": 1.0})

        def adds(record: Tensor, label: int) -> Tensor:
            sums = RidgeSums.none(SIDE, schema.classes)
            sums.add(lifted(statistic.measured(record)), torch.tensor([label]))
            return sums.packed()

        return far_column_trial(statistic, schema.classes, mu, adds)
