"""How good synthetic examples are, evaluated by what had no part in synthesis, and how they lie among real ones:
do they cover them, vary as much, or sit too close to single records?
"""

import torch
from torch import Tensor, nn

from fedsynth.learning.models import Classifier, ModelSpec, build_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import Tally, evaluate, fit
from fedsynth.seeding import generator

ORACLE = LocalTraining(epochs=6, batch_size=64, lr=1e-3, optimizer="adam")
FRESH = LocalTraining(epochs=15, batch_size=32, lr=1e-3, optimizer="adam")
NEIGHBOURS = 5


def train_oracle(
    spec: ModelSpec, x: Tensor, y: Tensor, classes: int, seed: int = 0, training: LocalTraining = ORACLE
) -> Classifier:
    """A classifier of real data, trained in one place, that has seen nothing of the federation."""
    model = build_model(spec, tuple(x.shape[1:]), classes, seed=seed)
    fit(model, x, y, training, generator(seed, "oracle"))
    return model.eval()


def trained_on_these_only(
    spec: ModelSpec,
    images: Tensor,
    labels: Tensor,
    test: tuple[Tensor, Tensor],
    classes: int,
    seed: int = 0,
    training: LocalTraining = FRESH,
) -> Tally:
    """A fresh classifier that learns from these examples alone, evaluated on real ones."""
    model = build_model(spec, tuple(images.shape[1:]), classes, seed=seed)
    fit(model, images, labels, training, generator(seed, "trained on these only"))
    return evaluate(model, *test, classes)


def feature_distance(first: Tensor, second: Tensor) -> float:
    """1 − the mean cosine over all pairs of features of two sets (AggEnhance, eq. 19); rows are features."""
    if not len(first) or not len(second):
        return float("nan")
    one, other = (nn.functional.normalize(rows.double().flatten(1), dim=1) for rows in (first, second))
    # The mean over all pairs is the product of the means: no N1 × N2 table is needed.
    return 1.0 - float(one.mean(0) @ other.mean(0))


def features_of(model: Classifier, x: Tensor, batch_size: int = 512) -> Tensor:
    """The representations that a classifier makes, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model.body(batch) for batch in x.split(batch_size)])


def coverage(real: Tensor, synthetic: Tensor, neighbours: int = NEIGHBOURS) -> float:
    """The share of real examples with a synthetic one nearer than their k-th real neighbour (Naeem et al. 2020)."""
    if len(real) <= neighbours or not len(synthetic):
        return float("nan")
    among = torch.cdist(real.flatten(1).double(), real.flatten(1).double())
    radius = among.kthvalue(neighbours + 1, dim=1).values  # the first is the example itself
    nearest = torch.cdist(real.flatten(1).double(), synthetic.flatten(1).double()).min(1).values
    return float((nearest <= radius).double().mean())


def diversity(real: Tensor, synthetic: Tensor) -> float:
    """The mean distance between two synthetic examples as a share of that between two real ones; 0: all the same."""
    spread = _mean_distance(real)
    return _mean_distance(synthetic) / spread if spread > 0 else float("nan")


def _mean_distance(rows: Tensor) -> float:
    if len(rows) < 2:
        return float("nan")
    return float(torch.pdist(rows.flatten(1).double()).mean())


def closer_to_training(synthetic: Tensor, training: Tensor, holdout: Tensor) -> float:
    """The share of synthetic examples nearer to a training record than to a held-out one; ties count half.

    Training and holdout must be similar and equally many: about a half is then what no copying gives. It is a screen: a
    share far above a half is a warning, a half proves nothing.
    """
    if len(training) != len(holdout):
        raise ValueError(f"{len(training)} training and {len(holdout)} held-out records: there must be equally many")
    flat = synthetic.flatten(1).double()
    to_training = torch.cdist(flat, training.flatten(1).double()).min(1).values
    to_holdout = torch.cdist(flat, holdout.flatten(1).double()).min(1).values
    nearer = (to_training < to_holdout).double() + 0.5 * (to_training == to_holdout).double()
    return float(nearer.mean())


def most_on_one_record(synthetic: Tensor, labels: Tensor, training: Tensor) -> tuple[int, float]:
    """The class of which the largest share lies nearest to one and the same training record, and that share."""
    nearest = torch.cdist(synthetic.flatten(1).double(), training.flatten(1).double()).argmin(1)
    found = {int(k): nearest[labels == k].bincount().max() / (labels == k).sum() for k in labels.unique()}
    worst = max(found, key=lambda k: float(found[k]))
    return worst, float(found[worst])
