"""Ridge regression on one-hot labels from sums over examples: S = Σ u·uᵀ and M = Σ u·onehot(y)ᵀ. Nothing is trained.

For an example with features φ, u = (√(1−β²)·q, β) with q = (φ − c)/r: a centre and a radius, 0 and 1 where none are
given. The last entry of u stands for the bias. Whoever wants ‖u‖ ≤ 1 sees to ‖q‖ ≤ 1.

**The same bits whatever the split.** Entries of u are cut, towards zero, to multiples of 2^-14, and what is off the
diagonal of S is sent 45/32 times. So every partial sum is a multiple of 2^-33, which float64 holds exactly below 2^20
(a million examples of length 1 at least): sums do not depend on who summed what in which order, and what was added can
be taken off again without a trace.

**Sensitivity √2, where ‖u‖ ≤ 1.** A record adds to `packed` the upper triangle of u·uᵀ, with 45/32 < √2 times what is
off the diagonal, and u·onehot(y)ᵀ. The first is no longer than the whole matrix, ‖u·uᵀ‖ = ‖u‖² ≤ 1, the second
‖u‖ ≤ 1: together √2 at most, whether the record is added or removed. Entries cut towards zero make no u longer. Noise
of standard deviation s on every packed number is s on the diagonal of S and 32/45·s beside it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BIAS = math.sqrt(0.02)  # β
ROOT = math.sqrt(1 - BIAS**2)
GRID = 2.0**14
BESIDE = 45 / 32  # just below √2, and short in binary
SOFTMAX = 6.0  # least squares aims at 0 and 1: so many times these, softmax gives sensible probabilities
RARE = 20.0  # a class counts as so many examples at least where the number is noisy


@dataclass(frozen=True)
class RidgeSums:
    """S and M, in float64."""

    second: Tensor
    by_class: Tensor

    @classmethod
    def none(cls, features: int, classes: int) -> "RidgeSums":
        """The sums over no examples."""
        size = features + 1
        return cls(torch.zeros((size, size), dtype=torch.float64), torch.zeros((size, classes), dtype=torch.float64))

    def add(self, u: Tensor, labels: Tensor) -> None:
        """Add examples, in place."""
        u, classes = u.cpu(), self.by_class.shape[1]
        self.second.addmm_(u.T, u)
        self.by_class.addmm_(u.T, F.one_hot(labels.cpu(), classes).double())

    def packed(self) -> Tensor:
        """One vector: the upper triangle of S with 45/32 times what is off the diagonal, then M."""
        rows, columns = torch.triu_indices(*self.second.shape)
        return torch.cat([self.second[rows, columns] * _scale(rows, columns), self.by_class.flatten()])

    @classmethod
    def unpacked(cls, values: Tensor, features: int, classes: int) -> "RidgeSums":
        """The sums from their vector."""
        sums = cls.none(features, classes)
        rows, columns = torch.triu_indices(*sums.second.shape)
        upper = values[: len(rows)] / _scale(rows, columns)
        sums.second[rows, columns] = upper
        sums.second[columns, rows] = upper
        sums.by_class[:] = values[len(rows) :].reshape(sums.by_class.shape)
        return sums

    @property
    def examples(self) -> Tensor:
        """How many examples each class has: the last entry of every u is the bias."""
        return self.by_class[-1] / cut(torch.tensor(BIAS, dtype=torch.float64))


def _scale(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.where(rows == columns, 1.0, BESIDE).double()


def cut(u: Tensor) -> Tensor:
    """Entries as multiples of 1 / GRID, cut towards zero."""
    return torch.trunc(u * GRID) / GRID


def lifted(q: Tensor) -> Tensor:
    """u for the q of each example, in float64."""
    bias = torch.full((len(q), 1), BIAS, dtype=torch.float64, device=q.device)
    return cut(torch.cat([ROOT * q.double(), bias], 1))


# -- solving --------------------------------------------------------------------------------------------------------


def balanced(sums: RidgeSums, rarest: float = 0.0) -> RidgeSums:
    """The sums as if every class were as large, where the spread within classes is one that all share.

    S is what is between the classes, Σ n·μ·μᵀ, and the rest; of the first every class gets as much. Classes with fewer
    than `rarest` examples count as so many.
    """
    counts = sums.examples
    there = counts > (rarest if rarest else 0.5)
    counts = counts.clamp(min=max(rarest, 1.0))
    means = sums.by_class / counts
    even = torch.where(there, counts[there].sum() / max(int(there.sum()), 1), 0.0)
    within = sums.second - (means * counts) @ means.T
    return RidgeSums(within + (means * even) @ means.T, means * even)


def solve(sums: RidgeSums, ridge: float, std: float = 0.0) -> Tensor:
    """W that minimises Σ ‖onehot(y) − Wᵀu‖² + λ‖W‖², in float64.

    Without noise λ is `ridge` times the mean eigenvalue of S. With noise of this standard deviation it is
    ridge·std·√d, and nothing of the data goes into it; negative eigenvalues, which only noise can give, are 0.
    """
    size = len(sums.second)
    if std == 0:
        strength = max(ridge * float(sums.second.trace()) / size, 1e-300)
        system = sums.second + strength * torch.eye(size, dtype=torch.float64)
        return torch.linalg.solve(system, sums.by_class)
    values, vectors = torch.linalg.eigh(sums.second)
    return vectors @ ((vectors.T @ sums.by_class) / (values.clamp(min=0) + ridge * std * math.sqrt(size))[:, None])


def linear_head(solution: Tensor, centre: Tensor | None = None, radius: float | None = None) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear layer on the features themselves that gives the solution's scores, times SOFTMAX.

    It shortens no features: an example that is farther out than the radius has larger scores, in the same order but
    for the bias.
    """
    weight = ROOT * solution[:-1].T / (1.0 if radius is None else radius)
    bias = BIAS * solution[-1]
    if centre is not None:
        bias = bias - weight @ centre.to(weight)
    return SOFTMAX * weight, SOFTMAX * bias
