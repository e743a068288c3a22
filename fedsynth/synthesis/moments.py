"""Class moments: number, mean and second moment of the examples of each class in a fixed basis, and draws from them.

Images are described by their lowest orthonormal DCT-II coefficients in each channel, tables by their columns as they
are read. A `ClassModel` is a Gaussian for each class there; a draw goes back through the inverse transform.
"""

import functools
import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

Covariance = Literal["class", "shared"]

COUNT_WEIGHT = 0.3  # β: what a record adds to the released count, beside a vector of norm 1
SENSITIVITY = math.sqrt(2)  # see `class_sums`
FEWEST_COUNTED = 20.0  # a noisy count is not taken to be smaller than this
SURE = 1.0  # a class is there when its noisy count is above so many standard deviations of its noise
RANK = 32  # directions of a covariance that are kept, at most
IMAGE_SIDE = 16  # coefficients by row and column without noise


# -- the basis ------------------------------------------------------------------------------------------------------


class Basis:
    """A fixed orthonormal basis for examples of this shape: `size` by `size` DCT coefficients, or the columns.

    Pixels lie between 0 and 1, so an image minus mid-grey is never longer than half the root of their number. Columns
    have no such bound; `reach` supposes that they are scaled to about one.
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self.shape, self.images = shape, len(shape) == 3
        numbers = math.prod(shape)
        self.reach = math.sqrt(numbers) / 2 if self.images else 2 * math.sqrt(numbers)
        if self.images:
            channels, height, width = shape
            self.rows, self.columns = dct_rows(height, min(size, height)), dct_rows(width, min(size, width))
            self.dimensions = channels * len(self.rows) * len(self.columns)
        else:
            self.dimensions = numbers

    def coefficients(self, x: Tensor) -> Tensor:
        """Examples as vectors (n, dimensions) in float64; images are taken minus mid-grey."""
        if not self.images:
            return x.double().reshape(len(x), self.dimensions)
        low = self.rows @ (x.double() - 0.5) @ self.columns.T
        return low.reshape(len(x), self.dimensions)

    def examples(self, vectors: Tensor) -> Tensor:
        """Examples in float32 with these vectors; pixels are clamped to their range."""
        back = self.inverse(vectors).float()
        return (back + 0.5).clamp(0, 1) if self.images else back

    def inverse(self, vectors: Tensor) -> Tensor:
        """The linear map back from vectors."""
        if not self.images:
            return vectors.reshape(len(vectors), *self.shape)
        low = vectors.reshape(len(vectors), self.shape[0], len(self.rows), len(self.columns))
        return self.rows.to(low).T @ low @ self.columns.to(low)

    def lowest(self, vector: Tensor, size: int) -> Tensor:
        """The same vector in the basis of this smaller size."""
        if not self.images:
            return vector
        low = vector.reshape(self.shape[0], len(self.rows), len(self.columns))
        return low[:, :size, :size].flatten()


@functools.cache
def dct_rows(length: int, count: int) -> Tensor:
    """The first rows of the orthonormal DCT-II of this length, in float64."""
    place, wave = torch.arange(length, dtype=torch.float64) + 0.5, torch.arange(count, dtype=torch.float64)
    rows = torch.cos(math.pi / length * wave[:, None] * place) * math.sqrt(2 / length)
    rows[0] /= math.sqrt(2)
    return rows


def chosen_size(doubt: float) -> int:
    """Coefficients by row and column, where `doubt` is the noise on a class's sums as a share of its examples."""
    return IMAGE_SIDE if doubt <= 0 else max(4, min(IMAGE_SIDE, round(12 * (0.005 / doubt) ** 0.22)))


def shortened(vectors: Tensor, longest: float) -> Tensor:
    """Vectors divided by `longest`, and no longer than 1; those that are not finite become zeros."""
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    scaled = vectors / torch.where(lengths > longest, lengths * (1 + 1e-12), longest)
    return torch.where(torch.isfinite(lengths), scaled, 0.0)


# -- sums -----------------------------------------------------------------------------------------------------------


def sum_length(dimensions: int, classes: int, covariance: Covariance) -> int:
    """How many numbers `class_sums` has."""
    return classes * (1 + dimensions) + dimensions * (dimensions + 1) // 2 * (classes if covariance == "class" else 1)


def class_sums(q: Tensor, y: Tensor, classes: int, covariance: Covariance) -> Tensor:
    """Per class β N and √(1 − β²) Σ q; Σ q qᵀ per class or over all: one vector.

    Of q qᵀ the upper triangle is kept, times √2 off the diagonal, so that its length is that of the matrix, ‖q‖². With
    ‖q‖ ≤ 1 a record adds a vector of squared length β² + (1 − β²) ‖q‖² + ‖q‖⁴ ≤ 2, whatever the number of classes: by
    adding or removing one record the sums move by √2 at most.
    """
    q = q.double()
    counts = torch.bincount(y, minlength=classes).double()
    sums = torch.zeros((classes, q.shape[1]), dtype=torch.float64).index_add_(0, y, q)
    parts = [q[y == label] for label in range(classes)] if covariance == "class" else [q]
    row, column, weight = _triangle(q.shape[1])
    squares = [(part.T @ part)[row, column] * weight for part in parts]
    return torch.cat([COUNT_WEIGHT * counts, math.sqrt(1 - COUNT_WEIGHT**2) * sums.flatten(), *squares])


