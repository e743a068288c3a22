"""Ways to make one set of weights out of many. Plain functions: no federation here.

Arithmetic is in float64 and rounded once, in the order given, so results do not depend on who answered first. Integer
entries (BatchNorm's batch counter) are not averaged: the largest is taken.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedsynth.errors import UserError
from fedsynth.learning.weights import Weights

Weighted = tuple[Weights, float]


def weighted_mean(many: Iterable[Weighted], total: float | None = None) -> Weights:
    """Σ weight · w / Σ weight, holding two models in memory however many there are.

    `total` divides by something other than the sum of the weights (q-FFL does).
    """
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    weight_sum = 0.0
    for weights, weight in many:
        weight_sum += weight
        for name, entry in weights.items():
            if not entry.is_floating_point():
                sums[name] = torch.maximum(sums[name], entry) if name in sums else entry.clone()
            elif name in sums:
                sums[name].add_(entry.double(), alpha=weight)
            else:
                sums[name] = entry.double() * weight  # a new tensor, whatever the type of the entry
            kinds[name] = entry.dtype
    divisor = weight_sum if total is None else total
    if not sums or divisor == 0:
        raise UserError("There is nothing to average: no client sent weights with a positive weight.")
    return {name: (s / divisor).to(kinds[name]) if s.is_floating_point() else s for name, s in sums.items()}


def trimmed_mean(many: Sequence[Weighted], trim: float) -> Weights:
    """Coordinate by coordinate, leave out the `trim` share of lowest and of highest values, average the rest.

    At least one value goes at each end, where one is left then, or few clients would trim nothing. Kept values keep
    their clients' weights, so that `trim = 0` is the weighted mean. NaN counts as the highest of all values.
    """
    if not 0 <= trim < 0.5:
        raise UserError(f"trim = {trim} cannot be used: it must be at least 0 and less than 0.5.")
    cut = min(math.ceil(trim * len(many) - 1e-9), (len(many) - 1) // 2)
    if cut == 0:
        return weighted_mean(many)

    # Which of several equal values is cut must not depend on the order of the clients: the lighter ones come first.
    many = sorted(many, key=lambda pair: pair[1])

    def middle(stack: Tensor, shares: Tensor) -> Tensor:
        rank = stack.argsort(stable=True, dim=0).argsort(0)
        kept = ((rank >= cut) & (rank < len(stack) - cut)) * shares
        # A weight of 0 does not take out what is not finite, 0 · ∞ being NaN: it is replaced.
        return (stack.where((kept > 0) | stack.isfinite(), 0.0) * kept).sum(0) / kept.sum(0)

    return _by_entry(many, middle)


def clamped_mean(many: Sequence[Weighted], centre: Weights, limit: float, names: Iterable[str]) -> Weights:
    """The weighted mean of values that count as no farther than `limit` from the centre, coordinate by coordinate.

    The other entries are averaged as they are. NaN counts as the highest of all values.
    """
    clamped = set(names)

    def near(name: str, entry: Tensor) -> Tensor:
        if name not in clamped or not entry.is_floating_point():
            return entry
        middle = centre[name].double()
        return entry.double().nan_to_num(nan=math.inf, posinf=math.inf).clamp(middle - limit, middle + limit)

    mean = weighted_mean(({name: near(name, entry) for name, entry in w.items()}, share) for w, share in many)
    return {name: entry.to(many[0][0][name].dtype) for name, entry in mean.items()}


def median(many: Sequence[Weighted]) -> Weights:
    """Coordinate by coordinate, the middle value (the mean of the two middle ones when they are even in number).

    NaN counts as the highest of all values, so that the middle is finite while most values are.
    """
    return _by_entry(many, lambda stack, shares: stack.where(~stack.isnan(), math.inf).quantile(0.5, 0))


def krum_scores(many: Sequence[Weighted], byzantine: int, names: Iterable[str] | None = None) -> Tensor:
    """For each update, the summed squared distance to its n − f − 2 nearest others (Blanchard et al. 2017).

    `names` says which entries to look at; all of them otherwise.
    """
    looked_at = None if names is None else set(names)
    flat = torch.stack([flatten(w if looked_at is None else only(w, looked_at)) for w, _ in many])
    # The Gram matrix would cancel badly for updates that are close: distances are taken directly.
    distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    near = max(1, len(many) - byzantine - 2)
    return distances.sort(1).values[:, 1 : near + 1].sum(1)


def krum(many: Sequence[Weighted], byzantine: int, keep: int = 1, names: Iterable[str] | None = None) -> Weights:
    """The mean of the `keep` updates with the best Krum score (1: Krum, more: multi-Krum)."""
    if len(many) < 2 * byzantine + 3:
        need = 2 * byzantine + 3
        raise UserError(f"Krum against {byzantine} Byzantine clients needs {need} updates or more, not {len(many)}.")
    chosen = krum_scores(many, byzantine, names).argsort(stable=True)[:keep].sort().values
    return weighted_mean(many[int(index)] for index in chosen)


def pooled_statistics(many: Iterable[Weighted]) -> Weights:
    """BatchNorm statistics of all data together, from those of its parts.

    The variance of the whole is the mean of the parts' variances plus the variance of their means.
    """
    parts = list(many)
    mean = weighted_mean(parts)
    result = dict(mean)
    for name in mean:
        if name.endswith("running_var"):
            centre = name.removesuffix("running_var") + "running_mean"
            spread = [({name: (w[centre].double() - mean[centre].double()).square()}, share) for w, share in parts]
            result[name] = (mean[name].double() + weighted_mean(spread)[name]).to(mean[name].dtype)
    return result


def only(weights: Weights, names: set[str]) -> Weights:
    """The named entries."""
    return {name: entry for name, entry in weights.items() if name in names}


def flatten(weights: Weights) -> Tensor:
    """All floating-point entries as one float64 vector."""
    return torch.cat([entry.double().reshape(-1) for entry in weights.values() if entry.is_floating_point()])


def squared_distance(one: Weights, other: Weights, names: Iterable[str]) -> float:
    """‖one − other‖² over the named entries."""
    return float(sum((one[n].double() - other[n].double()).square().sum() for n in names))


def _by_entry(many: Sequence[Weighted], combine) -> Weights:  # type: ignore[no-untyped-def]
    result: Weights = {}
    shares = torch.tensor([weight for _, weight in many], dtype=torch.float64)
    for name, first in many[0][0].items():
        stack = torch.stack([weights[name] for weights, _ in many])
        if first.is_floating_point():
            shape = (len(many), *[1] * first.dim())
            result[name] = combine(stack.double(), shares.reshape(shape)).to(first.dtype)
        else:
            result[name] = stack.amax(0)
    return result
