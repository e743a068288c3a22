"""The models and their weights: shapes, initialisation, the papers' order of layers, clear errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

import fedsynth.learning.features  # noqa: F401  (registers more models)
from fedsynth.errors import ConfigError, UserError
from fedsynth.learning.models import MODELS, ModelSpec, PoolReLU, build_model, instantiate
from fedsynth.learning.weights import buffer_entries, load_weights, norm_entries, weights_of

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 30, 17)]
SMALL_RESNET = {"channels": (8, 8, 16, 16)}


def spec_of(name: str, **settings: object) -> ModelSpec:
    return ModelSpec(name=name, **({**SMALL_RESNET, **settings} if name == "resnet18" else settings))


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_takes_every_image_shape_and_its_head_is_linear(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(spec_of(name), shape, classes=7, seed=1)
    x = torch.rand(3, *shape)
    representation = model.body(x)
    assert representation.dim() == 2
    assert isinstance(model.head, nn.Linear)
    assert model.head.in_features == representation.shape[1]
    assert model(x).shape == (3, 7)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_sizes_are_those_of_the_papers() -> None:
    def layers(name: str, shape: tuple[int, ...], **settings: object) -> list[tuple[int, ...]]:
        model = build_model(ModelSpec(name=name, **settings), shape, 10, seed=0)
        kinds = nn.Conv2d | nn.Linear
        return [tuple(module.weight.shape) for module in model.modules() if isinstance(module, kinds)]

    grey, colour = (1, 28, 28), (3, 32, 32)
    assert layers("cnn", grey) == [(16, 1, 3, 3), (32, 16, 3, 3), (32, 7 * 7 * 32), (10, 32)]
    assert layers("cnn", colour)[3:] == [(64, 64, 3, 3), (128, 8 * 8 * 64), (10, 128)]
    assert layers("zda_cnn", grey) == [(16, 1, 5, 5), (32, 16, 5, 5), (10, 7 * 7 * 32)]
    assert layers("zda_cnn", colour)[2:] == [(80, 8 * 8 * 16), (60, 80), (10, 60)]
    assert layers("agg_cnn", colour)[1:] == [(32, 16, 3, 3), (32, 32, 3, 3), (10, 4 * 4 * 32)]
    fer = layers("agg_cnn", (1, 48, 48), channels=(16, 32, 64, 64), norm="group")
    assert fer[-1] == (10, 3 * 3 * 64)
    resnet = build_model(ModelSpec(name="resnet18"), colour, 10, seed=0)
    assert sum(p.numel() for p in resnet.parameters()) == 11_173_962


def test_auto_norm_is_the_papers_choice_and_can_be_changed() -> None:
    def norms(name: str, **settings: object) -> set[str]:
        modules = build_model(spec_of(name, **settings), (1, 28, 28), 10, seed=0).modules()
        return {type(module).__name__ for module in modules if "Norm" in type(module).__name__}

    assert norms("zda_cnn") == norms("resnet18") == {"BatchNorm2d"}
    assert norms("cnn") == norms("mlp") == norms("zda_cnn", norm="none") == set()
    assert norms("cnn", norm="group") == norms("mlp", norm="group") == {"GroupNorm"}
    assert norms("mlp", norm="batch") == {"BatchNorm1d"}


def test_the_mlp_takes_vectors_and_convolutions_say_why_not() -> None:
    assert build_model(ModelSpec(name="mlp", hidden=(5, 4)), (13,), 3, seed=0)(torch.rand(2, 13)).shape == (2, 3)
    with pytest.raises(UserError, match=r'needs images.*model.name = "mlp"'):
        build_model(ModelSpec(name="cnn"), (13,), 3)


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [
        (ModelSpec(name="cnn"), (1, 3, 9), "at least 4x4"),
        (ModelSpec(name="agg_cnn", channels=(8, 8, 8, 8)), (1, 8, 8), "at least 16x16"),
        (ModelSpec(name="resnet18"), (1, 2, 2), "at least 4x4"),
        (ModelSpec(name="zda_cn"), (1, 8, 8), 'Did you mean "zda_cnn"'),
        (ModelSpec(name="cnn", norm="group", groups=5), (1, 8, 8), "groups = 5 does not divide"),
        (ModelSpec(name="mlp", channels=(3,)), (4,), "model.channels has no meaning"),
        (ModelSpec(name="resnet18", hidden=(3,)), (1, 8, 8), "model.hidden has no meaning"),
        (ModelSpec(name="resnet18", channels=(3,)), (1, 8, 8), "needs 4 numbers"),
    ],
)
def test_what_cannot_be_built_is_a_sentence(spec: ModelSpec, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, shape, 10)


def test_an_unknown_key_or_a_zero_width_is_refused() -> None:
    with pytest.raises(ValidationError, match="widht"):
        ModelSpec(widht=3)
    with pytest.raises(ValidationError):
        ModelSpec(hidden=(0,))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), height=st.integers(2, 9), width=st.integers(2, 9))
def test_pool_before_relu_is_relu_before_pool_with_its_gradients(seed: int, height: int, width: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, height, width, dtype=torch.float64, generator=draw)
    ours, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = PoolReLU()(ours), nn.functional.max_pool2d(torch.relu(reference), 2)
    assert torch.equal(out, expected)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=draw)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(ours.grad, reference.grad)


def test_initialisation_depends_on_the_seed_alone_and_leaves_the_global_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first = build_model(ModelSpec(), (1, 8, 8), 10, seed=2**100 + 5)
    assert torch.equal(torch.rand(4), expected)
    assert same(weights_of(first), weights_of(build_model(ModelSpec(), (1, 8, 8), 10, seed=2**100 + 5)))
    assert not same(weights_of(first), weights_of(build_model(ModelSpec(), (1, 8, 8), 10, seed=6)))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_instantiate_gives_the_same_trainable_model_and_never_aliases(name: str) -> None:
    spec, shape = spec_of(name), (3, 16, 16)
    original = build_model(spec, shape, 5, seed=0)
    original(torch.rand(4, *shape))  # BatchNorm's counter and statistics move
    weights = weights_of(original)
    before = {entry: tensor.clone() for entry, tensor in weights.items()}
    model = instantiate(spec, shape, 5, weights)
    assert same(weights_of(model), before)
    model.eval(), original.eval()
    x = torch.rand(4, *shape)
    assert torch.allclose(model(x), original(x), atol=1e-6)
    model.train()
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.requires_grad
            assert parameter.grad is not None
            parameter.add_(1)
        for buffer in model.buffers():
            buffer.add_(1)
    assert same(weights, before)
    assert same(weights_of(instantiate(spec, shape, 5, weights)), before)


def test_models_of_one_blueprint_share_no_hooks_and_convolutions_lie_channels_last() -> None:
    weights = weights_of(build_model(ModelSpec(name="zda_cnn"), (3, 8, 8), 10, seed=0))
    first = instantiate(ModelSpec(name="zda_cnn"), (3, 8, 8), 10, weights)
    calls: list[int] = []
    first.body[1].register_forward_pre_hook(lambda module, inputs: calls.append(1))
    instantiate(ModelSpec(name="zda_cnn"), (3, 8, 8), 10, weights)(torch.rand(2, 3, 8, 8))
    assert calls == []
    convolution = first.body[0].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    assert weights["body.0.weight"].is_contiguous()
    assert weights["body.1.num_batches_tracked"].dtype == torch.int64


def test_weights_that_do_not_fit_are_refused_by_name_and_change_nothing() -> None:
    model = build_model(ModelSpec(), (1, 8, 8), 10, seed=0)
    before = weights_of(model)
    other = weights_of(build_model(ModelSpec(), (1, 8, 8), 3, seed=1))
    with pytest.raises(UserError, match=r'"head.weight" with shape \(3, 32\)'):
        load_weights(model, other)
    with pytest.raises(UserError, match=r'lack "body.0.bias"'):
        load_weights(model, {name: tensor for name, tensor in before.items() if name != "body.0.bias"})
    with pytest.raises(UserError, match='"extra", which this model lacks'):
        load_weights(model, before | {"extra": torch.zeros(1)})
    with pytest.raises(UserError, match=r"head.weight"):
        instantiate(ModelSpec(), (1, 8, 8), 10, other)
    assert same(weights_of(model), before)


def test_entries_are_told_apart() -> None:
    model = build_model(ModelSpec(name="zda_cnn"), (1, 8, 8), 10, seed=0)
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert norm_entries(model) == {f"body.{i}.{e}" for i in (1, 4) for e in {"weight", "bias", *statistics}}
    assert buffer_entries(model) == {f"body.{i}.{e}" for i in (1, 4) for e in statistics}
    assert norm_entries(nn.LayerNorm(3)) == {"weight", "bias"}


def test_a_model_of_ones_own_is_one_function() -> None:
    from fedsynth.learning.models import model

    @model("flat_test_model")
    def flat(spec: ModelSpec, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        return nn.Flatten(), shape[0] * shape[1] * shape[2]

    try:
        assert build_model(ModelSpec(name="flat_test_model"), (1, 4, 4), 3)(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    finally:
        del MODELS["flat_test_model"]
    with pytest.raises(ConfigError, match="There is no model"):
        build_model(ModelSpec(name="flat_test_model"), (1, 4, 4), 3)
