"""Examples that a client keeps beside its own and trains on: made by a generator, moved about, or sent by others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsynth.components.slots import LocalData
from fedsynth.federation import Client
from fedsynth.learning.models import Classifier

MADE = "made"  # in the private state


def keep_made(
    client: Client,
    images: Tensor,
    labels: Tensor,
    *,
    exact: bool = False,
    own: Tensor | None = None,
    public: bool = False,
) -> None:
    """Keep examples for the rounds to come, in place of those kept before.

    They are stored as bytes, a quarter of the size: pixels between 0 and 1 are rounded to 1/255, which no made image
    suffers from. Others, and those that must stay `exact`, are stored as they are. `own` are the rows of the client's
    own examples that it goes on to train on, where it shall not use all. `public`: neither the images nor how many of
    which class follow from its records but through protected releases; only then can it train on them by DP-SGD.
    """
    if not exact and images.is_floating_point() and images.numel() and images.min() >= 0 and images.max() <= 1:
        images = (images * 255).round().to(torch.uint8)
    kept = {"images": images, "labels": labels.to(torch.int64)}
    keep = client.state.keep_public if public and own is None else client.state.__setitem__
    keep(MADE, kept if own is None else kept | {"own": own})


def made_by(client: Client) -> tuple[Tensor, Tensor] | None:
    """The kept examples (float32, as the client's own are read) and their labels; None where nothing was kept."""
    kept = client.state.get(MADE)
    if kept is None:
        return None
    images = kept["images"].to(torch.float32)
    return (images / 255 if kept["images"].dtype == torch.uint8 else images), kept["labels"]


class KeptImages(LocalData, name="kept"):
    """The client's own examples and those it keeps; without any, its own alone."""

    def active(self, index: int) -> bool:
        return True

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        made = made_by(client)
        if made is None:
            return x, y
        own = client.state[MADE].get("own")
        if own is not None:
            x, y = x[own], y[own]
        return torch.cat([x, made[0].to(x)]), torch.cat([y, made[1]])
