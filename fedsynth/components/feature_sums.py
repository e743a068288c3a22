"""Features of a network's body at the clients, and the sum of them that a client releases, for a centre."""

import math
from collections.abc import Callable, Iterator
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
        """Features of the training examples and labels, in float64; a body computes in the type of its weights, in
        float64 without any."""
        x, y = client.data.train.tensors()
        kind = next((entry.dtype for entry in network.body.parameters()), torch.float64)
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
        def adds(record: Tensor, label: int) -> Tensor:
            return torch.cat([math.sqrt(1 - COUNT**2) * clip_rows(record, 1.0)[0], torch.tensor([COUNT])])

        return far_column_trial(self.model_copy(update={"of": COLUMNS, "length": 1.0}), schema.classes, mu, adds)


# -- how an audit tests it ------------------------------------------------------------------------------------------

COLUMNS = Features(spec=ModelSpec(name="columns"))
SIDE = 4
REST = 5


def far_column_trial(statistic: Statistic, classes: int, mu: float, adds: Callable[[Tensor, int], Tensor]) -> Trial:
    """A record that is as far out as can be comes to others that are zero; `adds` is what that adds, by its label."""
    schema = Schema((SIDE,), classes)
    far = np.zeros((1, SIDE), np.float32)
    far[0, 0] = FAR

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        rest, labels = np.zeros((REST, SIDE), np.float32), np.full(REST, label)
        return Dataset(rest, labels), Dataset(np.concatenate([rest, far]), np.append(labels, label))

    def release(client: Client, label: int) -> np.ndarray:
        return np.asarray(release_sum(client, statistic, mu).fields()["total"], np.float64)

    def towards(label: int, round_: int) -> Any:
        added = adds(torch.from_numpy(far).double(), label)
        return (added / added.norm()).numpy()[None]

    return Trial(
        how=f"{statistic.about}, without and with a record far out",
        schema=schema,
        neighbours=neighbours,
        release=release,
        rounds=1,
        towards=towards,
    )
