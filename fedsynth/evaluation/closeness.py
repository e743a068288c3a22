"""How synthetic examples lie among real ones: do they cover them, vary as much, or sit too close to single records?"""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 5


def coverage(real: Tensor, synthetic: Tensor, neighbours: int = NEIGHBOURS) -> float:
    """The share of real examples with a synthetic one nearer than their k-th real neighbour (Naeem et al. 2020)."""
    if len(real) <= neighbours or not len(synthetic):
        return float("nan")
    among = torch.cdist(real.flatten(1).double(), real.flatten(1).double())
    radius = among.kthvalue(neighbours + 1, dim=1).values  # the first is the example itself
    nearest = torch.cdist(real.flatten(1).double(), synthetic.flatten(1).double()).min(1).values
    return float((nearest <= radius).double().mean())


def diversity(real: Tensor, synthetic: Tensor) -> float:
    """The mean distance between two synthetic examples as a share of that between two real ones; 0: all alike."""
    spread = _mean_distance(real)
    return _mean_distance(synthetic) / spread if spread > 0 else float("nan")


def _mean_distance(rows: Tensor) -> float:
    if len(rows) < 2:
        return float("nan")
    return float(torch.pdist(rows.flatten(1).double()).mean())


def closer_to_training(synthetic: Tensor, training: Tensor, holdout: Tensor) -> float:
    """The share of synthetic examples nearer to a training record than to a held-out one; ties count half.

    Training and holdout must be alike and equally many: about a half is then what no copying gives. It is a screen: a
    share far above a half is a warning, a half proves nothing.
    """
    if len(training) != len(holdout):
        raise ValueError(f"{len(training)} training and {len(holdout)} held-out records: there must be equally many")
    flat = synthetic.flatten(1).double()
    to_training = torch.cdist(flat, training.flatten(1).double()).min(1).values
    to_holdout = torch.cdist(flat, holdout.flatten(1).double()).min(1).values
    nearer = (to_training < to_holdout).double() + 0.5 * (to_training == to_holdout).double()
    return float(nearer.mean())
