"""Sequential training in groups: the model passes from client to client inside each group, and the groups are averaged.

GANDALF's algorithm 3 and Astraea's rescheduling. With a group for every client it is FedAvg, bit-identical. The minus
sign in line 11 of algorithm 3 is a slip: the groups' changes are added. In the paper a client hands the weights to the
next one directly; here every hand-off goes through the server, which therefore always has the latest weights: the
rollback to "the latest available holder" is to what the server holds.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Unpack

from pydantic import BaseModel, Field

from fedsynth.components.local_training import Update, train
from fedsynth.components.loop import Loop, LoopConfig, OwnSlots
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, Relayed
from fedsynth.learning.weights import Weights

Groups = Sequence[Sequence[str]]


class OrderSettings(BaseModel):
    """Who of a group trains next (GANDALF, section 3.4): a fixed order, or one that makes up for those missed."""

    order: Literal["least_completed", "fixed"] = Field(
        "least_completed",
        description="who of a group is next: least_completed makes up for those who were missed, fixed skips them",
    )
    cap: int = Field(2, ge=1, description="least_completed: how often a client may be chosen for each of its turns")
    interval: int = Field(2, ge=0, description="least_completed: others that must be chosen between two turns of one")

    def route(
        self, members: Sequence[str], visits: int, completed: Mapping[str, int], planned: bool = False
    ) -> Sequence[str] | Callable[[Relayed], str | None]:
        """A route for `fed.relay` with so many completed visits, if it can be done; `completed` is the table so far.

        `planned`: nobody is visited more often than if none were missed, because noise was calibrated to that.
        """
        if not members:
            return []
        if self.order == "fixed":
            return [members[stop % len(members)] for stop in range(visits)]
        turns = -(-visits // len(members))
        cap = turns if planned else self.cap * turns
        return LeastCompletedFirst(members, visits, completed, cap, min(self.interval, len(members) - 1))


class LeastCompletedFirst:
    """Those who have completed least come first, within a cap and with some others in between.

    Ends after `visits` completed visits, or when nobody may be chosen any more, so it always ends.
    """

    def __init__(
        self, members: Sequence[str], visits: int, completed: Mapping[str, int], cap: int, interval: int
    ) -> None:
        self.members, self.visits, self.completed = list(members), visits, completed
        self.cap, self.interval = cap, interval

    def __call__(self, payload: Relayed) -> str | None:
        if len(payload.visited) >= self.visits:
            return None
        chosen = Counter(payload.tried)
        done = Counter(payload.visited)
        recent = payload.tried[-self.interval :] if self.interval else []
        open_to = [client for client in self.members if chosen[client] < self.cap]
        # Where everybody left was chosen a moment ago, waiting for others would be waiting for ever.
        rested = [client for client in open_to if client not in recent] or open_to
        return min(
            rested, key=lambda client: (self.completed.get(client, 0) + done[client], chosen[client]), default=None
        )


class SequentialConfig(OrderSettings, LoopConfig):
    """Settings of sequential training in groups."""

    requires_individual_updates: ClassVar[str] = "models pass from client to client in it, each as it is"

    mediators: int = Field(2, ge=1, description="M_c: groups in which the model passes from client to client")
    mediator_epochs: int = Field(1, ge=1, description="E_m: how often it passes every client of a group in a round")


class SequentialLoop:
    """The shared loop with another exchange: inside each group the model is handed from client to client."""

    def __init__(self, fed: Federation, cfg: SequentialConfig, **own: Unpack[OwnSlots]) -> None:
        if cfg.privacy.updates == "clipped":
            raise ConfigError(
                'privacy.updates = "clipped" hides a client among others whose updates are summed up; in a chain '
                'nothing is summed up and the noise would drown the weights. Use "dp_sgd", which hides each record.'
            )
        self.fed, self.cfg = fed, cfg
        self.loop = Loop(fed, cfg, trainings=cfg.mediator_epochs, **own)
        self.loop.refuse_local_statistics("the model passes from client to client")
        slots = self.loop.slots
        if slots.aggregator.needs or slots.objective.needs:
            raise ConfigError(
                f'{slots.objective.slot} "{slots.objective.name}" speaks with the server after every client, and here '
                "the model passes from client to client: choose another objective and aggregator."
            )
        if slots.post_aggregation.asks_clients:
            name = slots.post_aggregation.name
            raise ConfigError(f'post_aggregation = "{name}" cannot ask the clients here: set secure = false.')

    def run(self, groups: Groups) -> Outcome:
        """Let every group hand the model around, average what the groups end with, `cfg.train.rounds` times."""
        self.count(groups, "train", self.cfg.train.rounds)
        return self.loop.outcome()

    def prepare_model(self, groups: Groups, phase: str, steps: int) -> Weights:
        """A model that is not the evaluated one, after so many steps."""
        self.count(groups, phase, steps, evaluated=False)
        return self.loop.state.model

    def count(self, groups: Groups, phase: str, count: int, evaluated: bool = True) -> None:
        """Train for so many rounds, or steps of a phase."""
        loop, groups = self.loop, in_order(self.fed, groups)
        for round in loop.rounds(phase, count, evaluated=evaluated):
            chosen = set(self.fed.sample(self.cfg.train.fraction))
            members = [[client for client in group if client in chosen] for group in groups]
            request = loop.request(round, loop.state.model, loop.state.memory)
            carried = self.fed.relay(train, {"model": loop.state.model, "request": request}, self.routes(members))
            visited = Counter(client for bag in carried for client in bag.visited)
            loop.state.memory["completed"] = dict(Counter(self.completed) + visited)
            updates = {f"group {number}": group_update(bag) for number, bag in enumerate(carried) if bag.visited}
            loop.advance(round, updates, [client for client in self.fed.clients if client in visited])

    @property
    def completed(self) -> dict[str, int]:
        """How often each client has trained so far."""
        return dict(self.loop.state.memory.get("completed", {}))

    def routes(self, members: list[list[str]]) -> list[Sequence[str] | Callable[[Relayed], str | None]]:
        """The way of the model through each group."""
        planned, epochs = self.cfg.privacy.target is not None, self.cfg.mediator_epochs
        return [self.cfg.route(group, len(group) * epochs, self.completed, planned) for group in members]


def group_update(bag: Relayed) -> Update:
    """What a group sends: the weights as its last client left them, weighing what all that it visited have (n_m)."""
    reports = bag.reports.values()
    return Update(
        model=bag.fields["model"],
        examples=sum(report["examples"] for report in reports),
        loss=sum(report["loss"] for report in reports) / len(bag.reports),
        steps=sum(report["steps"] for report in reports),
    )


def in_order(fed: Federation, groups: Groups) -> list[list[str]]:
    """The groups by their first members, so that sums do not depend on how the groups were found."""
    place = {client: number for number, client in enumerate(fed.clients)}
    return sorted(([*group] for group in groups if group), key=lambda group: min(place[client] for client in group))
