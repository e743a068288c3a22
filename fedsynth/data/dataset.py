"""A labelled data set in memory, and the parts of it that one client holds."""

from dataclasses import dataclass

import numpy as np
import torch

from fedsynth.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """Examples `x` (n, *shape) and labels `y` (n,).

    Pixels stay as they are stored (uint8 or float32) and become float32 in [0, 1] only when `tensors`
    is called, so that a large pool costs one byte a pixel in memory.
    """

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, rows: np.ndarray) -> "Dataset":
        """The examples at `rows`, copied."""
        return Dataset(self.x[rows], self.y[rows])

    def counts(self, classes: int) -> np.ndarray:
        """How many examples each class has."""
        return np.bincount(self.y, minlength=classes)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 examples (uint8 is divided by 255) and int64 labels."""
        x = torch.from_numpy(np.require(self.x, requirements=("C", "W")))
        x = x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x.to(torch.float32)
        return x, torch.from_numpy(np.require(self.y, requirements=("C", "W"))).to(torch.int64)


@dataclass(frozen=True)
class ClientData:
    """What one client holds: disjoint train, validation and test parts.

    `declared` is the number of training examples that the client declares as public; the true one, unless it says so.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    declared: int | None = None

    @property
    def public_size(self) -> int:
        """The number of training examples that everybody may know: private training goes by it alone."""
        return len(self.train) if self.declared is None else self.declared


@dataclass(frozen=True)
class Schema:
    """What every client of a federation agrees on: the shape of one example and the classes."""

    shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...] = ()

    def require_images(self, smallest: int = 4) -> None:
        """Refuse data that is not images of at least so many pixels a side."""
        if len(self.shape) != 3 or min(self.shape[1:]) < smallest:
            raise UserError(
                f"This method needs images of at least {smallest}x{smallest} pixels, but an example of this data has "
                f"shape {self.shape}; choose a method that makes no images, or give data.shape."
            )
