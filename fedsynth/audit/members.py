"""Can one tell from what a run gave who was trained on? Attacks on the final model and on synthetic images.

Members are the clients' train parts, the others their validation and test parts; the global test set, which belongs to
neither, serves to calibrate.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedsynth.audit.bounds import Membership, clopper_pearson, evaluate_attack
from fedsynth.data.federated import FederatedData
from fedsynth.evaluation.quality import train_oracle
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.report.reading import read_inside

MOST_RECORDS = 20_000  # of members, and of others
MOST_COMPARED = 5_000  # with images, which costs a distance for every pair
MOST_REFERENCE = 2_000  # that a reference model learns from

Examples = tuple[Tensor, Tensor]
MODEL_ATTACKS = {
    "loss": "a small loss means a member",
    "loss by class": "the same, against the mean loss of the class on the global test set",
    "loss by reference": "the same, against the loss of a model that learnt from the global test set",
}


@dataclass(frozen=True)
class Attack:
    """One attack: on what, how, and how well it does."""

    on: str
    how: str
    result: Membership

    def row(self) -> dict[str, str | float | bool]:
        """JSON-ready."""
        return {"on": self.on, "how": self.how, **vars(self.result), "found": self.result.found}


class ClosestRecord(TypedDict):
    """The share of `images` synthetic images that lie closer to a member than to any of as many others."""

    images: int
    records: int
    share: float
    low: float
    high: float


def members_and_others(data: FederatedData, rng: np.random.Generator) -> tuple[Examples, Examples]:
    """Train parts against validation and test parts, of the classes that a client has in both.

    A class of which a client has few examples is all in its train part, so its rarity alone would give members away.
    """
    inside: list[tuple[np.ndarray, np.ndarray]] = []
    outside: list[tuple[np.ndarray, np.ndarray]] = []
    for client in data.clients:
        parts = data.client(client)
        kept_x = np.concatenate([parts.validation.x, parts.test.x])
        kept_y = np.concatenate([parts.validation.y, parts.test.y])
        both = np.intersect1d(parts.train.y, kept_y)
        for found, x, y in ((inside, parts.train.x, parts.train.y), (outside, kept_x, kept_y)):
            rows = np.isin(y, both)
            found.append((x[rows], y[rows]))
    return _joined(inside, rng), _joined(outside, rng)


def _joined(parts: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> Examples:
    x, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    rows = rng.permutation(len(y))[:MOST_RECORDS]  # the first few of them are then of all clients
    x, y = x[rows], y[rows]
    scaled = torch.from_numpy(x).float()
    return (scaled / 255 if x.dtype == np.uint8 else scaled), torch.from_numpy(y.astype(np.int64))


# -- the model ------------------------------------------------------------------------------------------------------


def attack_model(
    weights: dict[str, Tensor],
    spec: ModelSpec,
    data: FederatedData,
    members: Examples,
    others: Examples,
    confidence: float,
) -> list[Attack]:
    """Three attacks by the loss of single records; what they find holds for all three together, with `confidence`."""
    shape, classes = data.schema.shape, data.schema.classes
    model = instantiate(spec, shape, classes, weights).eval()
    x, y = data.test.tensors()
    of_class = _class_means(losses(model, (x, y)), y, classes)
    reference = train_oracle(spec, x[:MOST_REFERENCE], y[:MOST_REFERENCE], classes)
    attacks = []
    each = 1 - (1 - confidence) / len(MODEL_ATTACKS)
    for name in MODEL_ATTACKS:
        scores = []
        for records in (members, others):
            score = -losses(model, records)
            if name == "loss by class":
                score = score + of_class[records[1]]
            elif name == "loss by reference":
                score = score + losses(reference, records)
            scores.append(score.numpy())
        attacks.append(Attack("the final model", name, evaluate_attack(scores[0], scores[1], confidence=each)))
    return attacks


def losses(model: nn.Module, records: Examples) -> Tensor:
    """The cross-entropy of each record."""
    with torch.no_grad():
        parts = [
            F.cross_entropy(model(x), y, reduction="none").double()
            for x, y in zip(records[0].split(1024), records[1].split(1024), strict=True)
        ]
    return torch.cat(parts)


def _class_means(values: Tensor, y: Tensor, classes: int) -> Tensor:
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, y, values)
    return sums / torch.bincount(y, minlength=classes).clamp_min(1)


# -- synthetic images -----------------------------------------------------------------------------------------------


def synthetic_images(folder: Path, shape: tuple[int, ...]) -> Tensor:
    """All images that a run kept in samples/ and that have the shape of its examples."""
    found = [torch.zeros((0, *shape))]
    for file in sorted((folder / "samples").glob("*.safetensors")):
        try:
            images = load(read_inside(folder, f"samples/{file.name}"))["images"]
        except (OSError, ValueError, KeyError, SafetensorError):
            continue  # a picture that cannot be read is no reason to skip the rest
        if tuple(images.shape[1:]) == shape:
            found.append(images.float())
    return torch.cat(found)


def attack_images(images: Tensor, members: Examples, others: Examples, confidence: float) -> Attack:
    """A record near to a synthetic image is rather a member."""
    inside, outside = (nearest(records[0][:MOST_COMPARED], images) for records in (members, others))
    result = evaluate_attack(-inside.numpy(), -outside.numpy(), confidence=confidence)
    return Attack("synthetic images", "distance to the closest synthetic image", result)


def closest_record(images: Tensor, members: Examples, others: Examples, confidence: float) -> ClosestRecord:
    """The share of images that are closer to a member than to any other, of as many of both: 1/2 where none is copied.

    A screen, not a proof: images can give members away without lying near to them.
    """
    count = min(len(members[1]), len(others[1]), MOST_COMPARED)
    to_members, to_others = (nearest(images, records[0][:count]) for records in (members, others))
    closer = int((to_members < to_others).sum())
    low, high = clopper_pearson(closer, len(images), confidence)
    return {"images": len(images), "records": count, "share": closer / len(images), "low": low, "high": high}


def nearest(points: Tensor, among: Tensor) -> Tensor:
    """How far each point is from the nearest of the others."""
    flat = among.flatten(1)
    return torch.cat([torch.cdist(part.flatten(1), flat).min(1).values for part in points.split(512)])