class Sums(NamedTuple):
    """What `class_sums` holds: counts and sums by class, second moments by class or over all."""

    counts: Tensor
    sums: Tensor
    squares: Tensor


def read_sums(total: Tensor, dimensions: int, classes: int) -> Sums:
    """The parts of `class_sums`."""
    counts, sums, squares = total.split([classes, classes * dimensions, len(total) - classes * (1 + dimensions)])
    row, column, weight = _triangle(dimensions)
    triangles = squares.reshape(-1, len(row)) / weight
    matrices = torch.zeros((len(triangles), dimensions, dimensions), dtype=total.dtype)
    matrices[:, row, column] = triangles
    matrices[:, column, row] = triangles
    return Sums(counts / COUNT_WEIGHT, sums.reshape(classes, -1) / math.sqrt(1 - COUNT_WEIGHT**2), matrices)


@functools.cache
def _triangle(dimensions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and weights of the upper triangle of a symmetric matrix."""
    row, column = torch.triu_indices(dimensions, dimensions)
    return row, column, torch.where(row == column, 1.0, 2.0).double().sqrt()


# -- a Gaussian for each class --------------------------------------------------------------------------------------


class ClassModel(BaseModel):
    """A Gaussian for each class: its mean and a factor F of its covariance F Fᵀ, of its own or one for all.

    A class that is not known is not to be drawn from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    means: Tensor  # (classes, dimensions)
    factors: Tensor  # (classes or 1, dimensions, rank)
    known: Tensor  # (classes)


def class_model(
    total: Sums, std: float, scale: float = 1.0, centre: Tensor | None = None, rank: int = RANK
) -> ClassModel:
    """The model that follows from sums of vectors (c − centre) / scale with noise of this standard deviation."""
    counts, sums, squares = total
    known = counts > (SURE * std / COUNT_WEIGHT if std else 0.5)
    counts = counts.clamp_min(FEWEST_COUNTED if std else 1.0)
    means = sums / counts[:, None]
    between = counts[:, None, None] * means[:, :, None] * means[:, None, :]
    if len(squares) == len(counts):
        weights, spreads = counts, squares - between
    else:
        weights, spreads = counts[known].sum().clamp_min(1.0)[None], squares - between[known].sum(0)
    floor = std * math.sqrt(2 * means.shape[1]) / weights
    factors = torch.stack(
        [factor(s / n, float(least), rank) for s, n, least in zip(spreads, weights, floor, strict=True)]
    )
    means = scale * means if centre is None else scale * means + centre
    return ClassModel(means=means.float(), factors=(scale * factors).float(), known=known)


def mean_spread(total: Sums) -> float:
    """The mean squared distance of a vector from the mean of its class."""
    counts = total.counts.clamp_min(1.0)
    between = (total.sums.square().sum(1) / counts).sum()
    squares = total.squares.diagonal(dim1=1, dim2=2).sum()
    return max(0.0, float((squares - between) / total.counts.sum().clamp_min(1.0)))


def mean_errors(total: Sums, std: float) -> Tensor:
    """The expected squared distance of each class's mean from the true one: few examples, and noise."""
    counts = total.counts.clamp_min(FEWEST_COUNTED if std else 1.0)
    noise = total.sums.shape[1] * std**2 / (1 - COUNT_WEIGHT**2) / counts.square()
    return mean_spread(total) / counts + noise


def factor(covariance: Tensor, floor: float, rank: int = RANK) -> Tensor:
    """F with F Fᵀ near the covariance: of its largest directions, those above `floor`; the others are noise."""
    values, vectors = torch.linalg.eigh(covariance)
    rank = min(rank, len(values))
    values, vectors = values[-rank:], vectors[:, -rank:]
    return vectors * torch.where(values > max(floor, 0.0), values, 0.0).clamp_min(0).sqrt()


def deviations(model: ClassModel, basis: Basis, label: int) -> Tensor:
    """The standard deviation of every number of an example of this class."""
    return basis.inverse(model.factors[label % len(model.factors)].T).square().sum(0).sqrt()


def draw(model: ClassModel, labels: np.ndarray, rng: np.random.Generator) -> Tensor:
    """A vector of each of these classes."""
    classes, rank = torch.from_numpy(np.asarray(labels, dtype=np.int64)), model.factors.shape[2]
    z = torch.from_numpy(rng.standard_normal((len(classes), rank), dtype=np.float32))
    vectors = model.means[classes].clone()
    if len(model.factors) == 1:
        return vectors + z @ model.factors[0].T
    for label in classes.unique().tolist():
        rows = classes == label
        vectors[rows] += z[rows] @ model.factors[label].T
    return vectors
