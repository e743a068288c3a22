"""Answers as a server program reads them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsynth.federation.payload import Fields, decode
from fedsynth.federation.port import Blob, Failure
from fedsynth.federation.tasks import Task


class Replies(Mapping[str, Any]):
    """Replies by client, in the order in which the clients were asked; those who failed are in `failures`.

    A reply is read from its bytes each time it is looked at, so a program that takes one after the other holds one
    model in memory, however many clients answered.
    """

    def __init__(self, task: Task, blobs: dict[str, Blob], failures: dict[str, Failure], order: Sequence[str]) -> None:
        self._task, self.failures, self._order = task, failures, order
        self._blobs = {client: blobs[client] for client in order if client in blobs}

    def __getitem__(self, client: str) -> Any:
        return self._task.read_reply(decode(self._blobs[client].read())["fields"])

    def joined_by(self, later: "Replies") -> "Replies":
        """These and what those who failed have answered when they were asked again, in the order of the first."""
        failures = {client: f for client, f in (self.failures | later.failures).items() if client not in later}
        return Replies(self._task, self._blobs | later._blobs, failures, self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)


@dataclass
class Relayed:
    """A payload that went from client to client: where it has been and what it carries now."""

    fields: Fields
    visited: list[str] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)  # the last of each client
    tried: list[str] = field(default_factory=list)  # those who failed are among them
    reports: dict[str, Fields] = field(default_factory=dict)  # of each client, what is not handed on

    def arrive(self, client: str, replies: Replies, handed_on: Collection[str]) -> None:
        """Take what one client made of the payload, or note that it did not."""
        self.tried.append(client)
        if client in replies.failures:
            self.failures[client] = replies.failures[client]
            return
        self.visited.append(client)
        fields = replies[client].fields()
        self.fields |= {name: value for name, value in fields.items() if name in handed_on}
        self.reports[client] = {name: value for name, value in fields.items() if name not in handed_on}


Route = Sequence[str] | Callable[[Relayed], str | None]
