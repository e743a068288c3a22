"""Steady averaging: FedAvg whose result is a moving average of the server's models, after one long visit to everybody.

FedAvg on skewed data swings from round to round. The server keeps s ← β s + (1 − β) w of its models w and gives
back s. Before the first round all clients train once from the same start (`warmup_epochs`), so that s begins well.
"""

from __future__ import annotations

from pydantic import Field

from fedsynth.components.loop import start_weights
from fedsynth.components.settings import MethodConfig
from fedsynth.federation import Client, Federation, Outcome, Reply, State, leaves, method, task
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of


class Learned(Reply):
    """What a client sends. Every field says, in plain words, what leaves."""

    model: Weights = leaves("weights of the model after local training")
    examples: int = leaves("number of training examples")


@task
def learn(client: Client, model: Weights, spec: ModelSpec, training: LocalTraining) -> Learned:
    """Runs where the data is: train the received model and send it back."""
    net = instantiate(spec, client.schema.shape, client.schema.classes, model).to(client.device)
    x, y = client.data.train.tensors()
    fit(net, x, y, training, client.rng("batches"))
    return client.release(Learned(model=weights_of(net), examples=len(y)))


class SteadyConfig(MethodConfig):
    """The keys that `[method]` may have; `[train]` and `[model]` arrive as `cfg.train` and `cfg.model`."""

    beta: float = Field(0.5, ge=0, lt=1, description="share of the old average that stays; 0 is FedAvg")
    warmup_epochs: int = Field(0, ge=0, description="epochs at every client before the first round")


@method("steady", config=SteadyConfig, fedavg_when={"beta": 0.0})
def steady(fed: Federation, cfg: SteadyConfig) -> Outcome:
    """A moving average of FedAvg's models."""
    start = fed.once("warm up", lambda: warm_up(fed, cfg))
    state = State(model=start, newest=start)  # `model` is what is validated after each round
    for index in fed.rounds("train", cfg.train.rounds, state):
        replies = fed.broadcast(
            learn,
            to=fed.sample(cfg.train.fraction),
            model=state.newest,
            spec=cfg.model,
            training=cfg.train.local(index),
        )
        if not replies:  # nobody could be reached: the models wait
            continue
        state.newest = weighted_mean((reply.model, reply.examples) for reply in replies.values())
        state.model = weighted_mean([(state.model, cfg.beta), (state.newest, 1 - cfg.beta)])
    return Outcome(state.model)


def warm_up(fed: Federation, cfg: SteadyConfig) -> Weights:
    """One visit to every client, all from the same start."""
    start = start_weights(fed.seed, cfg.model, fed.schema)
    if cfg.warmup_epochs == 0:
        return start
    training = cfg.train.local(1).model_copy(update={"epochs": cfg.warmup_epochs})
    replies = fed.broadcast(learn, model=start, spec=cfg.model, training=training)
    return weighted_mean((reply.model, reply.examples) for reply in replies.values()) if replies else start
