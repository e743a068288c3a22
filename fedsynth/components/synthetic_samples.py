"""Labelled images on their way between server and clients, and those a client keeps beside its own examples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsynth.federation import Client, Message

KEPT = "synthetic samples"  # in the private state


class Samples(Message):
    """Images with their labels. Stored as bytes (0 to 255) they take a quarter of the room."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self) -> Tensor:
        """The images as networks take them."""
        return self.images.to(torch.float32) / (255 if self.images.dtype == torch.uint8 else 1)

    def rows(self, rows: Tensor) -> Samples:
        """Some of them."""
        return Samples(images=self.images[rows], labels=self.labels[rows])

    @classmethod
    def joined(cls, parts: list[Samples]) -> Samples:
        """All of them, one after the other."""
        return cls(images=torch.cat([p.images for p in parts]), labels=torch.cat([p.labels for p in parts]))

    @classmethod
    def none(cls, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Samples:
        """No images of this shape."""
        return cls(images=torch.zeros((0, *shape), dtype=dtype), labels=torch.zeros(0, dtype=torch.int64))


def as_bytes(images: Tensor) -> Tensor:
    """Pixels between 0 and 1, rounded to 1/255: no synthetic image suffers from that."""
    return (images * 255).round().to(torch.uint8)


def keep_samples(
    client: Client, samples: Samples, *, exact: bool = False, own: Tensor | None = None, public: bool = False
) -> None:
    """Keep samples for the rounds to come, in place of those kept before.

    Pixels between 0 and 1 are stored as bytes; others, and those that must stay `exact`, as they are. `own` are the
    rows of the client's own examples that it goes on to train on, where it shall not use all. `public`: neither the
    images nor how many of which class follow from its records but through protected releases; only then can it train
    on them by DP-SGD.
    """
    images = samples.images
    if not exact and images.is_floating_point() and images.numel() and images.min() >= 0 and images.max() <= 1:
        images = as_bytes(images)
    kept = {"images": images, "labels": samples.labels.to(torch.int64)}
    keep = client.state.keep_public if public and own is None else client.state.__setitem__
    keep(KEPT, kept if own is None else kept | {"own": own})


def kept_samples(client: Client) -> Samples | None:
    """The kept samples, as float32 like the client's own examples; None where nothing was kept."""
    kept = client.state.get(KEPT)
    if kept is None:
        return None
    samples = Samples(images=kept["images"], labels=kept["labels"])
    return Samples(images=samples.floats(), labels=samples.labels)


def train_examples(client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The client's own examples and those it keeps; without any, its own alone."""
    kept = kept_samples(client)
    if kept is None:
        return x, y
    own = client.state[KEPT].get("own")
    if own is not None:
        x, y = x[own], y[own]
    return torch.cat([x, kept.images.to(x)]), torch.cat([y, kept.labels])
