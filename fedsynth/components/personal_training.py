"""A model that a client trains for itself, round after round; it never leaves."""

from torch import Tensor

from fedsynth.federation import Client
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import PLAIN, Objective, fit
from fedsynth.learning.weights import Weights, weights_of

LOCAL = "alone"  # in the private state


def local_weights(client: Client, spec: ModelSpec) -> Weights:
    """The model that a client has trained by itself; the one everybody starts from if it never did."""
    return client.state.get(LOCAL) or client.initial_weights(spec)


def train_further(
    client: Client, spec: ModelSpec, training: LocalTraining, x: Tensor, y: Tensor, objective: Objective = PLAIN
) -> float:
    """Train the model that the client keeps to itself on these examples; the mean loss."""
    net = client.build(spec, local_weights(client, spec))
    result = fit(net, x, y, training, client.rng("batches"), objective)
    client.state[LOCAL] = weights_of(net)
    return result.loss
