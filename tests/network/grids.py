"""A Grid in one process: messages become bytes and messages again on both ways, and a test can make things go wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsynth.network.client_app import SiteApp
from fedsynth.network.site_config import open_site, read_site

App = Callable[[Message, Context], Message]


def over_the_wire(message: Message) -> Message:
    """A message as it arrives: made anew from its bytes."""
    kept = message.metadata.message_id
    arrived = message_from_proto(
        type(message_to_proto(message)).FromString(message_to_proto(message).SerializeToString())
    )
    arrived.metadata.__dict__["_message_id"] = kept
    return arrived


class InProcessGrid(Grid):
    """Sites by name, each with its file, all answered by one client app. `spoil` may change what comes back."""

    def __init__(self, files: Mapping[str, Path], app: App | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does before it runs an app
        self.app, self.files = app or SiteApp(straight_in), dict(files)
        self.names = dict(enumerate(files, 1))
        self.offline: set[str] = set()
        self.spoil: Callable[[str, Message, Message], list[Message]] = lambda name, request, reply: [reply]
        self.delivered: list[tuple[str, str]] = []  # (site, message type), as sites got them
        self.pushed: list[Message] = []
        self.waiting: dict[str, list[Message]] = {}
        self.count = 0

    def set_run(self, run: Any) -> None:
        """Not needed here."""

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, name=name) for n, name in self.names.items() if name not in self.offline]

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"m{self.count}"
            self.pushed.append(message)
            name = self.names[message.metadata.dst_node_id]
            request = over_the_wire(message)
            self.delivered.append((name, message.metadata.message_type))
            reply = over_the_wire(self.app(request, self.context(name)))
            self.waiting[f"m{self.count}"] = self.spoil(name, request, reply)
            ids.append(f"m{self.count}")
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [copy.copy(reply) for key in message_ids for reply in self.waiting.pop(key, [])]

    def context(self, name: str) -> Context:
        """What Flower hands to a client app."""
        config = {"site": str(self.files[name])}
        return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def straight_in(path: Path, header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    """A door without a socket: the site is opened anew for every message, as if its process had been restarted."""
    return {}, open_site(read_site(path)).respond(header, body)


def error_reply(request: Message, code: int, reason: str = "") -> Message:
    """What Flower puts in the place of a reply."""
    return Message(Error(code, reason), reply_to=request)
