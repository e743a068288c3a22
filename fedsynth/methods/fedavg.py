"""FedAvg (McMahan et al. 2017, algorithm 1): clients train the received model, the server averages what they send.

Deviations: BatchNorm's running statistics are averaged like the weights by default (`train.norm_buffers`); the paper
has no BatchNorm. Weights are the numbers of training examples of the clients that answered.
"""

from fedsynth.components.local_training import Update
from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.federation import Client, Federation, Outcome, State, method, task
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of


@task
def train(client: Client, model: Weights, spec: ModelSpec, training: LocalTraining) -> Update:
    """Runs where the data is: train the received model on it (ClientUpdate)."""
    net = client.build(spec, model)
    x, y = client.data.train.tensors()
    result = fit(net, x, y, training, client.rng("batches"))
    update = Update(model=weights_of(net), examples=len(y), loss=result.loss, steps=result.steps)
    return client.release(update)


@method("fedavg", config=LoopConfig, fedavg_when={})
def fedavg(fed: Federation, cfg: LoopConfig) -> Outcome:
    """Average of locally trained models, weighted by examples."""
    if cfg.changes_the_loop:  # another value in a slot, protected updates, BatchNorm's statistics apart
        return federated_loop(fed, cfg)
    state = State(model=fed.initial_weights(cfg.model))
    for round in fed.rounds("train", cfg.train.rounds, state):
        replies = fed.broadcast(
            train, to=fed.sample(cfg.train.fraction), model=state.model, spec=cfg.model, training=cfg.train.local(round)
        )
        if replies:  # where nobody could be reached, the model waits
            state.model = weighted_mean((reply.model, reply.examples) for reply in replies.values())
    return Outcome(state.model)
