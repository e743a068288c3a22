"""Moments of classes in the features of a network: what clients release of them, and Gaussians that follow.

As `moment_release.py` has it for examples in a fixed basis. With noise the mean of the features comes first, for a
tenth of μ²; features are clipped around it.
"""

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.class_moments import MomentSums, finite
from fedsynth.components.feature_sums import COLUMNS, Features, FeatureSum, far_column_trial
from fedsynth.components.moment_release import (
    ATTEMPTS,
    CENTRE_SHARE,
    LEFT_OUT,
    ReleasedMoments,
    gaussians,
    gaussians_of,
)
from fedsynth.components.released_sums import ReleaseConfig, released_sum, released_sums
from fedsynth.data.dataset import Schema
from fedsynth.federation import Client, Federation
from fedsynth.federation.trials import Trial
from fedsynth.synthesis.mixtures import split_classes
from fedsynth.synthesis.moments import class_sums, shortened


class FeatureMoments(MomentSums, name="feature_moments"):
    """The moments of classes in the features of a network, which computes in float64: the sums do not hang on who
    shares a batch with whom.

    The network is public and its normalisation layers use stored statistics, so the features φ of a record depend on
    no other one. With a radius q = (φ − centre)/radius is shortened to length 1, whatever weights, centre and radius a
    server sends, and a record with features that are not finite counts for nothing: by `class_sums` a record moves the
    sums by √2 at most. With several components a class is split by all of its records, and no noise could cover that.
    """

    about = "the number, mean and second moment of the features of each class"

    of: Features
    components: int = Field(1, ge=1, le=64)

    @property
    def sensitivity(self) -> float:
        return super().sensitivity if self.components == 1 else float("inf")

    def classes(self, client: Client) -> int:
        return client.schema.classes * self.components

    def vectors(self, client: Client) -> tuple[Tensor, Tensor]:
        network = self.of.network(client).double()
        features, labels = zip(*self.of.batches(client, network), strict=True)
        vectors, y = finite(torch.cat(features).cpu(), torch.cat(labels))
        if self.components > 1:
            y = split_classes(vectors, y, self.components, self.fewest, client.rng("components"))
        return vectors, y

    def trial(self, schema: Schema, mu: float) -> Trial:
        how = {"of": COLUMNS, "covariance": "shared", "centre": None, "radius": 1.0, "components": 1}

        def adds(record: Tensor, label: int) -> Tensor:
            return class_sums(shortened(record, 1.0), torch.tensor([label]), schema.classes, "shared")

        return far_column_trial(self.model_copy(update=how), schema.classes, mu, adds)


def release_centre(fed: Federation, of: Features, length: float, release: ReleaseConfig) -> Tensor | None:
    """The noisy mean of everybody's features, none counted as longer than this; None where nobody could be reached."""
    asked = FeatureSum(of=of, length=length)
    found = released_sum(fed, asked, release.mu(CENTRE_SHARE), release.sums(), attempts=ATTEMPTS)
    return None if found is None else asked.mean(found.total)


def release_features(
    fed: Federation, statistic: FeatureMoments, dimensions: int, release: ReleaseConfig
) -> ReleasedMoments | None:
    """A Gaussian for each class out of everybody's sums; None where nobody could be reached."""
    if release.epsilon is None and release.sums() is None:
        fed.note(LEFT_OUT.format(fewest=statistic.fewest))
    return gaussians(fed, statistic, dimensions, release, rank=dimensions)


def own_gaussians(fed: Federation, statistic: FeatureMoments, dimensions: int) -> list[ReleasedMoments]:
    """Gaussians of each client by itself, from exact sums."""
    fed.note(LEFT_OUT.format(fewest=statistic.fewest))
    classes = fed.schema.classes * statistic.components
    replies = released_sums(fed, statistic, attempts=ATTEMPTS).values()
    return [gaussians_of(reply.total, 0.0, statistic, dimensions, classes, dimensions) for reply in replies]
