"""What the contestants train: the same images, the same client index lists, the same number of steps. numpy only.

W1 is Fed-ZDA's setting: 50,000 images of Fashion-MNIST, 100 clients with 500 images of about two classes (McMahan's
shards), 10 picked a round, E=5, B=10, SGD 0.02. W2 is FedDPMS's: 10 clients by Dirichlet(0.5), all take part, E=5,
B=64, Adam 1e-3. `growth-N` has N clients with 20 random 8x8 images each and always picks 10: the work stays the same
while the federation grows.
"""

from __future__ import annotations

import functools
import gzip
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

FOLDERS = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", ".")
GROWTH = (100, 1_000, 10_000, 100_000)
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """Everything the contestants must agree on besides the data."""

    name: str
    model: str  # fedsynth's name of the model; the plain loop writes the same layers out
    clients: int
    picked: int
    epochs: int
    batch_size: int
    optimizer: str
    lr: float


W1 = Workload("W1", "zda_cnn", clients=100, picked=10, epochs=5, batch_size=10, optimizer="sgd", lr=0.02)
W2 = Workload("W2", "cnn", clients=10, picked=10, epochs=5, batch_size=64, optimizer="adam", lr=1e-3)


def workload(name: str) -> Workload:
    """The workload of a name: W1, W2 or growth-N."""
    known = {w.name: w for w in (W1, W2)}
    if name.startswith("growth-"):
        return replace(W1, name=name, model="cnn", clients=int(name.removeprefix("growth-")))
    return known[name]


@dataclass(frozen=True)
class Split:
    """A pool of images, the rows of it that each client holds (client after client), and a test set."""

    x: np.ndarray  # (n, 1, height, width), uint8
    y: np.ndarray
    rows: np.ndarray
    bounds: np.ndarray  # client i holds rows[bounds[i] : bounds[i + 1]]
    test_x: np.ndarray
    test_y: np.ndarray

    def rows_of(self, client: int) -> np.ndarray:
        """The rows of one client."""
        return self.rows[self.bounds[client] : self.bounds[client + 1]]

    def steps(self, client: int, work: Workload) -> int:
        """How many optimiser steps one visit of a client takes."""
        return work.epochs * -(-int(self.bounds[client + 1] - self.bounds[client]) // work.batch_size)

    def save(self, file: Path) -> None:
        """Write the split, uncompressed."""
        np.savez(file, **vars(self))

    @classmethod
    def load(cls, file: Path) -> Split:
        """Read what `save` wrote."""
        with np.load(file) as arrays:
            return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})


@functools.cache
def load_once(file: str) -> Split:
    """A saved split, read once in every process."""
    return Split.load(Path(file))


def prepare(name: str, share: float = 1.0, seed: int = 0) -> Split:
    """Make the split of a workload; `share` keeps that fraction of every client's images, for quick runs."""
    rng = np.random.default_rng(seed)
    work = workload(name)
    if name.startswith("growth-"):
        return _random_images(work.clients, rng)
    x, y, test_x, test_y = load_fashion_mnist()
    if name == "W1":
        x, y = x[:50_000], y[:50_000]
        parts = shards(y, work.clients, per_client=2, rng=rng)
    else:
        parts = dirichlet(y, work.clients, beta=0.5, rng=rng)
    parts = [rng.permutation(part)[: max(1, round(len(part) * share))] for part in parts]
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return Split(x, y, np.concatenate(parts), bounds, test_x, test_y)


def shards(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Sort by label, cut into equal shards, deal each client a few of them."""
    by_label = np.argsort(labels, kind="stable")
    pieces = np.array_split(by_label, clients * per_client)
    order = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[piece] for piece in mine]) for mine in order]


def dirichlet(labels: np.ndarray, clients: int, beta: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Divide every class over the clients in proportions drawn from a Dirichlet distribution."""
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(CLASSES):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(rng.dirichlet(np.full(clients, beta)))[:-1] * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _random_images(clients: int, rng: np.random.Generator, each: int = 20) -> Split:
    total = clients * each
    x = rng.integers(0, 256, (total, 1, 8, 8), dtype=np.uint8)
    y = rng.integers(0, CLASSES, total)
    test_y = np.arange(100) % CLASSES
    test_x = rng.integers(0, 256, (100, 1, 8, 8), dtype=np.uint8)
    return Split(x, y, np.arange(total), np.arange(clients + 1) * each, test_x, test_y)


def load_fashion_mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train and test images and labels from the IDX files under FEDSYNTH_DATA."""
    if not os.environ.get("FEDSYNTH_DATA"):
        raise SystemExit(
            "Set FEDSYNTH_DATA to the folder that holds fashion-mnist/train-images-idx3-ubyte.gz and so on."
        )
    arrays = [
        read_idx(_find(f"{part}-{kind}-ubyte")) for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    x, y, test_x, test_y = arrays
    return x[:, None], y.astype(np.int64), test_x[:, None], test_y.astype(np.int64)


def _find(stem: str) -> Path:
    root = Path(os.environ["FEDSYNTH_DATA"])
    for folder in FOLDERS:
        for name in (stem, f"{stem}.gz"):
            if (root / folder / name).is_file():
                return root / folder / name
    raise SystemExit(f"FEDSYNTH_DATA = {root} holds no {stem}.gz, neither in it nor in {FOLDERS[0]}/.")


def read_idx(file: Path) -> np.ndarray:
    """One IDX file, packed or not."""
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
