"""BatchNorm's statistics in place of averages: measured anew for each new model (`norm_buffers = "recalibrate"`), or
those of all the clients' data together, from what they send anyway (`norm_buffers = "pooled"`).
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.learning.aggregators import pooled_statistics
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.training import measure_batch_norm
from fedsynth.learning.weights import Weights, buffer_entries, weights_of

if TYPE_CHECKING:
    from fedsynth.components.local_training import Update


class Measured(Reply):
    """Normalisation statistics of the received model on a client's data."""

    buffers: Weights = leaves("BatchNorm statistics of the global model, measured on the client's data")
    examples: int = leaves("number of training examples")


@task
def measure(client: Client, model: Weights, spec: ModelSpec) -> Measured:
    """Measure BatchNorm's statistics of the global model on the client's data."""
    net = client.build(spec, model)
    x, y = client.data.train.tensors()
    measure_batch_norm(net, x)
    weights = weights_of(net)
    return client.release(Measured(buffers={n: weights[n] for n in sorted(buffer_entries(net))}, examples=len(y)))


def recalibrate(fed: Federation, spec: ModelSpec, model: Weights, clients: list[str]) -> Weights:
    """BatchNorm's statistics of the new model over the data of the round's clients, from what each of them measured."""
    replies = fed.broadcast(measure, to=clients, model=model, spec=spec)
    return pooled_statistics((reply.buffers, reply.examples) for reply in replies.values()) if replies else {}


def pooled_buffers(replies: "Iterable[Update]", names: Collection[str], equal: bool) -> Weights:
    """BatchNorm's statistics of the clients' data together, from those in their updates.

    An average of variances alone leaves out how far the clients' means lie apart.
    """
    return pooled_statistics(
        ({name: reply.model[name] for name in sorted(names)}, 1 if equal else reply.examples) for reply in replies
    )
