"""Small federations for the tests of methods: data in memory, no run folder, everything that crosses the line seen."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedsynth.methods  # noqa: F401 - registers the methods
from fedsynth.components.settings import TrainConfig
from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.engines.local import LocalEngine
from fedsynth.engines.wire import WireEngine
from fedsynth.federation import Federation, Outcome
from fedsynth.federation.host import TaskHost
from fedsynth.federation.methods import find_method
from fedsynth.federation.payload import decode
from fedsynth.federation.port import Answers, Engine
from fedsynth.federation.store import StateStore
from fedsynth.learning.models import ModelSpec

Weights = dict[str, torch.Tensor]


def five_clients() -> FederatedData:
    """A few hundred digits, unevenly over five clients."""
    partition = {"name": "dirichlet", "num_clients": 5, "alpha": 0.5}
    return load_federated(DataConfig(name="digits", limit=250), partition, seed=3)


class Clients:
    """Whatever data a test wants its clients to have."""

    def __init__(self, train: Mapping[str, tuple[np.ndarray, np.ndarray]], classes: int) -> None:
        self.train = {name: Dataset(x, y) for name, (x, y) in train.items()}
        self.clients = list(self.train)
        self.schema = Schema(self.train[self.clients[0]].x.shape[1:], classes)

    def client(self, client: str) -> ClientData:
        part = self.train[client]
        return ClientData(part, part.subset(np.arange(len(part) // 2)), part.subset(np.arange(len(part) // 3)))

    def pooled(self, part: str) -> Dataset:
        parts = [getattr(self.client(client), part) for client in self.clients]
        return Dataset(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))


def some_clients(*sizes: int, features: int = 3, classes: int = 3, seed: int = 5) -> Clients:
    """Clients "a", "b", … with vectors of their own distribution and skewed labels."""
    rng = np.random.default_rng(seed)
    train = {}
    for position, size in enumerate(sizes):
        x = rng.normal(loc=rng.normal(size=features), size=(size, features)).astype(np.float32)
        y = np.where(rng.random(size) < 0.6, position % classes, rng.integers(classes, size=size))
        train["abcdefgh"[position]] = (x, y.astype(np.int64))
    return Clients(train, classes)


@dataclass
class Ask:
    """One request to some clients, and what they sent back; read when a test looks at it."""

    task: str
    sent: dict[str, bytes]
    received: dict[str, bytes]

    @cached_property
    def requests(self) -> dict[str, dict[str, Any]]:
        return {client: decode(blob) for client, blob in self.sent.items()}

    @cached_property
    def answers(self) -> dict[str, dict[str, Any]]:
        return {client: decode(blob) for client, blob in self.received.items()}

    @property
    def round(self) -> int:
        return next(iter(self.requests.values()))["round"]

    @property
    def name(self) -> str:
        """The task's own name, without its module."""
        return self.task.rsplit(".", 1)[-1]

    @property
    def replies(self) -> dict[str, dict[str, Any]]:
        return {client: answer["fields"] for client, answer in self.answers.items()}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request, where all got the same."""
        return next(iter(self.requests.values()))["fields"]

    @property
    def training(self) -> dict[str, Any]:
        """How clients were asked to train."""
        return self.fields.get("request", self.fields)["training"]


class Spy:
    """Reads along, and may hand the replies on in another order."""

    clock = 0.0

    def __init__(self, inner: Engine, shuffle: Callable[[list[str]], list[str]] | None = None) -> None:
        self.inner, self.shuffle = inner, shuffle
        self.asks: list[Ask] = []

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        answers = self.inner.ask(task, requests, deadline)
        received = {client: answers.replies[client].read() for client in requests}
        self.asks.append(Ask(task, dict(requests), received))
        if self.shuffle:
            answers.replies = {client: answers.replies[client] for client in self.shuffle(list(answers.replies))}
        return answers

    def close(self) -> None:
        self.inner.close()


@dataclass
class Finished:
    """A method that was run to its end."""

    outcome: Outcome
    fed: Federation
    asks: list[Ask] = field(repr=False)
    store: StateStore = field(repr=False)

    @property
    def model(self) -> Weights:
        assert self.outcome.model is not None
        return self.outcome.model

    def rounds(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.name == "train"]

    def state(self, client: str) -> dict[str, Any]:
        """What a client keeps to itself at the end."""
        return self.store.read(client, self.fed._versions[client])


def run(
    method: str,
    data: Any,
    folder: Path,
    model: str | ModelSpec = "mlp",
    settings: Mapping[str, Any] | None = None,
    engine: str = "local",
    seed: int = 0,
    clients: Sequence[str] | None = None,
    shuffle: Callable[[list[str]], list[str]] | None = None,
    **train: Any,
) -> Finished:
    """Run a method without a run folder; `train` are settings of the [train] section."""
    spec = model if isinstance(model, ModelSpec) else ModelSpec(name=model)
    defaults = {"rounds": 2, "local_epochs": 1, "batch_size": 16}
    found = find_method(method)
    config = found.config(train=TrainConfig(**defaults | train), model=spec, **settings or {})
    store = StateStore(folder / uuid.uuid4().hex)
    inner = LocalEngine(TaskHost(data, store)) if engine == "local" else WireEngine(lambda: TaskHost(data, store))
    spy = Spy(inner, shuffle)
    fed = Federation(spy, clients or data.clients, data.schema, seed, pooled=True)
    return Finished(found.program(fed, config), fed, spy.asks, store)


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of weights have the same entries, bit-identical."""
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def farthest(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest difference between two sets of weights."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


SMALL = {
    "mlp": ModelSpec(name="mlp", hidden=(12,)),
    "cnn": ModelSpec(name="cnn", channels=(4, 6), hidden=(8,)),
    "zda_cnn": ModelSpec(name="zda_cnn", channels=(4, 6)),
}
"""The papers' kinds of networks, small; the last has BatchNorm."""
