"""What clients tell of their classes: the sum of vectors in a fixed basis, for a centre, and each class's moments."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.released_sums import Statistic, release_sum
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.errors import ConfigError
from fedsynth.federation import Client
from fedsynth.federation.tasks import TaskError
from fedsynth.federation.trials import FAR, Trial
from fedsynth.synthesis.moments import SENSITIVITY, Basis, Covariance, class_sums, shortened, sum_length

CENTRE_COUNT = 0.5  # what a record adds to the number of records beside the centre's sum
LARGEST = 30_000_000  # numbers of one sum
Size = Annotated[int, Field(ge=1, le=64)]
"""Coefficients by row and by column."""

FEWEST = 3  # examples of a class whose exact sum may leave


class _InBasis(Statistic):
    """A statistic of examples as vectors in a fixed basis."""

    size: Size

    def basis(self, client: Client) -> Basis:
        """The basis for the client's examples."""
        return Basis(client.schema.shape, self.size)

    def vectors(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's examples as vectors, and their classes; what is not finite counts for nothing."""
        x, y = client.data.train.tensors()
        return finite(self.basis(client).coefficients(x), y)


def finite(vectors: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Those that are finite."""
    rows = torch.isfinite(vectors).all(1)
    return vectors[rows], y[rows]


class Centre(_InBasis, name="centre"):
    """½ for each example, and √¾ of its vector, clipped to the longest that an image can have: of length 1 at most."""

    about = "the mean example, and the number of examples"

    @property
    def sensitivity(self) -> float:
        return 1.0

    def total(self, client: Client) -> Tensor:
        q = shortened(self.vectors(client)[0], self.basis(client).reach)
        weight = math.sqrt(1 - CENTRE_COUNT**2)
        return torch.cat([torch.tensor([CENTRE_COUNT * len(q)], dtype=torch.float64), weight * q.sum(0)])

    def exact(self, client: Client) -> Tensor:
        raise TaskError("A centre is released with noise only.")

    def trial(self, schema: Schema, mu: float) -> Trial:
        adds = torch.tensor([CENTRE_COUNT, math.sqrt(1 - CENTRE_COUNT**2)], dtype=torch.float64)
        return far_trial([Centre(size=1)], schema.classes, mu, lambda label, round_: adds)


class MomentSums(Statistic):
    """Number, sum and second moment of each class: see `synthesis/moments.py` for why no record moves them by more
    than √2.

    `radius`: vectors are clipped to it around `centre`; without it they stay as they are, divided by `unit`, and no
    noise could cover them. `fewest`: where nothing covers the sums, a class with fewer examples is left out.
    """

    covariance: Covariance
    centre: Tensor | None = None
    radius: float | None = Field(None, gt=0)
    unit: float = Field(1.0, gt=0)
    fewest: int = Field(FEWEST, ge=FEWEST)

    @property
    def sensitivity(self) -> float:
        return math.inf if self.radius is None else SENSITIVITY

    @property
    def scale(self) -> float:
        """What vectors are divided by."""
        return self.unit if self.radius is None else self.radius

    def vectors(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's examples as finite vectors in float64, and their classes."""
        raise NotImplementedError

    def classes(self, client: Client) -> int:
        """How many classes `vectors` tells apart."""
        return client.schema.classes

    def total(self, client: Client) -> Tensor:
        return self._sums(client, 0)

    def exact(self, client: Client) -> Tensor:
        return self._sums(client, self.fewest)

    def _sums(self, client: Client, fewest: int) -> Tensor:
        c, y = self.vectors(client)
        classes, dimensions = self.classes(client), c.shape[1]
        check_length(dimensions, classes, self.covariance)
        if self.centre is not None:
            if self.centre.shape != (dimensions,):
                raise TaskError(f"The centre of the moments must have {dimensions} numbers.")
            c = c - self.centre.double()
        q = c / self.scale if self.radius is None else shortened(c, self.scale)
        rows = (torch.bincount(y, minlength=classes) >= fewest)[y]
        return class_sums(q[rows], y[rows], classes, self.covariance)


class ClassMoments(_InBasis, MomentSums, name="class_moments"):
    """The moments of classes in a fixed basis."""

    about = "the number, mean and second moment of the examples of each class"

    def trial(self, schema: Schema, mu: float) -> Trial:
        """Around two centres, on either side of the record."""
        middles = torch.tensor([[0.0], [2.0 * FAR * SIDE]], dtype=torch.float64)
        rounds = [ClassMoments(size=1, covariance="shared", centre=middle, radius=1.0) for middle in middles]

        def adds(label: int, round_: int) -> Tensor:
            q = torch.tensor([[1.0 if round_ == 1 else -1.0]])
            return class_sums(q, torch.tensor([label]), schema.classes, "shared")

        return far_trial(rounds, schema.classes, mu, adds)


def check_length(dimensions: int, classes: int, covariance: Covariance) -> None:
    """Refuse moments that would not fit into memory."""
    numbers = sum_length(dimensions, classes, covariance)
    if numbers > LARGEST:
        raise ConfigError(
            f"Class moments of {classes} classes in {dimensions} dimensions are {numbers:,} numbers, more than "
            f'{LARGEST:,}: set a smaller size or covariance = "shared".'
        )


# -- how an audit tests it --------------------------------------------------------------------------------------------

SIDE, OTHERS = 4, 3  # pixels of a side of the images of a trial, and records that are in both of its data sets


def far_trial(rounds: Sequence[Statistic], classes: int, mu: float, adds: Callable[[int, int], Tensor]) -> Trial:
    """A very bright image comes to others that are grey; `adds` is what that adds in a round, by its label."""
    grey, bright = np.full((OTHERS, 1, SIDE, SIDE), 0.5, np.float32), np.full((1, 1, SIDE, SIDE), FAR, np.float32)

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        labels = np.full(OTHERS + 1, label)
        return Dataset(grey, labels[1:]), Dataset(np.concatenate([grey, bright]), labels)

    def release(client: Client, label: int) -> np.ndarray:
        return np.asarray(release_sum(client, rounds[client.round - 1], mu).fields()["total"], np.float64)

    return Trial(
        how=f"{rounds[0].about}, without and with a record far out",
        schema=Schema((1, SIDE, SIDE), classes),
        neighbours=neighbours,
        release=release,
        rounds=len(rounds),
        towards=lambda label, round_: (adds(label, round_) / adds(label, round_).norm()).numpy()[None],
    )
