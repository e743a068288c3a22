"""The one training loop and the one evaluation loop that everything uses.

Fast on a CPU by four things that leave the mathematics alone: batches are gathered rows of one tensor (no
DataLoader), images and convolutions lie channels_last, the optimiser is fused, and nothing waits for a
number to be read back before the end of an epoch.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.errors import UserError
from fedsynth.learning.answers import BATCH, class_scores
from fedsynth.learning.effort import count_examples
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.weights import BATCH_NORMS

GATHER_BYTES = 16 * 2**20
"""Rows are gathered for many batches at a time, but never more than this, whatever the size of the data."""


class Objective(Protocol):
    """What local training minimises, and what it does to the gradients before each step."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch, to be differentiated."""

    def correct_gradients(self, model: nn.Module) -> None:
        """Change the parameters' gradients, after the backward pass and before clipping and the step."""


class CrossEntropy:
    """The plain objective."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the model's scores, averaged over the batch."""
        return F.cross_entropy(model(x), y)

    def correct_gradients(self, model: nn.Module) -> None:
        """Nothing to correct."""


@dataclass(frozen=True)
class FitResult:
    """What a training did: `loss` is the mean over the last epoch, nan when it was not finite."""

    steps: int
    epochs: int
    examples: int
    loss: float


PLAIN = CrossEntropy()


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    training: LocalTraining,
    rng: np.random.Generator,
    objective: Objective = PLAIN,
) -> FitResult:
    """Train the model in place on (x, y), in a fresh order from `rng` each epoch, where its parameters are.

    Stops after an epoch whose loss is not finite and returns nan; what that means is the caller's business.
    """
    if len(x) != len(y):
        raise UserError(f"There are {len(x)} examples but {len(y)} labels; every example needs one.")
    if len(x) == 0 or training.epochs == 0:
        return FitResult(steps=0, epochs=0, examples=len(x), loss=0.0)
    run = _Run(model, x, y, training, objective)
    model.train()
    epochs, loss = 0, 0.0
    while epochs < training.epochs and math.isfinite(loss):
        loss = run.epoch(rng.permutation(len(x)))
        epochs += 1
    count_examples(epochs * len(x))
    model.zero_grad(set_to_none=True)
    return FitResult(run.steps, epochs, len(x), loss if math.isfinite(loss) else math.nan)


class _Run:
    """One training under way."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, training: LocalTraining, objective: Objective) -> None:
        self.model = model
        self.objective = objective
        self.max_grad_norm = training.max_grad_norm
        self.batch_norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
        self.sizes = batch_sizes(len(x), training.batch_size, merge_single=bool(self.batch_norms))
        self.rows = _Rows(model, x, y)
        self.parameters = list(model.parameters())
        self.optimizer = make_optimizer(self.parameters, training)
        self.steps = 0

    def epoch(self, order: np.ndarray) -> float:
        """One pass over the data in the given order; the mean loss."""
        total = self.rows.x.new_zeros(())
        for x, y in self.rows.batches(order, self.sizes):
            # A sum on the device: reading the number of every step would make every step wait for it.
            total.add_(self.step(x, y), alpha=len(y))
        return total.item() / len(order)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward, backward, correct, clip, step; the loss before the step."""
        with _frozen_statistics(self.batch_norms, when=len(y) == 1):
            loss = self.objective.loss(self.model, x, y)
        for parameter in self.parameters:  # what zero_grad does, without its bookkeeping
            parameter.grad = None
        loss.backward()
        self.objective.correct_gradients(self.model)
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        self.steps += 1
        return loss.detach()


