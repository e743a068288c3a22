"""What a client tells of its examples for a classifier in closed form: their sum, for a centre, and two moments."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.released_sums import Statistic, release_sum
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.federation import Client, Message
from fedsynth.federation.tasks import TaskError
from fedsynth.federation.trials import FAR, Trial
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.ridge import RidgeSums, lifted
from fedsynth.learning.weights import Weights
from fedsynth.privacy.mechanisms import clip_rows

COUNT = 0.1  # what an example adds to the number of examples, beside features of length 1
AT_A_TIME = 256


class Features(Message):
    """Which features: a model and, where its body has any, its weights."""

    spec: ModelSpec
    model: Weights = Field(default_factory=dict)

    def network(self, client: Client) -> Classifier:
        """The model at a client."""
        return client.build(self.spec, self.model or None).eval()

    def batches(self, client: Client, network: Classifier) -> Iterator[tuple[Tensor, Tensor]]:
        """Features of the training examples and labels, in float64; a body without weights computes in it, too."""
        x, y = client.data.train.tensors()
        kind = torch.float32 if self.model else torch.float64
        with torch.inference_mode():
            for images, labels in zip(x.split(AT_A_TIME), y.split(AT_A_TIME), strict=True):
                yield network.body(images.to(client.device, kind)).double(), labels


class FeatureSum(Statistic, name="feature_sum"):
    """(√0.99 · φ/length, 0.1) of each example: longer features are shortened, so none is longer than 1."""

    about = "the sum of the features, and the number of examples"

    of: Features
    length: float = Field(gt=0, description="longest features; the rest is cut")

    @property
    def sensitivity(self) -> float:
        return 1.0

    def total(self, client: Client) -> Tensor:
        network = self.of.network(client)
        total = torch.zeros(network.head.in_features + 1, dtype=torch.float64)
        for features, labels in self.of.batches(client, network):
            total[:-1] += math.sqrt(1 - COUNT**2) * clip_rows(features / self.length, 1.0).sum(0).cpu()
            total[-1] += COUNT * len(labels)
        return total

    def exact(self, client: Client) -> Tensor:
        raise TaskError("The sum of the features is released with noise only.")

    def mean(self, total: Tensor) -> Tensor:
        """The mean of the features from their sum over all clients, noise included."""
        examples = max(float(total[-1]) / COUNT, 1.0)
        return clip_rows(total[None, :-1] / (math.sqrt(1 - COUNT**2) * examples), 1.0)[0] * self.length

    def trial(self, schema: Schema, mu: float) -> Trial:
        return far_trial(self.model_copy(update={"of": COLUMNS, "length": 1.0}), schema.classes, mu)


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
        return far_trial(self.model_copy(update={"of": COLUMNS, "centre": None, "radius": 1.0}), schema.classes, mu)


# -- how an audit tests it ------------------------------------------------------------------------------------------

COLUMNS = Features(spec=ModelSpec(name="columns"))
SIDE = 4
REST = 5


def far_trial(statistic: Statistic, classes: int, mu: float) -> Trial:
    """A record that is as far out as can be comes to others that are zero."""
    schema = Schema((SIDE,), classes)
    far = np.zeros((1, SIDE), np.float32)
    far[0, 0] = FAR

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        rest, labels = np.zeros((REST, SIDE), np.float32), np.full(REST, label)
        return Dataset(rest, labels), Dataset(np.concatenate([rest, far]), np.append(labels, label))

    def release(client: Client, label: int) -> np.ndarray:
        return np.asarray(release_sum(client, statistic, mu).fields()["total"], np.float64)

    def towards(label: int, round_: int) -> Any:
        adds = _what_it_adds(statistic, torch.from_numpy(far), label, classes)
        return (adds / adds.norm()).numpy()[None]

    return Trial(
        how=f"{statistic.about}, without and with a record far out",
        schema=schema,
        neighbours=neighbours,
        release=release,
        rounds=1,
        towards=towards,
    )


def _what_it_adds(statistic: Statistic, record: Tensor, label: int, classes: int) -> Tensor:
    if isinstance(statistic, RidgeMoments):
        sums = RidgeSums.none(SIDE, classes)
        sums.add(lifted(statistic.measured(record.double())), torch.tensor([label]))
        return sums.packed()
    return torch.cat([math.sqrt(1 - COUNT**2) * clip_rows(record.double(), 1.0)[0], torch.tensor([COUNT])])
