"""Values that may pass between server and clients, as bytes without pickle.

A payload is a tree of pydantic models, dataclasses, dicts and lists with tensors, numpy arrays and plain JSON values at
its leaves; it is read as dicts and lists, which a task's types turn into what they were. It is written as one
safetensors file: the tensors under readable names, the tree as JSON in the file's metadata. Reading it executes no
code, and the same bytes serve the wire, the checkpoints and the private state of clients.
"""

import dataclasses
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors
import torch
from pydantic import BaseModel
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedsynth.errors import FedsynthError

Fields = dict[str, Any]
"""Named values of a payload."""

TREE = "fedsynth"
MARK = "$"
RESERVED = "__metadata__"  # where safetensors keeps the tree
SENDABLE = frozenset(
    {
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    }
)


class Sealed:
    """Named fields as they were when they were sealed: what is done to their tensors later changes nothing."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.tree = _pack(fields, "", self.tensors)

    def opened(self) -> Fields:
        """The fields."""
        return {name: _unpack(value, self.tensors) for name, value in self.tree.items()}


class PayloadError(FedsynthError):
    """A value that cannot be sent, or bytes that are not a payload."""


def encode(fields: Mapping[str, Any]) -> bytes:
    """Serialise named fields. The result decodes to equal values, bit-identical."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        tree = _pack(fields, "", tensors)
        text = _json({**tree, MARK: _checksum(tree, tensors)})
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a list that holds itself
        raise PayloadError(f"This value cannot be sent ({type(error).__name__}: {error}).") from error
    return save_tensors(tensors, metadata={TREE: text})


def decode(blob: bytes) -> Fields:
    """Read what `encode` wrote; a `PayloadError` for anything else."""
    try:
        tensors = load_tensors(blob)
        length = int.from_bytes(blob[:8], "little")
        tree = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"][TREE])
        if tree.pop(MARK) != _checksum(tree, tensors):
            raise ValueError("the checksum does not fit: they were damaged")
        return {name: _unpack(value, tensors) for name, value in tree.items()}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PayloadError(f"These bytes are not a payload of fedsynth ({type(error).__name__}: {error}).") from error


def _json(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"))


def _checksum(tree: Fields, tensors: Mapping[str, torch.Tensor]) -> str:
    """Against damage by disks and cables, not by people. Always eight digits: the bytes of a payload are counted."""
    total = zlib.crc32(_json(tree).encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _pack(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Sealed):
        names = {name: _name(f"{path}/{name}", tensors) for name in value.tensors}
        tensors.update({names[name]: tensor for name, tensor in value.tensors.items()})
        return _renamed(value.tree, names)
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float | str):
        return value.item()
    if isinstance(value, torch.Tensor):
        return {MARK: "tensor", "name": _store(value, path, tensors)}
    if isinstance(value, np.ndarray):
        try:
            tensor = torch.from_numpy(value.copy(order="C"))
        except (TypeError, ValueError) as error:  # text, objects; foreign byte order
            raise PayloadError(f'"{path}" is an array of {value.dtype}, which cannot be sent.') from error
        return {MARK: "array", "name": _store(tensor, path, tensors)}
    if isinstance(value, BaseModel):
        value = value.model_dump()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == MARK:
                raise PayloadError(f'"{path}" has the key {key!r}: keys must be strings other than "{MARK}".')
        return {key: _pack(item, f"{path}/{key}" if path else key, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    raise PayloadError(
        f'"{path}" is a {type(value).__name__}, which cannot be sent: use tensors, numbers, text, lists.'
    )


def fields_of(value: Any) -> Fields:
    """The fields of a dataclass by name, as they are."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _store(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    if tensor.dtype not in SENDABLE or tensor.layout is not torch.strided or tensor.is_meta:
        what = "without numbers" if tensor.is_meta else f"of {tensor.dtype}, {tensor.layout}"
        raise PayloadError(f'"{path}" is a tensor {what}, which cannot be sent.')
    name = _name(path, tensors)
    # A copy of our own: safetensors refuses tensors that share memory, and views would carry their whole storage.
    tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return name


def _name(path: str, tensors: Mapping[str, torch.Tensor]) -> str:
    name = path.encode("utf-8", "replace").decode()  # names must be Unicode; keys are any Python string
    while name in tensors or name == RESERVED:  # {"a/b": …} beside {"a": {"b": …}}
        name += "'"
    return name


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A packed tree whose tensors have other names."""
    if isinstance(value, dict):
        if MARK in value:
            return {**value, "name": names[value["name"]]}
        return {key: _renamed(item, names) for key, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else value


def _unpack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        kind = value.get(MARK)
        if kind is None:
            return {key: _unpack(item, tensors) for key, item in value.items()}
        tensor = tensors[value["name"]]
        return tensor if kind == "tensor" else tensor.numpy()
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value


def not_finite(value: Any, path: str = "") -> Iterator[str]:
    """Where in a tree of fields there are NaN or infinite numbers."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from not_finite(item, f"{path}.{key}" if path else str(key))
    elif (
        (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, torch.Tensor) and not _all_finite(value))
        or (isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not bool(np.isfinite(value).all()))
    ):
        yield path


def _all_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor).all())


def empty(value: Any) -> bool:
    """Whether a field says nothing by itself: it was left out, or is a list or table without entries."""
    return value is None or (isinstance(value, dict | list | tuple) and not value)