def batch_sizes(examples: int, batch_size: int, merge_single: bool) -> list[int]:
    """Sizes of the batches of one epoch; the last one may be short.

    With `merge_single` a last batch of one example joins the one before it: BatchNorm divides by the spread
    of the batch, and one example has none (PyTorch refuses it, or its statistics are those of one image).
    """
    sizes = [batch_size] * (examples // batch_size)
    rest = examples % batch_size
    if rest == 1 and sizes and merge_single:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


class _Rows:
    """The data, laid out once so that gathering a batch is a copy of whole rows."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        like = next(model.parameters())
        x = x.to(like.device, like.dtype)
        self.images = x.dim() == 4
        self.x = x.permute(0, 2, 3, 1).contiguous() if self.images else x.contiguous()
        self.y = y.to(like.device)
        self.most = max(1, GATHER_BYTES // max(1, self.x[0].numel() * self.x.element_size()))

    def batches(self, order: np.ndarray, sizes: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The examples in the given order, cut into batches: views into a few large gathers."""
        permutation = torch.from_numpy(order).to(self.y.device)
        start = 0
        for group in self._groups(sizes):
            rows = permutation[start : start + sum(group)]
            start += len(rows)
            # Images are stored (n, height, width, channels); seen from here as NCHW that is channels_last.
            x = self.x.index_select(0, rows)
            x = x.permute(0, 3, 1, 2) if self.images else x
            yield from zip(x.split(group), self.y.index_select(0, rows).split(group), strict=True)

    def _groups(self, sizes: list[int]) -> Iterator[list[int]]:
        """Runs of batches that together stay under the largest gather (but at least one batch each)."""
        group: list[int] = []
        for size in sizes:
            if group and sum(group) + size > self.most:
                yield group
                group = []
            group.append(size)
        yield group


@contextmanager
def _frozen_statistics(batch_norms: Sequence[nn.Module], when: bool) -> Iterator[None]:
    """Run BatchNorm on its stored statistics, for a batch of one example, which has none of its own."""
    frozen = batch_norms if when else ()
    for module in frozen:
        module.eval()
    try:
        yield
    finally:
        for module in frozen:
            module.train()


@dataclass
class Tally:
    """How many examples of each class were there and were right, and the sum of their losses."""

    correct: np.ndarray
    total: np.ndarray
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of right answers; nan without examples."""
        return float(self.correct.sum() / self.total.sum()) if self.total.sum() else math.nan

    def per_class(self) -> np.ndarray:
        """The share of right answers in each class; nan for a class without examples."""
        return np.divide(self.correct, self.total, out=np.full(len(self.total), np.nan), where=self.total > 0)

    @property
    def balanced_accuracy(self) -> float:
        """The mean over the classes that there are, so that rare ones count as much; nan without examples."""
        return float(np.nanmean(self.per_class())) if self.total.sum() else math.nan

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.correct + other.correct, self.total + other.total, self.loss + other.loss)


def evaluate(model: nn.Module, x: Tensor, y: Tensor, classes: int, batch_size: int = BATCH) -> Tally:
    """Count right answers per class in evaluation mode; the model is left in the modes it was found in."""
    return tally_answers(class_scores(model, x, classes, batch_size), y, classes, batch_size)


def tally_answers(scores: Tensor, y: Tensor, classes: int, batch_size: int = BATCH) -> Tally:
    """Count right answers per class among a model's scores: the class with the largest is its answer."""
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise UserError(f"Labels run from {int(y.min())} to {int(y.max())} but must lie in 0..{classes - 1}.")
    y = y.to(scores.device)
    right = scores.argmax(1) == y
    loss = torch.zeros((), dtype=torch.float64, device=scores.device)
    for part, labels in zip(scores.split(batch_size), y.split(batch_size), strict=True):
        loss += F.cross_entropy(part, labels, reduction="sum")
    labels = y.cpu().numpy()
    correct = np.bincount(labels[right.cpu().numpy()], minlength=classes)
    return Tally(correct, np.bincount(labels, minlength=classes), float(loss))


def measure_batch_norm(model: nn.Module, x: Tensor, batch_size: int = 512) -> None:
    """Set the running statistics of every BatchNorm layer to their mean over batches of `x`, equal in size.

    Fewer than two examples have no spread to measure: they leave the statistics as they are.
    """
    if len(x) < 2:
        return
    layers = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the batches
    device = next(model.parameters()).device
    model.train()
    with torch.no_grad():
        for batch in x.tensor_split(math.ceil(len(x) / batch_size)):
            model(batch.to(device))
    for layer, momentum in zip(layers, before, strict=True):
        layer.momentum = momentum
    model.eval()
