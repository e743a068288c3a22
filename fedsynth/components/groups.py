"""FedAvg inside groups of clients: the shared loop for all groups side by side, each with a model of its own.

Where there is one group its model is the global one, and the loop is FedAvg, bit-identical.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from fedsynth.components.local_training import Update, train
from fedsynth.components.loop import Loop, LoopConfig
from fedsynth.components.slots import LocalData, Memory, RoundInfo
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Done, Federation, Outcome, task
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights

GROUP = "group"  # in the private state
OWN_MODELS = "every group of clients has a model of its own"

Groups = dict[str, list[str]]
"""Clients by the name of their group."""


class GroupConfig(LoopConfig):
    """Settings of the shared loop; they hold within each group."""

    protects: ClassVar[bool] = False  # what groups are found by is not, or by an ε of its own
    requires_individual_updates: ClassVar[str] = (
        "its server finds groups by what each client shares, and each group may be small"
    )


@task
def join_group(client: Client, group: str) -> Done:
    """Remember which group's model is this client's."""
    client.state[GROUP] = group
    return client.release(Done())


@personal("group")
def group_model(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """The model of the client's group; `model` holds those of all groups, each entry under its group's name."""
    return of_group(model, client.state.get(GROUP, next(iter(model)).split("/", 1)[0]))


def tell_groups(fed: Federation, groups: Groups) -> int:
    """Tell the clients which group is theirs; those that could not be reached twice are evaluated with another's."""
    names = {client: {"group": group} for group, members in groups.items() for client in members}
    return len(fed.scatter(join_group, names, attempts=2))


def record_groups(fed: Federation, groups: Groups, about: str) -> None:
    """The groups, for people to see."""
    named = {f"group {group}": members for group, members in groups.items() if members}
    fed.record("groups of clients", {"kind": "groups", "about": about, "groups": named})


class GroupLoop:
    """The shared loop, once for each group. Models and memories of all groups are the loop's state."""

    def __init__(self, fed: Federation, cfg: LoopConfig, local_data: LocalData | None = None) -> None:
        if cfg.post_aggregation is not None:
            raise ConfigError(
                "Each group has a model here, and the server tunes none of them: remove method.post_aggregation."
            )
        self.fed = fed
        self.loop = Loop(fed, cfg) if local_data is None else Loop(fed, cfg, local_data=local_data)
        self.loop.refuse_local_statistics("the clients of a group share whole models")
        objective = self.loop.slots.objective
        if objective.personal:
            raise ConfigError(
                f'objective "{objective.name}" ends with a model for each client, and here each group ends with one: '
                "choose another objective."
            )

    def run_as_one(self) -> Outcome:
        """FedAvg: everybody in one group."""
        for round in self.loop.rounds():
            self.loop.advance(round, self.loop.exchange(round))
        return self.loop.outcome()

    def start(
        self, models: Mapping[str, Weights], memory: Mapping[str, Memory] | None = None, rule: str = GROUP
    ) -> None:
        """A model for each group, and what rules remember of it; where there are several, clients are evaluated by
        the rule."""
        state = self.loop.state
        state.memory = {group: {} for group in models} if memory is None else dict(memory)
        state.personal = rule if len(models) > 1 else ""
        self.put(models)

    @property
    def models(self) -> dict[str, Weights]:
        """The model of each group; of one alone it is the global model, without a name before its entries."""
        names, model = list(self.loop.state.memory), self.loop.state.model
        return {names[0]: model} if len(names) == 1 else {group: of_group(model, group) for group in names}

    def put(self, models: Mapping[str, Weights]) -> None:
        """Set the model of each group."""
        self.loop.state.model = join_models(models) if len(models) > 1 else next(iter(models.values()))

    def exchange(self, round: RoundInfo, groups: Groups, chosen: list[str]) -> dict[str, dict[str, Update]]:
        """Train the models of their groups at the chosen clients; the replies by group."""
        loop, models = self.loop, self.models
        fields = {
            group: {"model": models[group], "request": loop.request(info, models[group], loop.state.memory[group])}
            for group, info in self.infos(round, groups).items()
        }
        group_of = {client: group for group, members in groups.items() for client in members}
        replies = self.fed.scatter(train, {client: fields[group_of[client]] for client in chosen})
        return {
            group: {client: replies[client] for client in members if client in replies}
            for group, members in groups.items()
        }

    def advance(self, round: RoundInfo, groups: Groups, replies: Mapping[str, Mapping[str, Update]]) -> None:
        """Make each group's next model; where nobody answered, it waits."""
        models, memory = self.models, self.loop.state.memory
        for group, info in self.infos(round, groups).items():
            if replies[group]:
                models[group] = self.loop.combine(info, models[group], replies[group], memory[group])
        self.put(models)

    def infos(self, round: RoundInfo, groups: Groups) -> dict[str, RoundInfo]:
        """What rules may know of a round: in a group, its own members alone."""
        return {group: replace(round, clients=len(members)) for group, members in groups.items()}

    def outcome(self) -> Outcome:
        """A model for each group, or a global one where there is one group."""
        state = self.loop.state
        return Outcome(state.model, personal=state.personal, no_global=OWN_MODELS if state.personal else "")


def join_models(models: Mapping[str, Weights]) -> Weights:
    """The models of all groups in one table."""
    return {f"{group}/{name}": entry for group, model in models.items() for name, entry in model.items()}


def of_group(model: Weights, group: str) -> Weights:
    """One group's model out of such a table."""
    parts = ((name.partition("/"), entry) for name, entry in model.items())
    return {name: entry for (of, _, name), entry in parts if of == group}
