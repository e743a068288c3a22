"""Availability, delay and failure of clients on a virtual clock, reproducibly.

Wraps another engine: the tasks are really carried out, but who can be reached, who breaks down and how long it would
have taken follow a schedule, so that fault tolerance is measured in simulated seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from fedsynth.federation.participation import EVALUATION
from fedsynth.federation.payload import decode
from fedsynth.federation.port import SERVER, Answers, Engine, Failure
from fedsynth.seeding import generator


class FaultConfig(BaseModel):
    """The schedule. All zero: no faults, and the virtual clock stands still."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dropout: float = Field(0.0, ge=0, le=1, description="chance that a client cannot be reached for an ask")
    failure: float = Field(0.0, ge=0, le=1, description="chance that a client breaks down in the middle of a task")
    delay: float = Field(0.0, ge=0, description="simulated seconds a message takes, both ways together")
    seconds_per_example: float = Field(0.0, ge=0, description="simulated seconds of work per training example")
    spread: float = Field(0.0, ge=0, description="spread (log-normal sigma) of the clients' speeds")
    deadline: float | None = Field(None, gt=0, description="simulated seconds the server waits for an answer")
    outages: dict[str, list[tuple[float, float]]] = Field(
        default_factory=dict, description="per client, stretches of simulated time in which it is away"
    )

    @property
    def active(self) -> bool:
        """Whether anything is scheduled."""
        return self != FaultConfig()


class FaultyEngine:
    """An engine whose clients fail by schedule."""

    def __init__(self, inner: Engine, config: FaultConfig, seed: int, sizes: Callable[[str], int]) -> None:
        self.inner, self.config, self.seed, self.sizes = inner, config, seed, sizes
        self.clock = 0.0

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """Ask those who can be reached and will not break down; advance the clock by the slowest awaited."""
        if task == EVALUATION or all(client.startswith(SERVER) for client in requests):
            # The experimenter's look at the result and the server's own work are no part of what can fail here.
            return self.inner.ask(task, requests, deadline)
        failures: dict[str, Failure] = {}
        longest = self.config.delay
        occasions: dict[int, str] = {}  # a broadcast is one request for all
        for client, request in requests.items():
            if id(request) not in occasions:
                occasions[id(request)] = occasion(request)
            seconds, failure = self._fate(task, client, occasions[id(request)])
            longest = max(longest, seconds)
            if failure is not None:
                failures[client] = failure
        reached = {client: request for client, request in requests.items() if client not in failures}
        answers = self.inner.ask(task, reached, deadline) if reached else Answers()
        answers.failures.update(failures)
        self.clock += longest
        return answers

    def close(self) -> None:
        """Close the engine inside."""
        self.inner.close()

    def _fate(self, task: str, client: str, when: str) -> tuple[float, Failure | None]:
        """How long the server waits for this client, and why it fails, if it does."""
        config = self.config
        rng = generator(self.seed, "faults", task, client, when)
        dropped, broke = rng.random() < config.dropout, rng.random() < config.failure
        if dropped or any(start <= self.clock < end for start, end in config.outages.get(client, [])):
            return config.delay, Failure(client, "unavailable", f"away at {self.clock:.1f} simulated seconds")
        speed = float(generator(self.seed, "speed", client).lognormal(0.0, config.spread))
        seconds = config.delay + config.seconds_per_example * self.sizes(client) / speed
        if broke:
            return seconds * rng.random(), Failure(client, "crashed", "broke down in the middle of the task")
        if config.deadline is not None and seconds > config.deadline:
            return config.deadline, Failure(client, "timeout", f"would have taken {seconds:.1f} simulated seconds")
        return seconds, None


def occasion(request: bytes) -> str:
    """Which ask of the run this is. Not the clock, which may stand still, nor a count, which a resume would lose."""
    header = decode(request)
    return f"{header['step']}-{header['id']}"
