"""Payloads: everything that may be sent comes back to the bit, and foreign bytes do no harm."""

from __future__ import annotations

import ast
import json
import math
import random
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny
from pydantic.dataclasses import dataclass as checked
from safetensors.torch import save

import fedsynth
import fedsynth.methods  # registers the values of slots
from fedsynth.components.local_training import TrainRequest
from fedsynth.components.protected_updates import DpSgdUpdates
from fedsynth.components.samples import Samples
from fedsynth.components.slots import LocalData, LocalObjective, SlotValue
from fedsynth.federation import Client, Message, Policy, Reply, leaves, task
from fedsynth.federation.payload import SENDABLE, PayloadError, decode, encode
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining

ARRAY_TYPES = [
    np.dtype(f"{kind}{size}")
    for kind, sizes in {"u": "1248", "i": "1248", "f": "248", "b": "1", "c": "8"}.items()
    for size in sizes
]
TENSOR_TYPES = sorted(SENDABLE, key=str)

shapes = np_st.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw):
    """Any bits at all, NaNs and infinities included; sometimes a view with strides of its own."""
    dtype, shape = draw(st.sampled_from(ARRAY_TYPES)), draw(shapes)
    if dtype.kind == "b":
        array = draw(np_st.arrays(bool, shape))
    else:
        size = math.prod(shape) * dtype.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    if array.ndim and draw(st.booleans()):
        array = array.T[::-1]
    return array


@st.composite
def tensors(draw):
    dtype, shape = draw(st.sampled_from(TENSOR_TYPES)), draw(shapes)
    if dtype == torch.bool:
        tensor = torch.from_numpy(draw(np_st.arrays(bool, shape)))
    else:
        size = math.prod(shape) * dtype.itemsize
        raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
        tensor = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(shape)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


scalars = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text(st.characters(codec=None))
keys = st.text(st.characters(codec=None), max_size=6).filter(lambda key: key != "$") | st.just("__metadata__")
trees = st.recursive(
    scalars | arrays() | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(keys, trees, max_size=4)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(sent, got) -> bool:
    if isinstance(sent, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and sent.dtype == got.dtype
            and sent.shape == got.shape
            and bits(sent) == bits(got)
        )
    if isinstance(sent, np.ndarray):
        return (
            isinstance(got, np.ndarray)
            and sent.dtype == got.dtype
            and sent.shape == got.shape
            and sent.tobytes() == got.tobytes()
        )
    if isinstance(sent, dict):
        return list(sent) == list(got) and all(same(sent[key], got[key]) for key in sent)
    if isinstance(sent, list):
        return len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, float):
        return isinstance(got, float) and (sent == got or (math.isnan(sent) and math.isnan(got)))
    return type(sent) is type(got) and sent == got


@settings(max_examples=100, deadline=None)
@given(payloads)
def test_any_tree_comes_back_to_the_bit(fields):
    assert same(fields, decode(encode(fields)))


@settings(max_examples=30, deadline=None)
@given(payloads)
def test_equal_values_give_equal_bytes(fields):
    assert encode(fields) == encode(decode(encode(fields)))


def test_views_of_one_storage_are_sent_whole_and_apart():
    storage = torch.arange(1000.0)
    sent = {"a": storage[:3], "b": storage[:3], "c": storage[::500], "d": storage.view(10, 100).t()[0]}
    blob = encode(sent)
    got = decode(blob)
    assert same(sent, got)
    assert len(blob) < 1000, "a view must not carry its whole storage"
    got["a"][0] = 99.0
    assert got["b"][0] == 0.0


def test_paths_that_look_alike_stay_apart():
    sent = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a/b'": torch.full((1,), 2.0)}
    assert same(sent, decode(encode(sent)))


def test_a_tensor_with_gradient_and_channels_last_layout_is_sent_as_plain_numbers():
    weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    got = decode(encode({"w": weight}))["w"]
    assert torch.equal(got, weight)
    assert not got.requires_grad
    assert got.is_contiguous()


def test_tuples_numpy_numbers_and_settings_arrive_as_plain_values():
    class Settings(BaseModel):
        rate: float = 0.5

    got = decode(encode({"t": (1, 2), "n": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True), "s": Settings()}))
    assert got == {"t": [1, 2], "n": 0.5, "i": 3, "b": True, "s": {"rate": 0.5}}


