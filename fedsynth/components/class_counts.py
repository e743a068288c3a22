"""How many examples of each class clients have: what grouping and balancing need to know of them."""

import math

import numpy as np

from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.privacy import DiscreteGaussianEvent, Guarantee
from fedsynth.privacy.discrete import discrete_gaussian_histogram, discrete_gaussian_variance

RELEASED = "released class counts"  # in the private state


class ClassCounts(Reply):
    """The classes of a client."""

    counts: np.ndarray = leaves("number of training examples of each class")


@task
def count_classes(client: Client, epsilon: float | None = None, delta: float = 1e-5, keep: bool = False) -> ClassCounts:
    """Count the classes; with ε, noise is added to every count, which may leave it below 0.

    `keep`: the client remembers what it has released, for what must follow that and not its own counts; asked again, it
    releases the same again, which tells nothing new.
    """
    counts = client.class_counts().astype(np.int64)
    if epsilon is None:
        return client.release(ClassCounts(counts=counts))
    if keep and RELEASED in client.state:
        return client.release(ClassCounts(counts=released_counts(client)), counts=RELEASED_AGAIN)
    noisy, event = discrete_gaussian_histogram(counts, epsilon, delta, client.noise_rng("class counts"))
    if keep:
        client.state.keep_public(RELEASED, noisy)
    return client.release(ClassCounts(counts=noisy), counts=counts_guarantee(event))


def counts_guarantee(event: DiscreteGaussianEvent) -> Guarantee:
    """What is proven about counts with this noise."""
    return Guarantee(
        mechanism=f"discrete Gaussian noise of σ = {event.sigma:.4g} on every count",
        events=(event,),
        unit="record",
        adjacency="add or remove one",
        covered="the counts and all that is made of them",
        not_covered="who takes part",
    )


RELEASED_AGAIN = Guarantee.constant("the noisy counts that were released before", "nothing new is told")


def released_counts(client: Client) -> np.ndarray:
    """The class counts that this client has released, noise included; none of any class where it has not."""
    return np.asarray(client.state.get(RELEASED, np.zeros(client.schema.classes, np.int64)))


def class_counts(
    fed: Federation, epsilon: float | None = None, delta: float = 1e-5, keep: bool = False, attempts: int = 1
) -> dict[str, np.ndarray]:
    """The class counts of all clients that answer, exact or with noise for (ε, δ)."""
    replies = fed.broadcast(count_classes, attempts=attempts, epsilon=epsilon, delta=delta, keep=keep)
    return {client: reply.counts for client, reply in replies.items()}


def noise_of_counts(epsilon: float | None, delta: float) -> float:
    """σ of the noise on every count; 0 where there is none."""
    return 0.0 if epsilon is None else math.sqrt(discrete_gaussian_variance(epsilon, delta))
