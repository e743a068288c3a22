"""The store of synthetic samples: what a client keeps beside its own examples and trains on."""

import torch
from torch import Tensor

from fedsynth.components.additions import note_additions
from fedsynth.components.samples import Samples, as_bytes
from fedsynth.components.slots import LocalData
from fedsynth.federation import Client
from fedsynth.learning.models import Classifier

KEPT = "synthetic samples"  # in the private state


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
    note_additions(client, samples.labels)


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


class KeptSamples(LocalData, name="kept"):
    """The client's own examples and those it keeps; without any, its own alone."""

    def active(self, index: int) -> bool:
        return True

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: Samples | None
    ) -> tuple[Tensor, Tensor]:
        return train_examples(client, x, y)


class GeneratedSamples(KeptSamples, name="generated"):
    """The same, where they were made with generators that are protected."""

    @property
    def post_processing(self) -> bool:
        return True
