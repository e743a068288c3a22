"""The wire engine, for tests: what a network does to a method, without one.

Only bytes pass. The client is rebuilt for every message, so nothing survives in memory; private state comes from a
store on disk. A method that gives the same bits here as on the local engine is ready for any network.
"""

from collections.abc import Callable, Mapping

from fedsynth.federation.host import TaskHost
from fedsynth.federation.port import Answers, Blob


class WireEngine:
    """Asks one client after the other, in reverse order, each through a host that is made for that message alone."""

    clock = 0.0

    def __init__(self, make_host: Callable[[], TaskHost]) -> None:
        self.make_host = make_host

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """See `Engine.ask`. The order is reversed so that a method which leans on it is found out."""
        answers = Answers()
        for client in reversed(list(requests)):
            answers.replies[client] = Blob(self.make_host().handle(client, bytes(requests[client])))
        return answers

    def close(self) -> None:
        """Nothing is held."""
