"""Astraea (Duan et al. 2021, *Self-balancing federated learning with global imbalanced data in mobile systems*; as
GANDALF compares with it, section 5.3.1): classes are balanced over the federation, then clients train sequentially.

(i) Z-score-based augmentation. The server adds up the class counts C of all clients; m and s are their mean and
(sample) standard deviation over the classes, and z = (C − m) / s. A class with z < −1/T is rare, one with z > T common.
Each is moved half way, in the geometric sense, to its threshold: from z to −√(|z|/T), or to √(zT). So clients grow
their part of a rare class to (m − s·√(|z|/T)) / C times its size, by augmented copies, and keep a random share
(m + s·√(zT)) / C of a common class, once, before training. T is 3 (with ten classes no z can reach it).

(ii) Rescheduling. Clients are put greedily into groups whose classes together are nearly uniform. In a round the model
passes through each group from client to client; the server averages the groups' models, weighted by their examples.

Deviations: the paper itself was not at hand; thresholds and ratios of (i) are those of a public re-implementation of
its algorithm 2 (an earlier paper of the same authors grows classes below the mean by (m / C)^α, without z). Copies are
limited to twice the originals of a class, as everywhere here. `mediators` is their number, as in GANDALF, and they are
made once, before (i) changes the counts. Images are not mirrored unless `flip` says so.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsynth.components.additions import COPIES, record_additions
from fedsynth.components.class_counts import class_counts, noise_of_counts
from fedsynth.components.samples import Samples
from fedsynth.components.sequential import SequentialConfig, SequentialLoop
from fedsynth.components.settings import PublishedForm
from fedsynth.components.synthetic_store import KeptSamples, keep_samples
from fedsynth.federation import Client, Done, Federation, Outcome, method, task
from fedsynth.learning.grouping import balanced_groups
from fedsynth.synthesis.static import MOST, Static, fill_classes


def class_ratios(counts: np.ndarray, threshold: float) -> np.ndarray:
    """By how much each class is to grow (more than 1) or shrink (less), from its count over all clients."""
    counts = np.clip(np.asarray(counts, dtype=np.float64), 0, None)
    ratios, mean = np.ones(len(counts)), counts.mean()
    spread = counts.std(ddof=1) if len(counts) > 1 else 0.0
    if spread == 0:
        return ratios
    z = (counts - mean) / spread
    target = mean + spread * np.sign(z) * np.sqrt(np.abs(z) * np.where(z < 0, 1 / threshold, threshold))
    treated = ((z < -1 / threshold) | (z > threshold)) & (counts > 0)  # nobody can copy what nobody has
    ratios[treated] = target[treated] / counts[treated]
    return ratios


@task
def balance_classes(client: Client, ratios: np.ndarray, static: Static) -> Done:
    """Grow and shrink the client's part of every class by these ratios, and keep what comes of it."""
    x, y = client.data.train.tensors()
    counts = client.class_counts()
    more = np.rint(np.maximum(0, ratios - 1) * counts).astype(np.int64)
    images, labels = fill_classes(x, y, more, client.rng("static"), static)
    own = rows_left(y.numpy(), np.rint(np.minimum(1, ratios) * counts).astype(np.int64), client.rng("downsample"))
    if len(labels) or len(own) < len(y):
        samples = Samples(images=images, labels=labels)
        keep_samples(client, samples, own=torch.from_numpy(own) if len(own) < len(y) else None)
    return client.release(Done())


def rows_left(labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random rows, as many of each class as are wanted and at least one of all, in their order."""
    rows = [np.flatnonzero(labels == label) for label in range(len(wanted))]
    kept = [rng.permutation(r)[: max(1, int(n))] if n < len(r) else r for r, n in zip(rows, wanted, strict=True)]
    return np.sort(np.concatenate(kept))


class AstraeaConfig(Static, PublishedForm, SequentialConfig):
    """Settings of Astraea."""

    published: ClassVar[dict[str, Any]] = {"flip": True, "order": "fixed"}

    augment: bool = Field(True, description="balance the classes; false: train sequentially only")
    threshold: float = Field(3.0, gt=0, description="T: classes with z above T shrink, below −1/T grow")
    counts_epsilon: float | None = Field(
        None, gt=0, description="ε of noise on the class counts, at privacy.delta; none given: exact, as published"
    )


@method(
    "astraea",
    config=AstraeaConfig,
    controls={"without synthesis": {"augment": False}},
    fedavg_when={"augment": False, "mediators": 10**6},
    search={"threshold": (0.5, 5.0)},
)
def astraea(fed: Federation, cfg: AstraeaConfig) -> Outcome:
    """Classes are balanced by augmented copies; in groups with an even mix clients train sequentially."""
    loop = SequentialLoop(fed, cfg, local_data=KeptSamples())
    if cfg.augment:
        fed.schema.require_images(1)
    counts = fed.once("count classes", lambda: class_counts(fed, cfg.counts_epsilon, cfg.privacy.delta))
    if cfg.augment:
        fed.once("balance classes", lambda: balance(fed, cfg, counts))
    return loop.run(even_groups(fed, counts, cfg.mediators))


def balance(fed: Federation, cfg: AstraeaConfig, counts: dict[str, np.ndarray]) -> np.ndarray:
    """Tell all clients by how much each class is to change."""
    ratios = class_ratios(sum(counts.values(), np.zeros(fed.schema.classes)), cfg.threshold)
    more = {client: np.clip(ratios - 1, 0, MOST) * np.clip(own, 0, None) for client, own in counts.items()}
    noise = noise_of_counts(cfg.counts_epsilon, cfg.privacy.delta)
    about = "Of a common class clients keep a part only, which is not drawn." if (ratios < 1).any() else ""
    record_additions(fed, COPIES, planned=more, held=counts, noise=noise, about=about)
    if (ratios != 1).any():
        fed.broadcast(balance_classes, ratios=ratios, static=cfg.static_augmentation())
    return ratios


def even_groups(fed: Federation, counts: dict[str, np.ndarray], groups: int) -> list[list[str]]:
    """The clients in groups with a nearly uniform mix, the groups in the order of the clients.

    Who has not released its counts has none, so to speak.
    """
    none = np.zeros(fed.schema.classes)
    found = balanced_groups(np.stack([counts.get(client, none) for client in fed.clients]), groups)
    return [[fed.clients[row] for row in group] for group in sorted(found)]
