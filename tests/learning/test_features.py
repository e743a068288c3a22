"""Fixed features: no weights, the same everywhere and whatever else is in a batch, for images of any shape."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch

from fedsynth.errors import ConfigError, UserError
from fedsynth.learning.features import public_signs
from fedsynth.learning.models import FIXED, ModelSpec, build_model, instantiate
from fedsynth.learning.training import PLAIN
from fedsynth.learning.weights import weights_of

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 30, 17), (1, 4, 4)]
IMAGES = ["wavelets", "random_conv", "pixels"]


def body(name: str, shape: tuple[int, ...], dimension: int | None = 60) -> torch.nn.Module:
    return build_model(ModelSpec(name=name, dimension=dimension), shape, 3, seed=0).body


def images(count: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", IMAGES)
def test_features_have_length_one_and_do_not_depend_on_the_batch(name: str, shape: tuple[int, ...]) -> None:
    net, x = body(name, shape), images(40, shape)
    together = net(x)
    assert together.shape == (40, min(60, net.inputs))
    assert torch.linalg.vector_norm(together, dim=1) == pytest.approx(np.ones(40))
    alone = torch.cat([net(one) for one in x.split(1)])
    assert torch.allclose(together, alone, rtol=0, atol=1e-13)
    assert torch.allclose(net(x.float()).double(), together, atol=1e-4)
    assert net(x[:0]).shape == (0, together.shape[1])


@pytest.mark.parametrize("name", sorted(FIXED))
def test_a_fixed_body_has_no_weights_and_no_seed(name: str) -> None:
    spec, shape = ModelSpec(name=name, dimension=30), (1, 12, 12)
    first, second = (build_model(spec, shape, 3, seed=seed) for seed in (1, 2))
    assert set(weights_of(first)) == {"head.weight", "head.bias"}
    x = images(5, shape)
    assert torch.equal(first.body(x), second.body(x))
    copy = instantiate(spec, shape, 3, weights_of(first))
    assert torch.equal(copy(x.float()), first(x.float()))


def test_what_is_random_is_public_and_does_not_change() -> None:
    """The bits of SHAKE-256, here 0x6c01, high ones first; with others no earlier model could be read."""
    assert hashlib.shake_256(b"fedsynth projection 2 8").hexdigest(2) == "6c01"
    assert public_signs(2, 8, "projection").tolist() == [[-1, 1, 1, -1, 1, 1, -1, -1], [-1] * 7 + [1]]


def test_columns_are_as_they_are_and_long_ones_are_projected() -> None:
    x = images(6, (13,)) * 9
    assert torch.equal(body("columns", (13,))(x), x)
    assert body("columns", (13,)).length == pytest.approx(math.sqrt(13))
    many = images(200, (2000,)) - 0.5
    few = body("columns", (2000,), 500)(many)
    assert few.shape == (200, 500)
    ratio = few.norm(dim=1) / many.norm(dim=1)
    assert float(ratio.mean()) == pytest.approx(math.sqrt(500 / 2000), rel=0.02)  # a random sign matrix / √inputs


def test_fixed_takes_what_suits_the_data() -> None:
    x = images(3, (1, 12, 12))
    assert torch.equal(body("fixed", (1, 12, 12))(x), body("wavelets", (1, 12, 12))(x))
    assert torch.equal(body("fixed", (7,))(images(3, (7,))), images(3, (7,)))


def test_wavelets_tell_orientations_apart_and_forgive_small_shifts() -> None:
    """What they are for: far from a turned picture, near to a shifted one."""
    net, x = body("wavelets", (1, 28, 28), None), torch.zeros(3, 1, 28, 28, dtype=torch.float64)
    x[0, 0, :, 12:15] = 1
    x[1, 0, :, 13:16] = 1
    x[2, 0, 12:15, :] = 1
    upright, shifted, turned = net(x)
    assert (upright - shifted).norm() < 0.5 * (upright - turned).norm()
    pixels = body("pixels", (1, 28, 28), None)(x)
    assert (upright - shifted).norm() < (pixels[0] - pixels[1]).norm()


@pytest.mark.parametrize("name", ["wavelets", "random_conv"])
def test_tables_are_refused_with_the_names_of_what_fits(name: str) -> None:
    with pytest.raises(UserError, match='shape .5,.: choose "columns"'):
        body(name, (5,))


def test_dimension_is_for_fixed_features_alone() -> None:
    with pytest.raises(ConfigError, match='model.dimension has no meaning for "cnn"'):
        build_model(ModelSpec(name="cnn", dimension=5), (1, 8, 8), 3)


def test_a_head_on_fixed_features_can_be_trained_after_it_was_evaluated() -> None:
    """Constants that were made while evaluating serve training, too."""
    spec, shape = ModelSpec(name="wavelets", dimension=23), (1, 9, 11)
    net, x, y = build_model(spec, shape, 3, seed=0), images(4, shape, torch.float32), torch.tensor([0, 1, 2, 0])
    with torch.inference_mode():
        net(x)
    x.requires_grad_()
    PLAIN.loss(net, x, y).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
