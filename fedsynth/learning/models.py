"""The classifiers: those of the papers, generalised to any image shape, behind one registry.

A `Classifier` is a `body` that turns an example into a representation (a vector) and a linear `head`.
To add a model, write a function that makes the body and register it with `@model("name")`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from fedsynth.errors import ConfigError, UserError, nearest
from fedsynth.learning.layers import Ensemble, Latent, NormLayer, Vote, resnet18_body
from fedsynth.learning.weights import NORMS, check_match
from fedsynth.seeding import derive

Shape = tuple[int, ...]
Norm = Literal["auto", "none", "batch", "group"]


class ModelSpec(BaseModel, frozen=True, extra="forbid"):
    """Which model to build; everything but the shape of the data and the number of classes."""

    name: str = Field(
        "cnn",
        description="Name of the model: mlp, cnn, latent_cnn, zda_cnn, agg_cnn, pfl_cnn or resnet18; or one of fixed "
        "features of which only a linear head is trained: wavelets, random_conv, pixels, columns, or fixed (what suits "
        "the data).",
    )
    norm: Norm = Field("auto", description='Normalisation layers; "auto" is the choice of the model\'s paper.')
    groups: PositiveInt = Field(4, description='Groups of each GroupNorm layer, with norm = "group".')
    hidden: tuple[PositiveInt, ...] | None = Field(
        None, description="Sizes of the hidden fully connected layers; none given means the model's own."
    )
    channels: tuple[PositiveInt, ...] | None = Field(
        None, description="Output channels of each convolutional block; none given means the model's own."
    )
    latent: PositiveInt | None = Field(
        None, description="Size of the latent that latent_cnn classifies; none given means the model's own."
    )
    dimension: PositiveInt | None = Field(
        default=None,
        description="Most features of a model of fixed features: more are projected; none given means all.",
    )
    vote: Vote | None = Field(
        None,
        description="What an ensemble of such networks averages, as many as its weights hold: method ensemble sets it.",
    )


class Classifier(nn.Module):
    """`head(body(x))`: the body makes a representation of shape (n, features), the head the class scores.

    The head is linear, but for that of an ensemble, whose body has made the scores.
    """

    head: nn.Linear

    def __init__(self, body: nn.Module, features: int, classes: int, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.head = head or nn.Linear(features, classes)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class PoolReLU(nn.Module):
    """ReLU and 2x2 max-pooling, the pool first.

    It is the same function, because ReLU is monotone (the largest of the rectified is the rectified
    largest), with a quarter of the work for ReLU; and one module costs a small step less than two.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(torch.max_pool2d(x, 2))


Body = tuple[nn.Module, int]
"""A body and the length of the representation it makes."""

MODELS: dict[str, Callable[[ModelSpec, Shape], Body]] = {}
FIXED: set[str] = set()
"""Names of models whose body has no weights: it is the same everywhere, and goes by `dimension`."""


def model(
    name: str, fixed: bool = False
) -> Callable[[Callable[[ModelSpec, Shape], Body]], Callable[[ModelSpec, Shape], Body]]:
    """Register the maker of a body under a name.

    `fixed`: the body has no weights, and spec.dimension features at most.
    """

    def register(make_body: Callable[[ModelSpec, Shape], Body]) -> Callable[[ModelSpec, Shape], Body]:
        MODELS[name] = make_body
        if fixed:
            FIXED.add(name)
        return make_body

    return register


