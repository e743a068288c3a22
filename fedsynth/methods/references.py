"""The rows that belong beside every result: each client alone, FedAvg fine-tuned per client, all data in one place.

`local` and `centralised` do as many epochs as the federated methods (rounds × local epochs). `centralised` is the
upper bound that a federation cannot have: it exists in simulations only.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.loop import LoopConfig, federated_loop, own_weights, start_weights, train
from fedsynth.methods.settings import MethodConfig
from fedsynth.methods.slots import Plain


class Loss(Reply):
    """How training goes."""

    loss: float = leaves("mean training loss")


@task
def train_alone(client: Client, spec: ModelSpec, training: LocalTraining) -> Loss:
    """Go on training the client's own model; it never leaves."""
    start = client.state.get("alone") or start_weights(client.seed, spec, client.schema)
    net = instantiate(spec, client.schema.shape, client.schema.classes, start).to(client.device)
    x, y = client.data.train.tensors()
    result = fit(net, x, y, training, client.rng("batches"))
    client.state["alone"] = weights_of(net)
    return client.release(Loss(loss=result.loss))


@personal("alone")
def alone(client: Client, model: Weights, spec: ModelSpec, settings: dict[str, Any]) -> Weights:
    """The model a client trained by itself; the start model if it never did."""
    return client.state.get("alone") or start_weights(client.seed, spec, client.schema)


@personal("finetuned")
def finetuned(client: Client, model: Weights, spec: ModelSpec, settings: dict[str, Any]) -> Weights:
    """The global model (with what the client keeps to itself), trained a little more on the client's own data."""
    start = own_weights(client, model, spec)
    net = instantiate(spec, client.schema.shape, client.schema.classes, start).to(client.device)
    x, y = client.data.train.tensors()
    fit(net, x, y, LocalTraining(**settings), client.rng("finetune"))
    return weights_of(net)


class LocalConfig(MethodConfig):
    """Training alone has no settings of its own."""


class FinetuneConfig(LoopConfig):
    """Setting of the fine-tuning."""

    protects: ClassVar[bool] = False  # what a client trains after the last round is not

    epochs: int = Field(2, ge=0, description="epochs of fine-tuning at each client, after the last round")


class CentralisedConfig(MethodConfig):
    """Training on pooled data has no settings of its own."""


@method("local", config=LocalConfig)
def local(fed: Federation, cfg: LocalConfig) -> Outcome:
    """Each client alone: no federation, one model per client."""
    state = State(model=None, personal="alone")
    for index in fed.rounds("train", cfg.train.rounds, state):
        fed.broadcast(train_alone, spec=cfg.model, training=cfg.train.local(index))
    return Outcome(None, personal="alone", no_global="every client trains alone")


@method("finetune", config=FinetuneConfig, fedavg_when={})
def finetune(fed: Federation, cfg: FinetuneConfig) -> Outcome:
    """FedAvg, then every client fine-tunes the global model for itself."""
    state = federated_loop(fed, cfg)
    training = cfg.train.local(max(1, cfg.train.rounds)).model_copy(update={"epochs": cfg.epochs})
    return Outcome(
        state.model, personal="finetuned", personal_settings=training.model_dump(), no_global=state.no_global
    )


@method("centralised", config=CentralisedConfig)
def centralised(fed: Federation, cfg: CentralisedConfig) -> Outcome:
    """All data in one place: the upper bound, in simulations only."""
    state = State(model=start_weights(fed.seed, cfg.model, fed.schema))
    for index in fed.rounds("train", cfg.train.rounds, state):
        replies = fed.broadcast(
            train,
            to=[fed.pooled()],
            model=state.model,
            spec=cfg.model,
            training=cfg.train.local(index),
            rule=Plain().as_dict(),
            keeps="nothing",
            sent={},
        )
        for reply in replies.values():
            state.model = reply.model
    return Outcome(state.model)
