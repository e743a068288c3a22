"""Stand-ins for synthetic samples, by which a gain is evaluated: noise, or real images, with the same labels."""

from typing import Any

import numpy as np
from torch import Tensor

from fedsynth.components.samples import Samples
from fedsynth.federation import Client, Federation, Reply, leaves, task

REAL_SAMPLES = 200  # real images of each class for the upper bound
CROSSED = "Real images crossed between clients, as an upper bound: this is a control, not a method."

Controls = dict[str, dict[str, Any]]
"""Settings of a method by the name of the control that they make."""


class RealSamples(Reply):
    """Real images, for an upper bound in a simulation, or as what a method shares openly."""

    images: Tensor = leaves("real images", raw=True)
    labels: Tensor = leaves("their labels", raw=True)


@task
def draw_real_samples(client: Client, per_class: int, purpose: str = "real samples") -> RealSamples:
    """Real training images of every class."""
    rng = client.rng(purpose)
    data = client.data.train
    rows = [rng.permutation(np.flatnonzero(data.y == label))[:per_class] for label in range(client.schema.classes)]
    images, labels = data.subset(np.concatenate(rows)).tensors()
    return client.release(RealSamples(images=images, labels=labels))


def draw_from_all(fed: Federation, per_class: int = REAL_SAMPLES) -> Samples:
    """Real images of every class, of the pretended client that holds everything: what perfect images would give."""
    fed.note(CROSSED)
    pooled = fed.pooled()
    reply = fed.broadcast(draw_real_samples, to=[pooled], per_class=per_class)[pooled]
    return Samples(images=reply.images, labels=reply.labels)


def stand_ins(
    kind: str, labels: Tensor, noise: Tensor, real: Samples | None, rng: np.random.Generator
) -> Tensor | None:
    """Noise as it is, or real images, with these labels; None where images are to be synthesised.

    A class that nobody has is noise in both.
    """
    if kind not in ("noise", "real"):
        return None
    images = noise.clone()
    if real is not None and kind == "real":
        rows = {label: np.flatnonzero(real.labels.numpy() == label) for label in labels.unique().tolist()}
        for position, label in enumerate(labels.tolist()):
            if len(rows[label]):
                images[position] = real.images[int(rng.choice(rows[label]))]
    return images
