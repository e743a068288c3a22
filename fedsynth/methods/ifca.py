"""IFCA (Ghosh, Chung, Yin and Ramchandran 2020, algorithm 1, option II): groups by loss.

There are k models with random starts. In each round every sampled client takes the model with the lowest loss on its
own training data, ĵ = argmin_j F_i(θ_j), and trains it; the server averages, for each model, what came of it. A model
that nobody took waits. A client is evaluated with the model that fits its training data best.

Deviations: replies are weighted by examples, as in FedAvg; `form = "published"` has the paper's plain mean. Choosing
and training are two requests, so that a client receives the model that it chose twice. The first start is that of every
other method here. One try: the paper also restarts. With one model it is FedAvg, bit-identical.
"""

from typing import Any, ClassVar

from pydantic import Field

from fedsynth.components.groups import GroupConfig, GroupLoop, Groups, of_group, record_groups
from fedsynth.components.settings import PublishedForm
from fedsynth.federation import Client, Federation, Outcome, Reply, leaves, method, task
from fedsynth.federation.personal import personal
from fedsynth.federation.tasks import TaskError
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.learning.training import evaluate
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.seeding import derive


class IfcaConfig(PublishedForm, GroupConfig):
    """Setting of IFCA."""

    published: ClassVar[dict[str, Any]] = {"aggregator": {"name": "mean", "weights": "equal"}}

    groups: int = Field(3, ge=1, description="k: number of models")


class Chosen(Reply):
    """Which model a client takes."""

    group: str = leaves("which of the groups' models has the lowest loss on the client's training data")


@task
def choose_group(client: Client, models: Weights, spec: ModelSpec) -> Chosen:
    """ĵ = argmin_j F_i(θ_j)."""
    return client.release(Chosen(group=best_group(client, models, spec)))


def best_group(client: Client, models: Weights, spec: ModelSpec) -> str:
    """The group whose model has the lowest loss on the client's training data; the first of them where none has."""
    x, y = client.data.train.tensors()
    names = dict.fromkeys(name.partition("/")[0] for name in models)
    if not names:
        raise TaskError("There is no model to choose: a request needs one for each group.")
    losses = {g: evaluate(client.build(spec, of_group(models, g)), x, y, client.schema.classes).loss for g in names}
    finite = {group: loss for group, loss in losses.items() if loss == loss}
    return min(finite or losses, key=lambda group: losses[group])


@personal("best group")
def best_group_model(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """The group's model that fits the client's training data best."""
    return of_group(model, best_group(client, model, spec))


@method("ifca", config=IfcaConfig, fedavg_when={"groups": 1})
def ifca(fed: Federation, cfg: IfcaConfig) -> Outcome:
    """Several models with random starts; each round every client trains the one that fits its data best."""
    loop = GroupLoop(fed, cfg)
    if cfg.groups == 1:
        return loop.run_as_one()
    loop.start(start_models(fed, cfg), rule="best group")
    for round in loop.loop.rounds():
        groups = choose_groups(fed, cfg, loop.loop.state.model)
        loop.advance(round, groups, loop.exchange(round, groups, [c for members in groups.values() for c in members]))
        record_groups(fed, groups, "Which model each client took in the last round.")
    return loop.outcome()


def start_models(fed: Federation, cfg: IfcaConfig) -> dict[str, Weights]:
    """The starts: that of every method, and others from the same distribution."""
    seeds = [derive(fed.seed, "group model", str(number)) % 2**63 for number in range(2, cfg.groups + 1)]
    drawn = [weights_of(build_model(cfg.model, fed.schema.shape, fed.schema.classes, seed)) for seed in seeds]
    return {str(number): model for number, model in enumerate([fed.initial_weights(cfg.model), *drawn], 1)}


def choose_groups(fed: Federation, cfg: IfcaConfig, models: Weights) -> Groups:
    """The sampled clients that answered, by the model that they take; what is no model's name counts as no answer."""
    request: dict[str, Any] = {"models": models, "spec": cfg.model}
    replies = fed.broadcast(choose_group, to=fed.sample(cfg.train.fraction), **request)
    groups: Groups = {str(number): [] for number in range(1, cfg.groups + 1)}
    for client, reply in replies.items():
        if reply.group in groups:
            groups[reply.group].append(client)
    return groups
