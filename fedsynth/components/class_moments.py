"""What clients tell of their classes: the sum of vectors in a fixed basis, for a centre, and each class's moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
LARGEST_SIZE = 64
SMALLEST_CLIP, LARGEST_CLIP = 1e-3, 100.0
FEWEST = 3  # examples of a class whose exact sum may leave


class _InBasis(Statistic):
    """A statistic of examples as vectors in a fixed basis."""

    size: int = Field(ge=1, le=LARGEST_SIZE)

    def basis(self, client: Client) -> Basis:
        """The basis for the client's examples."""
        return Basis(client.schema.shape, self.size)

    def vectors(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's examples as vectors, and their classes; what is not finite counts for nothing."""
        x, y = client.data.train.tensors()
        c = self.basis(client).coefficients(x)
        rows = torch.isfinite(c).all(1)
        return c[rows], y[rows]


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


class ClassMoments(_InBasis, name="class_moments"):
    """Number, sum and second moment of each class: see `synthesis/moments.py` for why no record moves them by more
    than √2.

    `clip`: the radius around `centre` to which vectors are clipped, as a share of the root of an example's numbers;
    without it they stay as they are, and no noise could cover them. `fewest`: where nothing covers the sums, a class
    with fewer examples is left out.
    """

    about = "the number, mean and second moment of the examples of each class"

    covariance: Covariance
    centre: Tensor | None = None
    clip: float | None = Field(None, ge=SMALLEST_CLIP, le=LARGEST_CLIP)
    fewest: int = Field(FEWEST, ge=FEWEST)

    @property
    def sensitivity(self) -> float:
        return math.inf if self.clip is None else SENSITIVITY

    def scale(self, basis: Basis) -> float:
        """What vectors are divided by."""
        return basis.reach if self.clip is None else self.clip * math.sqrt(math.prod(basis.shape))

    def total(self, client: Client) -> Tensor:
        return self._sums(client, 0)

    def exact(self, client: Client) -> Tensor:
        return self._sums(client, self.fewest)

    def _sums(self, client: Client, fewest: int) -> Tensor:
        basis, classes = self.basis(client), client.schema.classes
        check_length(basis, classes, self.covariance)
        c, y = self.vectors(client)
        if self.centre is not None:
            if self.centre.shape != (basis.dimensions,):
                raise TaskError(f"The centre of the moments must have {basis.dimensions} numbers.")
            c = c - self.centre.double()
        q = c / self.scale(basis) if self.clip is None else shortened(c, self.scale(basis))
        rows = (torch.bincount(y, minlength=classes) >= fewest)[y]
        return class_sums(q[rows], y[rows], classes, self.covariance)

    def trial(self, schema: Schema, mu: float) -> Trial:
        """Around two centres, on either side of the record."""
        middles = torch.tensor([[0.0], [2.0 * FAR * SIDE]], dtype=torch.float64)
        rounds = [ClassMoments(size=1, covariance="shared", centre=middle, clip=1.0) for middle in middles]

        def adds(label: int, round_: int) -> Tensor:
            q = torch.tensor([[1.0 if round_ == 1 else -1.0]])
            return class_sums(q, torch.tensor([label]), schema.classes, "shared")

        return far_trial(rounds, schema.classes, mu, adds)


def check_length(basis: Basis, classes: int, covariance: Covariance) -> None:
    """Refuse moments that would not fit into memory."""
    numbers = sum_length(basis.dimensions, classes, covariance)
    if numbers > LARGEST:
        raise ConfigError(
            f"Class moments of {classes} classes in {basis.dimensions} dimensions are {numbers:,} numbers, more than "
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
