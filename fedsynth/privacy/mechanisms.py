"""Clipping and noise. Arrays in, arrays out; tensors in, tensors out.

A sensitivity is a promise that clipping keeps: noise without a clip before it proves nothing.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsynth.errors import ConfigError, FedsynthError
from fedsynth.privacy.guarantee import GaussianEvent

Array = TypeVar("Array", np.ndarray, Tensor)


def clip_rows(x: Array, norm: float) -> Array:
    """Shorten every row (first axis) that is longer than `norm`, in L2; shorter ones stay as they are.

    A row that is not finite becomes zeros: one broken record must neither break the sum nor show in it.
    """
    _positive("norm", norm)
    if isinstance(x, np.ndarray):
        return clip_rows(torch.from_numpy(np.ascontiguousarray(x)), norm).numpy()
    _require_floats(x)
    if x.numel() == 0:
        return x.clone()
    flat = x.reshape(len(x), -1)
    lengths = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    factors = torch.where(lengths > norm, norm / lengths * _just_below_one(x), 1.0)
    clipped = torch.where(torch.isfinite(lengths)[:, None], flat * factors[:, None].to(x.dtype), 0.0)
    return clipped.to(x.dtype).reshape(x.shape)


def clip_weights(delta: Mapping[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Shorten an update to `norm`, in L2 over all given entries together; not finite means all zeros."""
    _positive("norm", norm)
    for entry in delta.values():
        _require_floats(entry)
    length = math.sqrt(sum(float(torch.linalg.vector_norm(d, dtype=torch.float64)) ** 2 for d in delta.values()))
    if not math.isfinite(length):
        return {name: torch.zeros_like(entry) for name, entry in delta.items()}
    if length <= norm:
        return {name: entry.clone() for name, entry in delta.items()}
    return {name: entry * (norm / length * _just_below_one(entry)) for name, entry in delta.items()}


def add_gaussian(values: Array, std: float, rng: np.random.Generator) -> Array:
    """The values with independent Gaussian noise on each."""
    return _plus(values, rng.standard_normal(tuple(values.shape)) * _not_negative("std", std))


def gaussian_event(std: float, sensitivity: float = 1.0) -> GaussianEvent:
    """What `add_gaussian` proves about values whose L2 sensitivity is this."""
    return GaussianEvent(mu=sensitivity / _positive("std", std))


def add_laplace(values: Array, scale: float, rng: np.random.Generator) -> Array:
    """The values with independent Laplace noise on each."""
    return _plus(values, rng.laplace(size=tuple(values.shape)) * _not_negative("scale", scale))


def _plus(values: Array, noise: np.ndarray) -> Array:
    if isinstance(values, np.ndarray):
        _require_floats(torch.from_numpy(np.empty(0, values.dtype)))
        return (values + noise).astype(values.dtype)
    _require_floats(values)
    return (values.double() + torch.from_numpy(np.asarray(noise)).to(values.device)).to(values.dtype)


def _just_below_one(x: Tensor) -> float:
    """Rounding must not lift a clipped length above its limit."""
    return 1 - 4 * torch.finfo(x.dtype).eps


def _require_floats(x: Tensor) -> None:
    if not x.dtype.is_floating_point:
        raise FedsynthError(f"Clipping and noise need floating-point values, not {x.dtype}.")


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name} = {value} cannot be used: it must be more than 0.")
    return value


def _not_negative(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{name} = {value} cannot be used: it must be 0 or more.")
    return value
