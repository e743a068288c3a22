"""The training loop: the mathematics of a naive one, rules for odd batches, evaluation."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedsynth.errors import UserError
from fedsynth.learning import training as training_module
from fedsynth.learning.models import Classifier, ModelSpec, build_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import CrossEntropy, FitResult, Tally, batch_sizes, evaluate, fit
from fedsynth.learning.weights import weights_of


def some_data(examples: int, shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    return torch.rand(examples, *shape, generator=draw), torch.randint(classes, (examples,), generator=draw)


def naive_fit(model: nn.Module, x: Tensor, y: Tensor, training: LocalTraining, seed: int) -> list[float]:
    """The loop of every tutorial: NCHW, ReLU before the pool, PyTorch's unfused optimisers."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    options = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    optimizer = kinds[training.optimizer](
        model.parameters(), lr=training.lr, weight_decay=training.weight_decay, foreach=False, **options
    )
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(training.epochs):
        order = torch.from_numpy(rng.permutation(len(x)))
        total = 0.0
        for start in range(0, len(x), training.batch_size):
            rows = order[start : start + training.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            if training.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
            optimizer.step()
            total += loss.item() * len(rows)
        means.append(total / len(x))
    return means


def naive_copy(model: Classifier) -> nn.Sequential:
    """The same layers in the order of the papers, every tensor in PyTorch's default layout."""
    layers: list[nn.Module] = []
    for layer in copy.deepcopy(model).body:
        layers += [nn.ReLU(), nn.MaxPool2d(2)] if type(layer).__name__ == "PoolReLU" else [layer]
    return nn.Sequential(*layers, copy.deepcopy(model.head)).to(memory_format=torch.contiguous_format)


@pytest.mark.parametrize(
    ("spec", "shape", "training"),
    [
        ("zda_cnn", (1, 8, 8), LocalTraining(epochs=5, batch_size=10, lr=0.02)),
        ("zda_cnn", (3, 8, 8), LocalTraining(epochs=5, batch_size=10, lr=0.02, momentum=0.9, weight_decay=1e-3)),
        ("cnn", (1, 8, 8), LocalTraining(epochs=5, batch_size=10, lr=1e-3, optimizer="adam")),
        ("zda_cnn", (1, 8, 8), LocalTraining(epochs=5, batch_size=10, lr=1e-3, optimizer="adam", weight_decay=0.1)),
        ("mlp", (1, 8, 8), LocalTraining(epochs=5, batch_size=10, lr=1e-3, optimizer="adamw", weight_decay=0.1)),
        ("cnn", (3, 9, 12), LocalTraining(epochs=5, batch_size=10, lr=0.1, max_grad_norm=0.5)),
    ],
    ids=["batch-norm", "momentum", "adam", "adam-batch-norm", "adamw", "clipped"],
)
def test_the_fast_loop_is_the_naive_loop(
    spec: str, shape: tuple[int, ...], training: LocalTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "GATHER_BYTES", 8 * math.prod(shape) * 25)  # several gathers an epoch
    x, y = some_data(105, shape)
    x = x.double()
    fast = build_model(ModelSpec(name=spec), shape, 10, seed=0).double()
    slow = naive_copy(fast)
    result = fit(fast, x, y, training, np.random.default_rng(5))
    means = naive_fit(slow, x, y, training, seed=5)
    assert result.steps == 5 * 11 >= 50
    assert result.loss == pytest.approx(means[-1], abs=1e-12)
    for ours, reference in zip(weights_of(fast).values(), weights_of(slow).values(), strict=True):
        assert torch.allclose(ours.double(), reference.double(), rtol=0, atol=1e-12)


def test_the_same_generator_gives_the_same_bits() -> None:
    x, y = some_data(33)
    models = [build_model(ModelSpec(), (1, 8, 8), 10, seed=0) for _ in range(2)]
    for model in models:
        fit(model, x, y, LocalTraining(epochs=2, batch_size=8), np.random.default_rng(1))
    first, second = map(weights_of, models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_epochs_leave_the_model_and_the_generator_untouched() -> None:
    model = build_model(ModelSpec(name="zda_cnn"), (1, 8, 8), 10, seed=0)
    before, mode = weights_of(model), model.eval().training
    rng = np.random.default_rng(0)
    result = fit(model, *some_data(9), LocalTraining(epochs=0), rng)
    assert result == FitResult(steps=0, epochs=0, examples=9, loss=0.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(model).items())
    assert model.training is mode
    assert rng.random() == np.random.default_rng(0).random()


def test_no_examples_are_no_training() -> None:
    model = build_model(ModelSpec(), (1, 8, 8), 10, seed=0)
    assert fit(model, *some_data(0), LocalTraining(epochs=3), np.random.default_rng(0)) == FitResult(0, 0, 0, 0.0)


def test_examples_without_labels_are_an_error() -> None:
    x, y = some_data(5)
    with pytest.raises(UserError, match="5 examples but 4 labels"):
        fit(Constant(), x, y[:4], LocalTraining(), np.random.default_rng(0))


@given(st.integers(1, 400), st.integers(1, 70), st.booleans())
def test_batches_hold_every_example_once(examples: int, batch_size: int, merge: bool) -> None:
    sizes = batch_sizes(examples, batch_size, merge)
    assert sum(sizes) == examples
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + merge
    if merge and examples > 1 and batch_size > 1:
        assert 1 not in sizes


class Watching(CrossEntropy):
    """Cross-entropy that writes down the size of each batch and the modes of the layers."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.norm_modes: list[bool] = []

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(y))
        self.norm_modes += [module.training for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        assert x.dim() != 4 or x.is_contiguous(memory_format=torch.channels_last)
        return super().loss(model, x, y)


def test_a_trailing_single_example_joins_its_neighbours_only_with_batch_norm() -> None:
    x, y = some_data(9)
    for name, sizes in (("zda_cnn", [4, 5]), ("cnn", [4, 4, 1])):
        watching = Watching()
        model = build_model(ModelSpec(name=name), (1, 8, 8), 10, seed=0)
        result = fit(model, x, y, LocalTraining(epochs=1, batch_size=4), np.random.default_rng(0), watching)
        assert (watching.sizes, result.steps) == (sizes, len(sizes))
        assert all(watching.norm_modes)


@pytest.mark.parametrize("name", ["zda_cnn", "mlp"])
def test_one_example_trains_on_the_stored_statistics_of_batch_norm(name: str) -> None:
    watching = Watching()
    model = build_model(ModelSpec(name=name, norm="batch"), (1, 8, 8), 10, seed=0)
    before = weights_of(model)
    result = fit(model, *some_data(1), LocalTraining(epochs=2), np.random.default_rng(0), watching)
    after = weights_of(model)
    assert result.steps == 2
    assert math.isfinite(result.loss)
    assert not any(watching.norm_modes)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[entry], after[entry]) for entry in before if "running" in entry)
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    class Exploding(CrossEntropy):
        def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return super().loss(model, x, y) * math.inf

    model = build_model(ModelSpec(), (1, 8, 8), 10, seed=0)
    result = fit(model, *some_data(8), LocalTraining(epochs=5), np.random.default_rng(0), Exploding())
    assert math.isnan(result.loss)
    assert result.epochs == result.steps == 1


def test_gradients_can_be_corrected_before_the_step() -> None:
    class Frozen(CrossEntropy):
        def correct_gradients(self, model: nn.Module) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()

    model = build_model(ModelSpec(), (1, 8, 8), 10, seed=0)
    before = weights_of(model)
    fit(model, *some_data(8), LocalTraining(epochs=2, batch_size=4), np.random.default_rng(0), Frozen())
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(model).items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_learns_and_moves_vectors_too() -> None:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 3, 300))
    x = F.one_hot(y, 3).double() + torch.from_numpy(rng.normal(0, 0.2, (300, 3)))
    model = build_model(ModelSpec(name="mlp", hidden=(16,)), (3,), 3, seed=0)
    fit(model, x, y, LocalTraining(epochs=10, lr=0.5), rng)
    assert evaluate(model, x, y, 3).accuracy > 0.98


class Constant(nn.Module):
    """Always answers class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores.expand(len(x), 3)


def test_evaluate_counts_per_class_and_restores_the_modes() -> None:
    model = Constant().train()
    model.dropout.eval()
    y = torch.tensor([0, 1, 1, 1, 0])
    tally = evaluate(model, torch.rand(5, 1, 4, 4), y, classes=3, batch_size=2)
    assert tally.correct.tolist() == [0, 3, 0]
    assert tally.total.tolist() == [2, 3, 0]
    assert tally.accuracy == 0.6
    assert tally.per_class()[:2].tolist() == [0.0, 1.0]
    assert math.isnan(tally.per_class()[2])
    normaliser = math.log(math.e + 2)
    assert tally.loss == pytest.approx(5 * normaliser - 3, rel=1e-6)
    assert (model.training, model.dropout.training) == (True, False)


def test_evaluation_does_not_depend_on_the_batch_size_and_tallies_add_up() -> None:
    model = build_model(ModelSpec(name="zda_cnn"), (1, 8, 8), 10, seed=0)
    x, y = some_data(50)
    whole = evaluate(model, x, y, 10)
    parts = evaluate(model, x[:20], y[:20], 10, batch_size=7) + evaluate(model, x[20:], y[20:], 10, batch_size=30)
    assert parts.correct.tolist() == whole.correct.tolist()
    assert parts.total.tolist() == whole.total.tolist() == np.bincount(y, minlength=10).tolist()
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_evaluating_nothing_is_no_number_and_wrong_labels_are_an_error() -> None:
    model = build_model(ModelSpec(), (1, 8, 8), 10, seed=0)
    nothing = evaluate(model, *some_data(0), classes=10)
    assert math.isnan(nothing.accuracy)
    assert nothing.loss == 0
    assert (nothing + Tally(np.ones(10, int), np.full(10, 2), 1.0)).accuracy == 0.5
    with pytest.raises(UserError, match=r"must lie in 0..2"):
        evaluate(model, *some_data(30), classes=3)
