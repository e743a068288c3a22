"""What a reader hands over before labels are numbered, and the rules that make it uniform.

Images become (n, channels, height, width), uint8 or float32; rows of a table become (n, features) float32.
Whole-number labels stay as they are; text labels are numbered by sorted order (by value when all are digits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from fedsynth.errors import DataError

CHANNELS = (1, 3, 4)
BRIGHTEST = 20.0
"""Fractions of images that someone has standardised stay far below; those above are bytes in another type."""


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

    def change_examples(self, change: Callable[[np.ndarray], np.ndarray]) -> "Raw":
        """The same labels with other examples, in every part."""
        train, *test = (replace(part, x=change(part.x)) for part in self.parts())
        return replace(self, train=train, test=test[0] if test else None)


def join_parts(parts: Sequence[Part]) -> Part:
    """One part with the examples of all, in order."""
    return Part(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def check_part(x: np.ndarray, y: np.ndarray, where: str) -> Part:
    """Examples and labels (int64 or text) that belong together, or a sentence about what is wrong with the file."""
    if y.ndim != 1:
        raise DataError(f"{where}: labels have shape {y.shape}; give one label per example.")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} examples but {len(y)} labels; every example needs one label.")
    if len(y) == 0:
        raise DataError(f"{where} holds no examples; remove it or fill it.")
    if y.dtype.kind in "USb":
        return Part(x, y.astype(str))
    if y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels are of type {y.dtype}; write them as whole numbers or as text.")
    lowest, highest = int(y.min()), int(y.max())
    if lowest < 0:
        raise DataError(f"{where}: label {lowest} is negative; number the classes from 0.")
    if highest >= max(1000, 10 * len(np.unique(y))):
        raise DataError(
            f"{where}: label {highest} is out of range; number the classes 0, 1, 2, ... or give them as text."
        )
    return Part(x, y.astype(np.int64))


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
    if x.ndim == 4 and x.dtype.kind == "f" and len(x) and x.max() >= BRIGHTEST:
        raise DataError(f"{where}: pixels are fractions up to {x.max():g}; scale them to 0..1, or store whole numbers.")
    # Bytes for whole-number pixels 0..255, float32 for everything else.
    whole = x.ndim == 4 and x.dtype.kind in "iu"
    fits = whole and (x.dtype == np.uint8 or (len(x) > 0 and int(x.min()) >= 0 and int(x.max()) <= 255))
    return x.astype(np.uint8 if fits else np.float32, copy=False)


def number_labels(parts: Sequence[np.ndarray], where: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Labels of all parts as numbers under one map, and the names of the classes."""
    kinds = {"text" if part.dtype.kind == "U" else "numbers" for part in parts}
    if len(kinds) > 1:
        raise DataError(f"{where}: some labels are text and some are numbers; use one of the two throughout.")
    if kinds == {"numbers"}:
        classes = 1 + max(int(part.max()) for part in parts)
        return list(parts), tuple(str(label) for label in range(classes))
    alphabetical = sorted({str(name) for part in parts for name in np.unique(part)})
    digits = all(name.isascii() and name.isdigit() for name in alphabetical)
    names = sorted(alphabetical, key=int) if digits else alphabetical
    number = {name: position for position, name in enumerate(names)}
    numbers = np.array([number[name] for name in alphabetical], dtype=np.int64)
    return [numbers[np.searchsorted(np.array(alphabetical), part)] for part in parts], tuple(names)


def resize(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Images (n, c, h, w) in another size, by bilinear interpolation plane by plane."""
    if x.shape[2:] == size:
        return x
    planes = x.reshape(-1, *x.shape[2:])
    out = np.empty((len(planes), *size), x.dtype)
    for row, plane in enumerate(planes):
        out[row] = Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR)
    return out.reshape(*x.shape[:2], *size)


def resize_images(raw: Raw, size: tuple[int, int] | None, where: str) -> Raw:
    """The same data with images of another size; rows of a table cannot be resized."""
    if size is None:
        return raw
    if raw.train.x.ndim != 4:
        raise DataError(f"{where} holds no images, so data.image_size cannot be used; remove it or set data.shape.")
    return raw.change_examples(lambda x: resize(x, size))


def describe_shape(x: np.ndarray) -> str:
    """The shape of one example in words, such as 1x28x28 or 12 features."""
    shape = x.shape[1:]
    return f"{shape[0]} features" if len(shape) == 1 else "x".join(map(str, shape))
