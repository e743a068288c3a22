"""Did the synthesis work? Quick checks of synthetic samples at the end of a run, without training anything.

Samples are compared with real ones in the space of the data itself. Who recognises them: the nearest real record (where
real records are at hand), and the run's own final model, which may have trained on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsynth.evaluation.quality import closer_to_training, diversity
from fedsynth.evaluation.results import Mark, SynthesisCheck
from fedsynth.learning.models import Classifier
from fedsynth.learning.training import evaluate

FEW_CLASSES = 0.5  # a smaller share of the classes is a failure, less than all a warning
ALIKE, SIMILAR = 0.1, 0.4  # spread within a class, as a share of the real one: below is a failure, a warning
STRANGE, DOUBTFUL = 0.5, 0.8  # recognised, as a share of what is recognised of real samples: the same
COPIED = 0.15  # so far above one half, and above what chance allows, is a warning; twice as far a failure
SAME, IDENTICAL = 0.1, 0.05  # so much nearer than usual; a larger share of such samples is a failure
MOST_NAMED = 12

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Beside:
    """What there is to compare with: training records (in a simulation), held-out ones, the run's final model."""

    names: Sequence[str]
    there: Sequence[int]  # the classes that anybody has
    training: Labelled | None = None
    held_out: Labelled | None = None
    model: Classifier | None = None


def check_synthesis(samples: Labelled, beside: Beside) -> list[SynthesisCheck]:
    """What the checks say of labelled synthetic samples."""
    return [
        _classes_covered(samples[1], beside),
        _diversity(samples, beside.held_out or beside.training),
        _recognised(samples, beside),
        _copies(samples[0], beside),
    ]


def _check(name: str, value: float | None, mark: Mark, words: str) -> SynthesisCheck:
    return SynthesisCheck(check=name, value=value, mark=mark, words=words)


def _graded(value: float, failure: float, warning: float) -> Mark:
    return "failed" if value < failure else "look" if value < warning else "good"


def _classes_covered(labels: Tensor, beside: Beside) -> SynthesisCheck:
    drawn = set(labels.unique().tolist())
    lacking = [beside.names[label] for label in beside.there if label not in drawn]
    total = max(1, len(beside.there))
    share = 1 - len(lacking) / total
    named = ", ".join(lacking[:MOST_NAMED]) + (" …" if len(lacking) > MOST_NAMED else "")
    words = f"{total - len(lacking)} of {total}" + (f", none of: {named}" if lacking else "")
    return _check("classes covered", share, _graded(share, FEW_CLASSES, 1), words)


def _diversity(samples: Labelled, real: Labelled | None) -> SynthesisCheck:
    name, (x, y) = "diversity", samples
    each = [_spread(x[y == label], x if real is None else real[0][real[1] == label]) for label in y.unique().tolist()]
    known = [value for value in each if not math.isnan(value)]
    if not known:
        return _check(name, None, "unknown", "not known: no class has two samples and two real records")
    mean = sum(known) / len(known)
    words = f"two samples of a class differ {mean:.2f} times as much as two "
    words += "of any class (there are no real ones here)" if real is None else "real ones"
    words += "; nearly the same again and again" if mean < ALIKE else ""
    mark = _graded(mean, ALIKE, SIMILAR)
    return _check(name, mean, "unknown" if real is None and mark != "failed" else mark, words)


def _spread(x: Tensor, beside: Tensor) -> float:
    return diversity(beside, x) if len(x) > 1 and len(beside) > 1 else math.nan


def _recognised(samples: Labelled, beside: Beside) -> SynthesisCheck:
    name, (x, y), real = "recognised", samples, beside.training or beside.held_out
    said, shares, values = [], [], []
    if real is not None and len(real[1]) > 1:
        found, usual = recognised_by_nearest(x, y, *real), recognised_by_neighbours(*real)
        of_real = f"{len(real[1]):,} real records, which recognise {usual:.0%} of each other"
        said.append(f"{found:.0%} by the nearest of {of_real}")
        shares.append(found / max(usual, 1e-9))
        values.append(found)
    if beside.model is not None:
        own = evaluate(beside.model, x, y, len(beside.names)).accuracy
        said.append(f"{own:.0%} by the run's own final model, which may have trained on them")
        shares.append(own)
        values.append(own)
    if not shares:
        return _check(name, None, "unknown", "not known: there is no global model and no real record here")
    return _check(name, values[0], _graded(shares[0], STRANGE, DOUBTFUL), "; ".join(said))


def recognised_by_nearest(x: Tensor, y: Tensor, real_x: Tensor, real_y: Tensor) -> float:
    """The share of samples whose nearest real record has their label."""
    nearest = torch.cdist(x.flatten(1).float(), real_x.flatten(1).float()).argmin(1)
    return float((real_y[nearest] == y).double().mean())


def recognised_by_neighbours(x: Tensor, y: Tensor) -> float:
    """The same for real records among themselves, each without itself."""
    apart = torch.cdist(x.flatten(1).float(), x.flatten(1).float()).fill_diagonal_(math.inf)
    return float((y[apart.argmin(1)] == y).double().mean())


def _copies(x: Tensor, beside: Beside) -> SynthesisCheck:
    """A screen: a share that is above one half by more than chance with so many neighbours is a warning."""
    name = "copies of records"
    if beside.training is None or beside.held_out is None:
        return _check(name, None, "unknown", "not known: the training records are not here")
    size = min(len(beside.training[1]), len(beside.held_out[1]))
    training, held_out = beside.training[0][:size], beside.held_out[0][:size]
    share = closer_to_training(x, training, held_out)
    far = max(COPIED, 1 / math.sqrt(_different_neighbours(x, training, held_out)))  # two standard deviations of ½
    mark: Mark = "failed" if share > 0.5 + 2 * far else "look" if share > 0.5 + far else "good"
    same = nearly_identical(x, beside.training[0])
    mark = "failed" if same > IDENTICAL else mark
    words = f"{share:.0%} lie nearer to a training record than to a held-out one (about 50% without copying)"
    return _check(name, share, mark, words + f"; {same:.0%} are all but identical to a training record")


def _different_neighbours(x: Tensor, *real: Tensor) -> int:
    """How many different real records are the nearest to some sample: samples that are all alike say only one thing."""
    nearest = [torch.cdist(x.flatten(1), part.flatten(1)).argmin(1).unique() for part in real]
    return max(1, min(map(len, nearest)))


def nearly_identical(x: Tensor, real: Tensor) -> float:
    """The share of samples that lie far nearer to a real record than real records lie to each other."""
    flat = real.flatten(1)
    usual = torch.cdist(flat, flat).fill_diagonal_(math.inf).min(1).values.median()
    nearest = torch.cdist(x.flatten(1), flat).min(1).values
    return float((nearest < SAME * usual).double().mean())
