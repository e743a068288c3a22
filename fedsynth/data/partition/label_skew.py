"""Partitioners that give clients unequal classes: dirichlet, lognormal, n_class, major_minor, few_sample,
multimodal."""

from typing import Literal

import numpy as np
from pydantic import AliasChoices, Field, field_validator

from fedsynth.data.partition import allocation
from fedsynth.data.partition.registry import Groups, MinSize, PartitionConfig, Parts, partitioner
from fedsynth.errors import DataError


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The labels that occur, each example's position among them, and how often each occurs."""
    return np.unique(labels, return_inverse=True, return_counts=True)


class DirichletConfig(PartitionConfig):
    """Keys of `dirichlet`."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        0.5, gt=0, validation_alias=AliasChoices("alpha", "beta"), description="Small: strongly skewed."
    )
    min_size: MinSize = 10
    self_balancing: bool = Field(
        False, description="Give no more of the next classes to a client that has its fair share already."
    )


@partitioner(DirichletConfig, aliases=("noniid-labeldir", "dir", "lda", "DirichletPartitioner"))
def dirichlet(labels: np.ndarray, config: DirichletConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Hsu et al. 2019 and NIID-Bench: each class is cut over the clients by a Dirichlet(alpha) draw."""
    _, codes, supply = _classes(labels)
    clients = config.num_clients
    counts = np.zeros((clients, len(supply)), dtype=np.int64)
    fair, sizes = len(labels) / clients, np.zeros(clients)
    for label in rng.permutation(len(supply)):
        proportions = rng.dirichlet(np.full(clients, config.alpha))
        if config.self_balancing:
            open_share = proportions * (sizes < fair)
            proportions = open_share / open_share.sum() if open_share.sum() > 0 else proportions
        counts[:, label] = allocation.split_by_proportions(int(supply[label]), proportions)
        sizes += counts[:, label]
    return allocation.deal(allocation.raise_to_minimum(counts, config.min_size, rng), codes, rng)


class LognormalConfig(PartitionConfig):
    """Keys of `lognormal`."""

    name: Literal["lognormal"] = "lognormal"
    min_size: MinSize = 10
    mu: float = Field(1.0, description="Mean of the logarithm of the size (eq. 16).")
    sigma: float = Field(2.0, ge=0, description="Standard deviation of the logarithm of the size (eq. 16).")
    bias: int = Field(10, ge=0, description="Added to every size (eq. 16).")
    gamma: float = Field(1.0, gt=0, description="Classes are Dirichlet(gamma x prior) (eq. 17); small: skewed.")
    use_all: bool = Field(False, description="Scale the sizes so that all examples are used.")


