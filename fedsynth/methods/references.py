"""The rows that belong beside every result: local-only, FedAvg fine-tuned per client, all data in one place.

`local` and `centralised` do as many epochs as the federated methods (rounds × local epochs). `centralised` is the
upper bound that a federation cannot have: it exists in simulations only.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.local_training import own_weights
from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.components.personal_training import local_weights, train_further
from fedsynth.components.settings import MethodConfig
from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task
from fedsynth.federation.payload import Fields
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.fedavg import train


class Loss(Reply):
    """How training goes."""

    loss: float = leaves("mean training loss")


@task
def train_alone(client: Client, spec: ModelSpec, training: LocalTraining, balanced: bool = False) -> Loss:
    """Go on training the client's own model; it never leaves."""
    x, y = client.data.train.tensors()
    if balanced:
        rows = balanced_rows(client.data.train.y, client.rng("resample"))
        x, y = x[rows], y[rows]
    return client.release(Loss(loss=train_further(client, spec, training, x, y)))


def balanced_rows(labels: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Rows in which every class that is there has as many as the largest: all of its own, some of them again."""
    counts = np.bincount(labels)
    most = int(counts.max(initial=0))
    rows = [np.arange(len(labels))]
    for label in np.flatnonzero((counts > 0) & (counts < most)):
        own = np.flatnonzero(labels == label)
        whole, rest = divmod(most - len(own), len(own))
        rows += [np.tile(own, whole), rng.permutation(own)[:rest]]
    return torch.from_numpy(np.concatenate(rows))


@personal("alone")
def alone(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """The model a client trained by itself; the start model if it never did."""
    return local_weights(client, spec)


@personal("finetuned")
def finetuned(client: Client, model: Weights, spec: ModelSpec, settings: Fields) -> Weights:
    """The global model (with what the client keeps to itself), trained a little more on the client's own data."""
    net = client.build(spec, own_weights(client, model, spec))
    x, y = client.data.train.tensors()
    fit(net, x, y, LocalTraining(**settings), client.rng("finetune"))
    return weights_of(net)


class LocalConfig(MethodConfig):
    """Setting of local-only training."""

    resample: Literal["none", "balanced"] = Field(
        "none", description="balanced: rare classes are repeated until all are as large; an epoch is longer then"
    )


class FinetuneConfig(LoopConfig):
    """Setting of the fine-tuning."""

    protects: ClassVar[bool] = False  # what a client trains after the last round is not

    epochs: int = Field(2, ge=0, description="epochs of fine-tuning at each client, after the last round")


@method("local", config=LocalConfig)
def local(fed: Federation, cfg: LocalConfig) -> Outcome:
    """Local-only: no federation, one model per client."""
    state = State(model=None, personal="alone")
    for index in fed.rounds("train", cfg.train.rounds, state):
        balanced = cfg.resample == "balanced"
        fed.broadcast(train_alone, spec=cfg.model, training=cfg.train.local(index), balanced=balanced)
    return Outcome(None, personal="alone", no_global="every client trains local-only")


@method("finetune", config=FinetuneConfig, fedavg_when={})
def finetune(fed: Federation, cfg: FinetuneConfig) -> Outcome:
    """FedAvg, then every client fine-tunes the global model for itself."""
    outcome = federated_loop(fed, cfg)
    training = cfg.train.local(max(1, cfg.train.rounds)).model_copy(update={"epochs": cfg.epochs})
    return replace(outcome, personal="finetuned", personal_settings=training.model_dump())


@method("centralised", config=MethodConfig)
def centralised(fed: Federation, cfg: MethodConfig) -> Outcome:
    """All data in one place: the upper bound, in simulations only."""
    state = State(model=fed.initial_weights(cfg.model))
    for index in fed.rounds("train", cfg.train.rounds, state):
        training = cfg.train.local(index)
        replies = fed.broadcast(train, to=[fed.pooled()], model=state.model, spec=cfg.model, training=training)
        for reply in replies.values():
            state.model = reply.model
    return Outcome(state.model)