def build_model(spec: ModelSpec, shape: Shape, classes: int, seed: int | None = None) -> Classifier:
    """A freshly initialised model (PyTorch's default initialisation).

    With a seed the weights depend on nothing else and PyTorch's global random state is left as it was;
    without one they are drawn from that global state.
    """
    if seed is None:
        return _construct(spec, shape, classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        return build_model(spec, shape, classes)


class Examples(Protocol):
    """What is to be classified: the shape of an example, and the number of classes."""

    @property
    def shape(self) -> Shape: ...

    @property
    def classes(self) -> int: ...


def initial_model(seed: int, spec: ModelSpec, schema: Examples) -> Classifier:
    """The model that every method of this seed starts from, at the server and at every client."""
    return build_model(spec, schema.shape, schema.classes, derive(seed, "model") % 2**63)


def instantiate(spec: ModelSpec, shape: Shape, classes: int, weights: Mapping[str, Tensor]) -> Classifier:
    """A trainable model with copies of the given weights, without the cost of initialising it first."""
    members = sum(name.startswith(MEMBER) and name.endswith(".head.weight") for name in weights) if spec.vote else 1
    blank = _blank(spec, tuple(shape), classes, max(1, members))
    check_match(blank.state_dict(), weights)
    return filled(blank, weights, "")


def filled(blank: nn.Module, weights: Mapping[str, Tensor], path: str) -> Any:
    """A copy of a module that holds no numbers yet, with copies of the weights under this path in it.

    By hand because `deepcopy` and `load_state_dict` together take longer than initialising a small model.
    """
    module = blank.__new__(type(blank))
    # Dictionaries (of parameters, children, hooks) and sets belong to the copy alone.
    module.__dict__ = {
        name: value.copy() if isinstance(value, dict | set) else value for name, value in blank.__dict__.items()
    }
    for name, parameter in blank._parameters.items():
        if parameter is not None:
            module._parameters[name] = nn.Parameter(_copied(weights[path + name]), parameter.requires_grad)
    for name, buffer in blank._buffers.items():
        if buffer is not None:
            module._buffers[name] = _copied(weights[path + name])
    for name, child in blank._modules.items():
        if child is not None:
            module._modules[name] = filled(child, weights, f"{path}{name}.")
    return module


def last_layers(net: nn.Module, count: int) -> set[str]:
    """Names of the entries of the last layers: the head, then parts of the body from its end (of a ResNet, blocks).

    A normalisation layer belongs to the layer before it.
    """
    layers: list[tuple[str, ...]] = []
    for name, part in net.get_submodule("body").named_children():
        prefixes = (f"body.{name}.",)
        if isinstance(part, NORMS) and layers:
            layers[-1] = (*layers[-1], *prefixes)
        elif part.state_dict():
            layers.append(prefixes)
    layers.append(("head.",))
    if count >= len(layers):
        raise ConfigError(
            f"{count} of the model's {len(layers)} layers cannot stay at the clients: at least one must be shared."
        )
    last = tuple(prefix for prefixes in layers[-count:] for prefix in prefixes)
    return {name for name in net.state_dict() if name.startswith(last)}


def _copied(tensor: Tensor) -> Tensor:
    # Weights of convolutions lie channels_last because CPU kernels are several times faster on that layout.
    layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
    return tensor.detach().clone(memory_format=layout)


@functools.lru_cache(maxsize=32)
def _blank(spec: ModelSpec, shape: Shape, classes: int, members: int) -> Classifier:
    """The model's structure without any numbers."""
    with torch.device("meta"):
        return _construct(spec, shape, classes, members)


MEMBER, SHARES = "body.members.", "body.shares"
"""Of an ensemble's entries: those of its networks start like this, and what each of them weighs."""


def _construct(spec: ModelSpec, shape: Shape, classes: int, members: int = 1) -> Classifier:
    if spec.vote is not None:
        single = spec.model_copy(update={"vote": None})
        voting = Ensemble([_construct(single, shape, classes) for _ in range(members)], spec.vote)
        return Classifier(voting, classes, classes, head=nn.Identity())
    if spec.name not in MODELS:
        raise ConfigError(f'There is no model "{spec.name}".{nearest(spec.name, MODELS)}')
    if spec.latent is not None and spec.name != "latent_cnn":
        raise ConfigError(f'model.latent has no meaning for "{spec.name}"; choose model.name = "latent_cnn".')
    if spec.dimension is not None and spec.name not in FIXED:
        raise ConfigError(f'model.dimension has no meaning for "{spec.name}": it is for fixed features alone.')
    body, features = MODELS[spec.name](spec, tuple(shape))
    return Classifier(body, features, classes)


def _norm_layer(spec: ModelSpec, kind: str, batch_norm: NormLayer) -> NormLayer | None:
    """How to make a norm layer for a number of channels, or None for no such layers."""

    def group_norm(channels: int) -> nn.Module:
        if channels % spec.groups:
            raise ConfigError(
                f"model.groups = {spec.groups} does not divide a layer of {channels} channels; "
                f"choose a divisor, such as {math.gcd(spec.groups, channels)}."
            )
        return nn.GroupNorm(spec.groups, channels)

    makers: dict[str, NormLayer | None] = {"none": None, "batch": batch_norm, "group": group_norm}
    return makers[kind if spec.norm == "auto" else spec.norm]


def _require_image(spec: ModelSpec, shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UserError(
            f'The model "{spec.name}" needs images (channels, height, width) but an example of this data '
            f'has shape {shape}; choose model.name = "mlp".'
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise UserError(
            f'The model "{spec.name}" halves images too often for {height}x{width} pixels: it needs at least '
            f'{smallest}x{smallest}; use larger images, fewer model.channels or model.name = "mlp".'
        )
    return channels, height, width


def _fully_connected(inputs: int, hidden: Sequence[int], norm: NormLayer | None = None) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    for outputs in hidden:
        layers += [nn.Linear(inputs, outputs), *([norm(outputs)] if norm else []), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers), inputs


def _convolutional(
    spec: ModelSpec,
    shape: Shape,
    *,
    channels: Sequence[int],
    hidden: Sequence[int] = (),
    kernel: int = 3,
    per_block: int = 1,
    norm: str = "none",
) -> Body:
    """Blocks of convolutions ("same"-padded), each halving the image by a max-pool, then hidden layers."""
    widths = spec.channels if spec.channels is not None else tuple(channels)
    inputs, height, width = _require_image(spec, shape, smallest=max(4, 2 ** len(widths)))
    make_norm = _norm_layer(spec, norm, nn.BatchNorm2d)
    layers: list[nn.Module] = []
    for outputs in widths:
        for position in range(per_block):
            layers.append(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2))
            if make_norm:
                layers.append(make_norm(outputs))
            layers.append(PoolReLU() if position == per_block - 1 else nn.ReLU(inplace=True))
            inputs = outputs
    halvings = 2 ** len(widths)
    flat = inputs * (height // halvings) * (width // halvings)
    connected, features = _fully_connected(flat, spec.hidden if spec.hidden is not None else hidden)
    return nn.Sequential(*layers, nn.Flatten(), *connected), features


@model("mlp")
def mlp(spec: ModelSpec, shape: Shape) -> Body:
    """A perceptron on the flattened example; the only model for vectors (AggEnhance on MNIST)."""
    if spec.channels is not None:
        raise ConfigError('model.channels has no meaning for "mlp"; use model.hidden.')
    norm = _norm_layer(spec, "none", nn.BatchNorm1d)
    hidden = spec.hidden if spec.hidden is not None else (200,)
    connected, features = _fully_connected(math.prod(shape), hidden, norm)
    return nn.Sequential(nn.Flatten(), *connected), features


@model("cnn")
def cnn(spec: ModelSpec, shape: Shape) -> Body:
    """FedDPMS, table 3: one convolution a block for one channel, two for colour."""
    if shape[0] == 1:
        return _convolutional(spec, shape, channels=(16, 32), hidden=(32,))
    return _convolutional(spec, shape, channels=(32, 64), hidden=(128,), per_block=2)


@model("latent_cnn")
def latent_cnn(spec: ModelSpec, shape: Shape) -> Body:
    """FedDPMS as its text has it: the classifier reads the latent that a variational encoder draws."""
    trunk, flat = _convolutional(
        spec.model_copy(update={"hidden": ()}),
        shape,
        channels=(16, 32) if shape[0] == 1 else (32, 64),
        per_block=1 if shape[0] == 1 else 2,
    )
    size = spec.latent or (32 if shape[0] == 1 else 128)
    connected, features = _fully_connected(size, spec.hidden if spec.hidden is not None else (32,))
    return nn.Sequential(*trunk.children(), Latent(flat, size), *connected), features


@model("zda_cnn")
def zda_cnn(spec: ModelSpec, shape: Shape) -> Body:
    """Fed-ZDA, section 4.1: 5x5 and a single linear layer for one channel, 3x3 and FC 80, 60 for colour."""
    if shape[0] == 1:
        return _convolutional(spec, shape, channels=(16, 32), kernel=5, norm="batch")
    return _convolutional(spec, shape, channels=(16, 16), hidden=(80, 60), norm="batch")


@model("agg_cnn")
def agg_cnn(spec: ModelSpec, shape: Shape) -> Body:
    """AggEnhance, section 4.2, for CIFAR10; with channels 16, 32, 64, 64 and GroupNorm the one for FER."""
    return _convolutional(spec, shape, channels=(16, 32, 32))


@model("pfl_cnn")
def pfl_cnn(spec: ModelSpec, shape: Shape) -> Body:
    """PFL-GAN's downstream classifier, which the paper does not describe: a plain small one."""
    return _convolutional(spec, shape, channels=(32, 64), hidden=(128,))


@model("resnet18")
def resnet18(spec: ModelSpec, shape: Shape) -> Body:
    """GANDALF's user model, with the stem for small images."""
    if spec.hidden is not None:
        raise ConfigError('model.hidden has no meaning for "resnet18"; use model.channels.')
    widths = spec.channels if spec.channels is not None else (64, 128, 256, 512)
    if len(widths) != 4:
        raise ConfigError(f'model.channels of "resnet18" needs 4 numbers, one a stage, not {len(widths)}.')
    channels, _, _ = _require_image(spec, shape, smallest=4)
    norm = _norm_layer(spec, "batch", nn.BatchNorm2d) or nn.Identity
    return resnet18_body(channels, widths, norm), widths[-1]
