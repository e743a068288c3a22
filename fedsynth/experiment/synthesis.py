"""What a run that adds data leaves beside its result: what was added to whom, class means, checks of the samples."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsynth.components.additions import NOTE, is_recorded
from fedsynth.data.dataset import Dataset
from fedsynth.data.federated import FederatedData, RunData
from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import SynthesisCheck
from fedsynth.evaluation.synthesis import Beside, check_synthesis
from fedsynth.federation import Federation
from fedsynth.federation.records import ADDED, ADDED_AT_SERVER, SYNTHETIC
from fedsynth.federation.store import StateStore, write_atomically
from fedsynth.learning.models import Classifier
from fedsynth.seeding import generator

CLASS_MEANS = "real-class-means.safetensors"  # in samples/, of a simulation alone
MOST_CHECKED = 2000  # samples, and records of each kind, that the checks look at


def record_exactly(fed: Federation, store: StateStore) -> None:
    """In a simulation: put what every client has noted in the place of what the server could know."""
    if not is_recorded(fed):
        return
    noted = {c: store.read(c, version).get(NOTE) for c, version in fed.versions.items() if c in fed.clients}
    known = fed.participation.records.get(ADDED)
    if known is None and not any(noted.values()):
        return
    none = [0] * fed.schema.classes
    exact = {"basis": "exact", "clients": fed.clients, "added": [noted.get(c) or none for c in fed.clients]}
    kept = {key: value for key, value in (known or {}).items() if key not in ("held", "noise", "round")}
    fed.record(ADDED, {"kind": "additions", "what": SYNTHETIC} | kept | exact)


def keep_class_means(folder: Path, data: RunData) -> None:
    """The mean of the real training images of each class, to stand beside synthetic ones: only a simulation has it."""
    if not isinstance(data, FederatedData) or not last_shown(folder):
        return
    pooled = data.pooled("train")
    labels = np.unique(pooled.y)
    means = [pooled.subset(np.flatnonzero(pooled.y == label)).tensors()[0].mean(0) for label in labels]
    kept = {"images": torch.stack(means), "labels": torch.from_numpy(labels).to(torch.int64)}
    write_atomically(folder / "samples" / CLASS_MEANS, save(kept))


def checks_of(
    folder: Path, data: RunData, records: Mapping[str, Mapping[str, Any]], model: Classifier | None
) -> list[SynthesisCheck]:
    """Whether the synthesis worked, by what was added and by the samples that the method has shown."""
    recorded = [records[name] for name in (ADDED, ADDED_AT_SERVER) if name in records]
    if recorded and all(not record["what"].startswith(SYNTHETIC) for record in recorded):
        return []  # copies, real samples or, as a control, noise
    if recorded and all(record["basis"] == "exact" and not np.sum(record["added"]) for record in recorded):
        return [SynthesisCheck(check="samples added", mark="failed", words="none at all, to nobody", value=0.0)]
    files = last_shown(folder)
    try:
        parts = [read_samples(file, data.schema.shape, data.schema.classes) for file in files]
    except ConfigError as error:
        return [SynthesisCheck(check="samples", mark="failed", words=str(error))]
    if not parts:
        return []
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    return _checks(x, y, data, model)


def _checks(x: Tensor, y: Tensor, data: RunData, model: Classifier | None) -> list[SynthesisCheck]:
    counts = data.counts()
    names = data.schema.class_names or tuple(map(str, range(data.schema.classes)))
    beside = Beside(
        names=names,
        there=range(len(names)) if counts is None else np.flatnonzero(counts.sum(axis=0)).tolist(),
        training=some_of(data.pooled("train"), MOST_CHECKED) if isinstance(data, FederatedData) else None,
        held_out=some_of(data.test, MOST_CHECKED) if data.test is not None and len(data.test) else None,
        model=model,
    )
    rows = torch.from_numpy(generator(0, "checked samples").permutation(len(y))[:MOST_CHECKED])
    return check_synthesis((x[rows], y[rows]), beside)


def last_shown(folder: Path) -> list[Path]:
    """The samples of the last round in which a method showed some."""
    found = [
        (int(match[1]), file)
        for file in sorted((folder / "samples").glob("*.safetensors"))
        if (match := re.search(r"-round-(\d+)$", file.stem))
    ]
    last = max((round for round, _ in found), default=0)
    return [file for round, file in found if round == last]


def _arrays(file: Path) -> dict[str, Tensor]:
    """The arrays of an NPZ file."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in ("images", "labels")}


def read_samples(file: Path, shape: Sequence[int], classes: int) -> tuple[Tensor, Tensor]:
    """Images and labels that fit the data, or a sentence that says why not."""
    try:
        tensors = _arrays(file) if file.suffix == ".npz" else load(file.read_bytes())
        x, y = tensors["images"].float(), tensors["labels"].long()
    except (OSError, SafetensorError, KeyError, ValueError, BadZipFile) as error:
        raise ConfigError(f"{file} cannot be read as images and labels: {error}.") from None
    if tuple(x.shape[1:]) != tuple(shape) or y.shape != x.shape[:1] or not len(y):
        raise ConfigError(
            f"{file}: images {tuple(x.shape)} and labels {tuple(y.shape)} do not fit data of shape {shape}."
        )
    if int(y.min()) < 0 or int(y.max()) >= classes or not torch.isfinite(x).all():
        raise ConfigError(f"{file}: labels must be 0 to {classes - 1} and all pixels finite numbers.")
    return x, y


def some_of(data: Dataset, most: int) -> tuple[Tensor, Tensor]:
    """Examples in a drawn order, at most so many."""
    rows = generator(0, "quality").permutation(len(data))[:most]
    return data.subset(rows).tensors()