@partitioner(LognormalConfig, aliases=("log-normal", "log_normal"))
def lognormal(labels: np.ndarray, config: LognormalConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """AggEnhance's split: long-tailed sizes (eq. 16) and Dirichlet(gamma x prior) classes (eq. 17).

    With the published numbers a client has 10 + exp(N(1, 2)) examples, 30 on average, so most of a large
    data set is left out unless `use_all` is set. Sizes that ask for more than there is are scaled down.
    """
    _, codes, supply = _classes(labels)
    tail = np.exp(np.clip(rng.normal(config.mu, config.sigma, config.num_clients), -30, 30))
    sizes = np.maximum(config.bias + np.floor(tail).astype(np.int64), config.min_size)
    if config.use_all or int(sizes.sum()) > len(labels):
        floor = max(config.bias, config.min_size)
        if floor * config.num_clients > len(labels):
            floor = config.min_size
        sizes = allocation.apportion(len(labels), tail, least=floor)
    wanted = rng.dirichlet(config.gamma * supply / len(labels), size=config.num_clients)
    counts = rng.multinomial(sizes, wanted)
    return allocation.deal(allocation.fit_to_supply(counts, supply, rng), codes, rng)


class NClassConfig(PartitionConfig):
    """Keys of `n_class`."""

    name: Literal["n_class"] = "n_class"
    n: int = Field(
        2,
        ge=1,
        validation_alias=AliasChoices("n", "class_per_client", "num_classes_per_partition"),
        description="How many classes each client has, exactly.",
    )


@partitioner(NClassConfig, aliases=("pathological", "pat", "PathologicalPartitioner", "n-class"))
def n_class(labels: np.ndarray, config: NClassConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Each client has exactly `n` classes; a class is divided equally among the clients that have it.

    Classes are used equally often (as far as rare ones permit) in random combinations. When there are
    fewer than (number of classes) / n clients, some classes belong to nobody.
    """
    _, codes, supply = _classes(labels)
    holds = _hold_exactly(config.num_clients, config.n, supply, rng)
    rank = np.cumsum(holds, axis=0) - 1
    holders = np.maximum(holds.sum(axis=0), 1)
    counts = np.where(holds, supply // holders + (rank < supply % holders), 0)
    smallest = int(counts.sum(axis=1).min())
    if smallest < config.min_size:
        raise DataError(
            f"With {config.n} classes per client the smallest of {config.num_clients} clients has {smallest} "
            f"examples, fewer than partition.min_size = {config.min_size}; lower num_clients or min_size."
        )
    return allocation.deal(counts, codes, rng)


def _hold_exactly(clients: int, each: int, limits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if each > len(limits):
        raise DataError(f"{each} classes per client were asked for and the data has {len(limits)}; ask for fewer.")
    if (holds := allocation.share_classes(clients, each, limits, rng)) is None:
        raise DataError(
            f"{clients} clients with {each} classes each need {clients * each} shares of classes and the "
            f"{len(limits)} classes have examples for {int(np.minimum(limits, clients).sum())}; "
            "lower num_clients."
        )
    return holds


class MajorMinorConfig(PartitionConfig):
    """Keys of `major_minor`."""

    name: Literal["major_minor"] = "major_minor"
    major: int = Field(4, ge=1, description="How many classes are large at each client.")
    ratio: int = Field(10, ge=1, description="How many times larger they are than the others.")


@partitioner(MajorMinorConfig, aliases=("major-minor",))
def major_minor(labels: np.ndarray, config: MajorMinorConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """GANDALF's split: equal sizes, `major` classes exactly `ratio` times as large as each other class.

    Every class is major at equally many clients. The scarcest class sets the size; what would break the
    ratio is left out.
    """
    _, codes, supply = _classes(labels)
    clients = config.num_clients
    holds = _hold_exactly(clients, config.major, np.full_like(supply, clients), rng)
    weights = np.where(holds, config.ratio, 1)
    demand = weights.sum(axis=0)
    unit = int((supply // demand).min())
    if unit * int(weights[0].sum()) < config.min_size or unit == 0:
        scarce = int(np.argmin(supply / demand))
        raise DataError(
            f"{clients} clients with {config.major} classes {config.ratio} times larger need at least "
            f"{int(demand[scarce])} examples of every class and one has {int(supply[scarce])}; "
            "lower num_clients, ratio or min_size."
        )
    return allocation.deal(weights * unit, codes, rng)


class FewSampleConfig(PartitionConfig):
    """Keys of `few_sample`."""

    name: Literal["few_sample"] = "few_sample"
    samples_per_class: int = Field(300, ge=1, description="Examples of an ordinary class at each client.")
    few_classes: int = Field(3, ge=0, description="How many classes are rare at each client.")
    few_samples: int = Field(15, ge=0, description="Examples of a rare class at each client.")


@partitioner(FewSampleConfig, aliases=("few-sample",))
def few_sample(labels: np.ndarray, config: FewSampleConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """PFL-GAN's split: so many examples of every class, but few of some random classes.

    The rare classes are random but every class is rare at equally many clients, so that a class is never
    asked for more often than the draw of the paper asks on average.
    """
    _, codes, supply = _classes(labels)
    if config.few_classes == len(supply) and config.few_samples == 0:
        raise DataError("few_classes covers every class with few_samples = 0; nothing would be left.")
    rare = np.zeros((config.num_clients, len(supply)), dtype=bool)
    if config.few_classes:
        rare = _hold_exactly(config.num_clients, config.few_classes, np.full_like(supply, config.num_clients), rng)
    counts = np.where(rare, config.few_samples, config.samples_per_class)
    demand = counts.sum(axis=0)
    worst = int(np.argmax(demand - supply))
    if demand[worst] > supply[worst]:
        raise DataError(
            f"{config.num_clients} clients need {int(demand[worst])} examples of a class that has "
            f"{int(supply[worst])}; lower num_clients or samples_per_class."
        )
    if int(counts.sum(axis=1).min()) < config.min_size:
        raise DataError(f"A client would have {int(counts.sum(axis=1).min())} examples; lower partition.min_size.")
    return allocation.deal(counts, codes, rng)


class MultimodalConfig(PartitionConfig):
    """Keys of `multimodal`."""

    name: Literal["multimodal"] = "multimodal"
    mode_shares: tuple[float, ...] = Field(
        (0.6, 0.3, 0.1), min_length=1, description="Fraction of the clients in each mode; one number per mode."
    )
    classes_per_client: int = Field(2, ge=1, description="How many classes of its mode each client has.")

    @field_validator("mode_shares")
    @classmethod
    def _positive(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < share < float("inf") for share in shares):
            raise ValueError("every share must be above 0")
        return shares


@partitioner(MultimodalConfig, aliases=("multi-modal",))
def multimodal(labels: np.ndarray, config: MultimodalConfig, rng: np.random.Generator, groups: Groups = None) -> Parts:
    """Fed-ZDA's second split: sub-populations of unequal size, so that classes are imbalanced over all.

    The classes are dealt at random into modes of (nearly) equal numbers of classes. By default 60, 30 and
    10 % of the clients belong to the three modes, and each client has 2 classes of its mode, equally large.
    All clients have the same size, which the busiest class sets; of ten balanced classes in 100 clients,
    those of the modes end up about 4.5 : 3 : 1. The paper gives no numbers; these are ours.
    """
    _, codes, supply = _classes(labels)
    shares, clients, each = np.array(config.mode_shares), config.num_clients, config.classes_per_client
    if len(shares) > min(clients, len(supply)):
        raise DataError(
            f"{len(shares)} modes need at least as many clients and classes, and there are {clients} clients "
            f"and {len(supply)} classes; shorten partition.mode_shares."
        )
    per_mode = allocation.apportion(clients, shares, least=1)
    holds = np.zeros((clients, len(supply)), dtype=bool)
    start = 0
    for members, mode in zip(per_mode, np.array_split(rng.permutation(len(supply)), len(shares)), strict=True):
        rows = np.arange(start, start + members)
        holds[np.ix_(rows, mode)] = _hold_exactly(int(members), each, supply[mode], rng)
        start += members
    holders = np.maximum(holds.sum(axis=0), 1)
    unit = int((supply // holders)[holds.any(axis=0)].min())
    if unit * each < config.min_size:
        raise DataError(f"A client would have {unit * each} examples; lower num_clients or partition.min_size.")
    return allocation.deal(holds[rng.permutation(clients)] * unit, codes, rng)
