"""The Flower engine: the same requests over a network, on stock Flower.

It lives inside a Flower ServerApp and sends each request as a message `query.<task>` over the Grid: pushed once, then
polled for until all have answered or the deadline has passed. Flower's own waiting is not used: it polls every three
seconds and cannot tell a site that is late from one that is lost.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedsynth.engines.envelope import DOT, EnvelopeError, digest, pack, seal, unpack
from fedsynth.errors import FedsynthError
from fedsynth.federation.port import SERVER, Answers, Blob, Engine, Failure, FailureKind

T = TypeVar("T")

PAUSE = 0.2  # seconds between two looks for replies
GRACE = 30.0  # seconds by which a message outlives its deadline: expired at once, a late reply would look like a loss
LONGEST = 7 * 24 * 3600.0  # seconds that a message lives where there is no deadline

# Flower's error codes, by number: its names for them are not part of its public interface.
ERRORS: dict[int, tuple[FailureKind, str]] = {
    1: ("crashed", "its Flower node could not load fedsynth: install fedsynth[flower] of the same version there"),
    2: ("task error", "its Flower node raised an error outside any task"),
    3: ("lost", "the request or its reply is no longer at the SuperLink"),
    4: ("lost", "its reply is no longer at the SuperLink"),
    5: ("lost", "it is not connected to the SuperLink any more"),
    7: ("not sent", "its Flower node refused the app"),
    8: ("crashed", "the process that ran its task died"),
}


class FlowerEngine:
    """Asks sites over a Grid; the server's own work goes to `own`, an engine on this machine.

    `run` is the key under which the sites keep their private state. It stays the same when the run is resumed.
    """

    clock = 0.0

    def __init__(self, grid: Grid, run: str, own: Engine, pause: float = PAUSE) -> None:
        self.grid, self.run, self.own, self.pause = grid, run, own, pause

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """See `Engine.ask`."""
        if all(client.startswith(SERVER) for client in requests):
            return self.own.ask(task, requests, deadline)
        end = None if deadline is None else time.monotonic() + deadline
        answers = Answers()
        waiting = self._push(task, requests, deadline, end, answers)
        while waiting:
            for reply in self._pull(waiting, end):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:  # else it was answered already: the first answer counts
                    self._enter(client, digest(requests[client]), reply, answers)
            if waiting and end is not None and time.monotonic() >= end:
                for client in waiting.values():
                    answers.failures[client] = Failure(client, "timeout", f"no reply within {deadline:g} s")
                break
            if waiting:
                time.sleep(self.pause)
        return answers

    def close(self) -> None:
        """Close the engine for the server's own work; the Grid belongs to Flower."""
        self.own.close()

    def _push(
        self, task: str, requests: Mapping[str, bytes], deadline: float | None, end: float | None, answers: Answers
    ) -> dict[str, str]:
        """Send what can be sent; the clients that will answer, by message id."""
        try:
            nodes = bounded(lambda: connected(self.grid), end)
            bodies: dict[int, tuple[str, ArrayRecord]] = {}
            messages: dict[str, Message] = {}
            for client, body in requests.items():
                if client not in nodes:
                    answers.failures[client] = Failure(client, "not sent", "it is not connected to the SuperLink")
                    continue
                if id(body) not in bodies:
                    bodies[id(body)] = digest(body), seal(body)
                key, record = bodies[id(body)]
                content = pack({"run": self.run, "site": client, "id": key}, record)
                ttl = LONGEST if deadline is None else deadline + GRACE
                messages[client] = Message(content, nodes[client], f"query.{task.replace('.', DOT)}", ttl=ttl)
            ids = bounded(lambda: list(self.grid.push_messages(list(messages.values()))), end) if messages else []
        except TimeoutError:
            for client in requests:
                answers.failures[client] = Failure(client, "not sent", "the SuperLink could not be reached in time")
            return {}
        waiting = {}
        for client, message_id in zip(messages, [*ids, *[""] * len(messages)], strict=False):
            if message_id:
                waiting[message_id] = client
            else:
                answers.failures[client] = Failure(client, "not sent", "the SuperLink did not take the request")
        return waiting

    def _pull(self, waiting: Iterable[str], end: float | None) -> list[Message]:
        try:
            return bounded(lambda: list(self.grid.pull_messages(list(waiting))), end)
        except TimeoutError:
            return []

    def _enter(self, client: str, key: str, reply: Message, answers: Answers) -> None:
        """Enter one reply, or why it is none."""
        if reply.has_error():
            answers.failures[client] = _failure(client, reply)
            return
        try:
            header, body = unpack(reply.content)
        except EnvelopeError as error:
            answers.failures[client] = Failure(client, "task error", f"an unusable reply: {error}")
            return
        failure = header.get("failure")
        if isinstance(failure, dict) and failure.get("kind") in ("unavailable", "crashed", "task error"):
            answers.failures[client] = Failure(client, failure["kind"], str(failure.get("message", "no reason given")))
        elif header.get("to") != key:
            answers.failures[client] = Failure(client, "task error", "an unusable reply: it answers another request")
        else:
            answers.replies[client] = Blob(body)


def connected(grid: Grid) -> dict[str, int]:
    """The Flower nodes that are connected now, by the name under which the SuperLink's keeper registered their key."""
    nodes: dict[str, int] = {}
    for node in grid.get_nodes():
        if node.name in nodes:
            raise FedsynthError(f'Two connected Flower nodes are registered as "{node.name}": unregister one of them.')
        if node.name:
            nodes[node.name] = node.node_id
    return nodes


def bounded(call: Callable[[], T], end: float | None) -> T:
    """What the call gives; a `TimeoutError` if that takes past `end`, a time of the monotonic clock.

    Flower tries again for ever when the SuperLink is away. A deadline must hold all the same, so the call is left
    behind in its thread.
    """
    if end is None:
        return call()
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(max(0.0, end - time.monotonic()) + 1.0)  # a last look may begin at the deadline


def _failure(client: str, reply: Message) -> Failure:
    kind, message = ERRORS.get(reply.error.code, ("lost", f"Flower reports error {reply.error.code}"))
    # The reason may hold an exception's text, and with it data: only the class is repeated.
    found = re.match(r"<class '([\w.]+)'>", reply.error.reason or "")
    return Failure(client, kind, f"{message} ({found[1]})" if found else message)
