"""Labelled images on their way between server and clients."""

import torch
from torch import Tensor

from fedsynth.federation import Message


class Samples(Message):
    """Images with their labels. Stored as bytes (0 to 255) they take a quarter of the room."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self) -> Tensor:
        """The images as networks take them."""
        return self.images.to(torch.float32) / (255 if self.images.dtype == torch.uint8 else 1)

    def rows(self, rows: Tensor) -> "Samples":
        """Some of them."""
        return Samples(images=self.images[rows], labels=self.labels[rows])

    @classmethod
    def joined(cls, parts: "list[Samples]") -> "Samples":
        """All of them, one after the other."""
        return cls(images=torch.cat([p.images for p in parts]), labels=torch.cat([p.labels for p in parts]))

    @classmethod
    def none(cls, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> "Samples":
        """No images of this shape."""
        return cls(images=torch.zeros((0, *shape), dtype=dtype), labels=torch.zeros(0, dtype=torch.int64))


def as_bytes(images: Tensor) -> Tensor:
    """Pixels between 0 and 1, rounded to 1/255: no synthetic image suffers from that."""
    return (images * 255).round().to(torch.uint8)
