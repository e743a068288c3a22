"""What a reader hands over before labels are numbered, and the rules that make it uniform.

Images become (n, channels, height, width), uint8 or float32; rows of a table become (n, features) float32.
Whole-number labels stay as they are; text labels are numbered by sorted order (by value when all are digits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from fedsynth.errors import DataError

CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Part:
    """Examples and their labels as the file gives them: whole numbers or text."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Raw:
    """One source as read: train, perhaps test, and what else the file knows."""

    train: Part
    test: Part | None = None
    columns: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    from_pictures: bool = False

    def parts(self) -> list[Part]:
        """The parts that exist."""
        return [self.train] if self.test is None else [self.train, self.test]


def check_part(x: np.ndarray, y: np.ndarray, where: str) -> Part:
    """Examples and labels that belong together, or a sentence about what is wrong with the file."""
    if y.ndim != 1:
        raise DataError(f"{where}: labels have shape {y.shape}; give one label per example.")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} examples but {len(y)} labels; every example needs one label.")
    if len(y) == 0:
        raise DataError(f"{where} holds no examples; remove it or fill it.")
    return Part(x, check_labels(y, where))


def check_labels(y: np.ndarray, where: str) -> np.ndarray:
    """Labels as int64 or as text; fractions, negative numbers and huge numbers are refused."""
    if y.dtype.kind in "USb":
        return y.astype(str)
    if y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are of type {y.dtype}; write them as whole numbers or as text.")
    lowest, highest = int(y.min()), int(y.max())
    if lowest < 0:
        raise DataError(f"{where}: label {lowest} is negative; number the classes from 0.")
    if highest >= max(1000, 10 * len(np.unique(y))):
        raise DataError(
            f"{where}: label {highest} is out of range; number the classes 0, 1, 2, ... or give them as text."
        )
    return y.astype(np.int64)


def as_examples(x: np.ndarray, where: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Examples in the common layout; `shape` reshapes flat rows."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where}: examples are of type {x.dtype}; they must be numbers.")
    if x.dtype.kind == "f" and not (np.abs(x) <= np.finfo(np.float32).max).all():
        raise DataError(f"{where}: examples contain NaN, infinite or too large values; fill or remove them.")
    if shape is not None:
        if len(x) and int(np.prod(x.shape[1:])) != int(np.prod(shape)):
            raise DataError(
                f"{where}: one example has {int(np.prod(x.shape[1:]))} values, "
                f"which do not fit data.shape = {list(shape)}."
            )
        x = x.reshape(len(x), *shape)
    elif x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    elif x.ndim < 2 or (x.ndim == 4 and x.shape[1] not in CHANNELS) or x.ndim > 4:
        raise DataError(
            f"{where}: examples of shape {x.shape[1:]} are neither rows nor images; set data.shape, as in [1, 28, 28]."
        )
    return _compact(x)


def _compact(x: np.ndarray) -> np.ndarray:
    """uint8 for whole-number pixels 0..255, float32 for everything else."""
    if x.ndim == 4 and x.dtype.kind in "iu" and (x.dtype == np.uint8 or _fits_a_byte(x)):
        return x.astype(np.uint8, copy=False)
    return x.astype(np.float32, copy=False)


def _fits_a_byte(x: np.ndarray) -> bool:
    return len(x) > 0 and int(x.min()) >= 0 and int(x.max()) <= 255


def sort_names(names: Sequence[str]) -> list[str]:
    """Class names in the order of their numbers: by value when all are digits, else alphabetically."""
    unique = sorted(set(names))
    return sorted(unique, key=int) if all(name.isascii() and name.isdigit() for name in unique) else unique


def number_labels(parts: Sequence[np.ndarray], where: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Labels of all parts as numbers under one map, and the names of the classes."""
    kinds = {"text" if part.dtype.kind == "U" else "numbers" for part in parts}
    if len(kinds) > 1:
        raise DataError(f"{where}: some labels are text and some are numbers; use one of the two throughout.")
    if kinds == {"numbers"}:
        classes = 1 + max(int(part.max()) for part in parts)
        return list(parts), tuple(str(label) for label in range(classes))
    names = sort_names([str(name) for part in parts for name in np.unique(part)])
    alphabetical = np.array(sorted(names))
    number = {name: position for position, name in enumerate(names)}
    numbers = np.array([number[str(name)] for name in alphabetical], dtype=np.int64)
    return [numbers[np.searchsorted(alphabetical, part)] for part in parts], tuple(names)


def resize(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Images (n, c, h, w) in another size, by bilinear interpolation plane by plane."""
    if x.shape[2:] == size:
        return x
    height, width = size
    planes = x.reshape(-1, *x.shape[2:])
    out = np.empty((len(planes), height, width), x.dtype)
    for row, plane in enumerate(planes):
        out[row] = Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR)
    return out.reshape(*x.shape[:2], height, width)


def resize_images(raw: Raw, size: tuple[int, int] | None, where: str) -> Raw:
    """The same data with images of another size; rows of a table cannot be resize_images."""
    if size is None:
        return raw
    if raw.train.x.ndim != 4:
        raise DataError(f"{where} holds no images, so data.image_size cannot be used; remove it or set data.shape.")
    parts = [replace(part, x=resize(part.x, size)) for part in raw.parts()]
    return replace(raw, train=parts[0], test=parts[1] if len(parts) > 1 else None)


def describe_shape(x: np.ndarray) -> str:
    """The shape of one example in words, such as 1x28x28 or 12 features."""
    shape = x.shape[1:]
    return f"{shape[0]} features" if len(shape) == 1 else "x".join(map(str, shape))
