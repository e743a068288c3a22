"""How many examples of each class clients have: what grouping and balancing need to know of them."""

from __future__ import annotations

import numpy as np

from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.privacy import Guarantee
from fedsynth.privacy.discrete import discrete_gaussian_histogram


class ClassCounts(Reply):
    """The classes of a client."""

    counts: np.ndarray = leaves("number of training examples of each class")


@task
def count_classes(client: Client, epsilon: float | None = None, delta: float = 1e-5) -> ClassCounts:
    """Count the classes; with ε, noise is added to every count, which may leave it below 0."""
    counts = client.data.train.counts(client.schema.classes).astype(np.int64)
    if epsilon is None:
        return client.release(ClassCounts(counts=counts))
    noisy, event = discrete_gaussian_histogram(counts, epsilon, delta, client.noise_rng("class counts"))
    guarantee = Guarantee(
        mechanism=f"discrete Gaussian noise of σ = {event.sigma:.4g} on every count",
        events=(event,),
        unit="record",
        adjacency="add or remove one",
        covered="the counts and all that is made of them",
        not_covered="who takes part",
    )
    return client.release(ClassCounts(counts=noisy), counts=guarantee)


def class_counts(fed: Federation, epsilon: float | None = None, delta: float = 1e-5) -> dict[str, np.ndarray]:
    """The class counts of all clients that answer, exact or with noise for (ε, δ)."""
    replies = fed.broadcast(count_classes, epsilon=epsilon, delta=delta)
    return {client: reply.counts for client, reply in replies.items()}
