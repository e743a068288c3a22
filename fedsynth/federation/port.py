"""The port between the federation and whatever carries its requests out."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

POOLED = "*"  # the pretended client that holds everybody's data; only simulations have it
SERVER = "@"  # begins the names of the server's own pieces of work, which have no data and cross no line

FailureKind = Literal["timeout", "lost", "crashed", "task error", "unavailable", "not sent", "over budget"]


@dataclass(frozen=True)
class Failure:
    """Why one client did not answer."""

    client: str
    kind: FailureKind
    message: str
    traceback: str = ""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered later: the client could not be reached, and has not refused."""
        return self.kind not in ("task error", "over budget", "not sent")

    def __str__(self) -> str:
        return f'client "{self.client}": {self.kind}: {self.message}'


class Blob:
    """A reply's bytes, in memory or waiting in a file of its own that goes when nobody holds it any more.

    Waiting in files keeps the memory of a server independent of how many clients answered.
    """

    def __init__(self, content: bytes | Path) -> None:
        self._content = content
        self.size = content.stat().st_size if isinstance(content, Path) else len(content)

    def read(self) -> bytes:
        """The bytes."""
        return self._content.read_bytes() if isinstance(self._content, Path) else self._content

    def __del__(self) -> None:
        if isinstance(self._content, Path):
            with contextlib.suppress(OSError):
                self._content.unlink()


@dataclass
class Answers:
    """What came back from one ask: for every client asked, a reply or a failure."""

    replies: dict[str, Blob] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # worth telling, such as a task that had to be tried again
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)  # simulated, from and to, where time is


class Engine(Protocol):
    """Carries requests to clients. Knows bytes, clients and deadlines, nothing of methods."""

    clock: float  # simulated seconds since the start, where time is simulated; set again on resume

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """Send each client its request and wait for the answers, at most `deadline` seconds."""

    def close(self) -> None:
        """Let go of everything; safe to call twice."""
