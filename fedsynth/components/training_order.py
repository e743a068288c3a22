"""Who of a group trains next (GANDALF, section 3.4): a fixed order, or one that makes up for those who were missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, Field

from fedsynth.federation import Relayed


class OrderSettings(BaseModel):
    """How a group's mediator decides who is next."""

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
            rested,
            key=lambda client: (self.completed.get(client, 0) + done[client], chosen[client]),
            default=None,
        )