class Stranger:
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Stranger(), "Stranger"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1 + 2j, "complex"),
        (np.array(["text"]), "<U4"),
        (np.array([None]), "object"),
        (np.arange(3, dtype=">i4"), ">i4"),
        (np.complex64(1), "complex64"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "without numbers"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
        ({3: "x"}, "keys must be strings"),
        ({"$": "x"}, "keys must be strings"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_value_that_cannot_be_sent_is_named(value, words):
    with pytest.raises(PayloadError, match="model/layers/1") as caught:
        encode({"model": {"layers": [0, value]}})
    assert words in str(caught.value)


def test_values_without_end_are_refused():
    ring: list = []
    ring.append(ring)
    with pytest.raises(PayloadError):
        encode({"ring": ring})
    with pytest.raises(PayloadError):
        encode({"digits": 10**5000})


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(blob):
    with pytest.raises(PayloadError):
        decode(blob)


def test_safetensors_files_of_others_are_refused():
    for blob in (save({"w": torch.zeros(2)}), save({"w": torch.zeros(2)}, metadata={"format": "pt"})):
        with pytest.raises(PayloadError):
            decode(blob)


@pytest.mark.parametrize(
    "tree",
    [
        "[]",
        "3",
        "null",
        "{",
        '{"a": {"$": "tensor"}}',
        '{"a": {"$": "tensor", "name": "lost"}}',
        '{"a": {"$": "tensor", "name": []}}',
        '{"a":' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_a_tree_that_does_not_fit_its_tensors_is_refused(tree):
    with pytest.raises(PayloadError):
        decode(save({"w": torch.zeros(2)}, metadata={"fedsynth": tree}))


def sample_blob() -> bytes:
    tree = {"w": torch.randn(3, 4), "h": torch.ones(3, dtype=torch.bfloat16), "n": np.arange(5), "d": {"x": [1, "é"]}}
    return encode(tree)


def test_truncated_bytes_are_refused():
    blob = sample_blob()
    for length in range(len(blob)):
        with pytest.raises(PayloadError):
            decode(blob[:length])


def test_flipped_bits_raise_nothing_but_a_payload_error():
    blob, rng = sample_blob(), random.Random(0)
    header = 8 + int.from_bytes(blob[:8], "little")
    flips = [(position, bit) for position in range(header) for bit in range(8)]
    for position, bit in rng.sample(flips, min(len(flips), 3000)):
        broken = bytearray(blob)
        broken[position] ^= 1 << bit
        try:
            decode(bytes(broken))
        except PayloadError:
            continue


def source_files() -> list[Path]:
    return sorted(Path(fedsynth.__file__).parent.rglob("*.py"))


def test_nothing_in_the_package_is_pickled():
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for file in source_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name.split(".")[0] for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in forbidden, file
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"torch.load", "torch.save", "pd.read_pickle", "pandas.read_pickle"}, file
                for keyword in node.keywords:
                    allowed = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                    assert keyword.arg != "allow_pickle" or allowed, file


def test_the_tree_is_readable_json_in_the_header():
    blob = encode({"model": {"w": torch.zeros(2)}, "rounds": 3})
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    assert "model/w" in header
    assert json.loads(header["__metadata__"]["fedsynth"])["rounds"] == 3


# -- types ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: np.ndarray
    name: str = "pair"


@checked(config=ConfigDict(arbitrary_types_allowed=True))
class CheckedPair:
    values: torch.Tensor
    more: Pair


class Leaf(Message):
    weights: dict[str, torch.Tensor]
    counts: np.ndarray
    label: str | None = None


class Branch(Message):
    leaves: dict[str, Leaf]
    list_of: list[Leaf]
    pair: Pair
    checked: CheckedPair
    none: Leaf | None = None
    size: tuple[int, int] = (1, 2)


class Shape(SlotValue, slot="payload_shape"):
    """A slot of this test."""


class Drawn(Shape, name="drawn"):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    points: torch.Tensor
    scale: float = 1.0


class Scaled(Shape, name="scaled"):
    inner: Annotated[Shape, BeforeValidator(Shape.parse), SerializeAsAny()]
    scale: float = 2.0


ShapeSlot = Annotated[Shape, BeforeValidator(Shape.parse), SerializeAsAny()]


class Grown(Reply):
    branch: Branch = leaves("a branch")
    leaf: Leaf | None = leaves("a leaf", default=None)
    kinds: list[str] = leaves("what arrived")


@task
def pl_grow(client: Client, branch: Branch, shape: ShapeSlot, request: TrainRequest, leaf: Leaf | None) -> Grown:
    """Send back what came, and say as what it came."""
    assert isinstance(shape, Scaled)
    things = (branch, branch.pair, branch.checked, branch.list_of[0], shape, shape.inner, request.objective, leaf)
    kinds = [type(thing).__name__ for thing in things]
    assert isinstance(shape.inner, Drawn)
    moved = {"shape": shape.scale * shape.inner.points, "given": request.given.images, **request.sent}
    more = Leaf(weights=moved, counts=branch.pair.right)
    return client.release(Grown(branch=branch, leaf=more, kinds=kinds))


def branch() -> Branch:
    leaf = Leaf(weights={"a.b": torch.randn(2, 3), "a": torch.ones(1, dtype=torch.float64)}, counts=np.arange(4))
    pair = Pair(torch.tensor([1e-45, -0.0]), np.array([[1.5]], dtype=np.float32))
    both = CheckedPair(values=torch.arange(3), more=pair)
    return Branch(leaves={"x": leaf, "y": leaf}, list_of=[leaf, leaf], pair=pair, checked=both)


def plain(value: Any) -> Any:
    """A value as a payload brings it: dicts and lists."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def test_models_and_dataclasses_with_tensors_come_back_to_the_bit_at_any_depth():
    sent = branch()
    got = decode(encode({"branch": sent, "in": [{"a": sent.pair}, sent.list_of]}))
    assert same({"branch": plain(sent), "in": [{"a": plain(sent.pair)}, plain(sent.list_of)]}, got)
    again = Branch.model_validate(got["branch"])
    assert same(plain(sent), plain(again))
    assert (type(again.pair), type(again.checked), type(again.checked.more)) == (Pair, CheckedPair, Pair)
    assert isinstance(again.leaves["y"], Leaf)
    assert again.size == (1, 2)


def test_a_tensor_inside_a_model_is_not_shared_with_what_was_sent():
    sent = branch()
    got = Branch.model_validate(decode(encode({"branch": sent}))["branch"])
    before = sent.leaves["x"].weights["a"].clone()
    got.leaves["x"].weights["a"].add_(1)
    assert torch.equal(sent.leaves["x"].weights["a"], before)
    assert torch.equal(got.leaves["y"].weights["a"], before)


def test_a_slot_value_travels_by_its_name_with_its_own_settings_and_tensors():
    drawn = Drawn(points=torch.randn(2, 2), scale=0.5)
    got = decode(encode({"shape": Scaled(inner=drawn)}))["shape"]
    assert same(got, {"name": "scaled", "inner": {"name": "drawn", "points": drawn.points, "scale": 0.5}, "scale": 2.0})
    again = Shape.parse(got)
    assert isinstance(again, Scaled)
    assert isinstance(again.inner, Drawn)
    assert torch.equal(again.inner.points, drawn.points)


def request() -> TrainRequest:
    return TrainRequest(
        spec=ModelSpec(name="mlp", hidden=(3,)),
        training=LocalTraining(epochs=2, lr=0.1),
        objective=LocalObjective.parse({"name": "proximal", "mu": 0.25}),
        local_data=LocalData.parse({"name": "zero_shot", "steps": 3}),
        given=Samples(images=torch.rand(2, 1, 4, 4), labels=torch.tensor([1, 0])),
        updates=DpSgdUpdates(clip=1.0, delta=1e-5, noise=None, target=3.0, trainings=4),
        sent={"c": torch.randn(3)},
    )


def test_a_request_to_train_is_what_it_was():
    sent = request()
    got = TrainRequest.model_validate(decode(encode({"request": sent}))["request"])
    assert same(plain(sent.given), plain(got.given))
    assert same(sent.sent, got.sent)
    for name in set(TrainRequest.model_fields) - {"given", "sent"}:
        assert getattr(got, name) == getattr(sent, name), name
        assert type(getattr(got, name)) is type(getattr(sent, name)), name


@pytest.mark.parametrize("where", [{"workers": 0}, {"workers": 2}, {"wire": True}], ids=["here", "workers", "wire"])
def test_typed_requests_and_replies_are_the_same_on_every_engine(federate, where):
    sent, shape = branch(), Scaled(inner=Drawn(points=torch.ones(2)), scale=3.0)
    asked = {"branch": sent, "shape": shape, "request": request(), "leaf": None}
    reply = federate(**where).broadcast(pl_grow, to=["1"], **asked)["1"]
    expected = ["Branch", "Pair", "CheckedPair", "Leaf", "Scaled", "Drawn", "ProximalObjective", "NoneType"]
    assert reply.kinds == expected
    assert isinstance(reply.branch, Branch)
    assert same(plain(sent), plain(reply.branch))
    assert torch.equal(reply.leaf.weights["shape"], torch.full((2,), 3.0))
    assert torch.equal(reply.leaf.weights["given"], asked["request"].given.images)
    assert torch.equal(reply.leaf.weights["c"], asked["request"].sent["c"])


def test_what_does_not_fit_a_type_is_refused_by_its_place(federate):
    fed = federate(wire=True, policy=Policy(quorum=0.0))
    wrong = plain(branch()) | {"pair": {"left": torch.zeros(1), "right": 3}}
    good = {"shape": Scaled(inner=Drawn(points=torch.ones(2))), "request": request(), "leaf": None}
    failure = fed.broadcast(pl_grow, to=["1"], branch=wrong, **good).failures["1"]
    assert '"branch.pair.right"' in failure.message
    failure = fed.broadcast(pl_grow, to=["1"], branch=branch(), **good | {"shape": {"name": "round"}}).failures["1"]
    assert 'There is no payload_shape "round"' in failure.message
