"""Availability, delay and failure of clients on a virtual clock, reproducibly.

Wraps another engine: the tasks are really carried out, but who can be reached, who breaks down and how long it would
have taken follow a schedule, so that fault tolerance is measured in simulated seconds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field

from fedsynth.federation.participation import EVALUATION
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.port import SERVER, Answers, Blob, Engine, Failure
from fedsynth.seeding import generator


class FaultConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The schedule. All zero: no faults, and the virtual clock stands still."""

    dropout: float = Field(0.0, ge=0, le=1, description="chance that a client cannot be reached for a request")
    failure: float = Field(0.0, ge=0, le=1, description="chance that a client breaks down in the middle of a task")
    delay: float = Field(0.0, ge=0, description="simulated seconds a message takes, both ways together")
    seconds_per_example: float = Field(0.0, ge=0, description="simulated seconds of work per training example")
    spread: float = Field(0.0, ge=0, description="spread (log-normal sigma) of the clients' speeds")
    random_delay: float = Field(
        0.0, ge=0, description="mean of a random (exponential) delay, drawn anew for every task, in simulated seconds"
    )
    deadline: float | None = Field(None, gt=0, description="simulated seconds the server waits for an answer")
    heartbeat: float | None = Field(
        None, gt=0, description="simulated seconds of silence after which a client is given up (none: at the deadline)"
    )
    outages: dict[str, list[tuple[float, float]]] = Field(
        default_factory=dict, description="per client, stretches of simulated time in which it is away"
    )
    late: float = Field(0.0, ge=0, le=1, description="share of the clients that always answer too late")
    byzantine: float = Field(
        0.0, ge=0, le=1, description="share of the clients that are malicious: they send something else than asked"
    )
    attack: Literal["noise", "negated"] = Field(
        "noise", description="what they send: noise as strong as the numbers, or the numbers with the sign turned"
    )
    malicious: list[str] = Field(default_factory=list, description="malicious clients by name, besides that share")

    @property
    def active(self) -> bool:
        """Whether anything is scheduled."""
        return self != FaultConfig()


class Header(BaseModel):
    """What a request says about itself: which one of the run it is (not the clock, which may stand still, nor a count,
    which a resume would lose), and which route of a relay."""

    step: int
    id: str
    relay: str | None = None
    route: str | None = None


class FaultyEngine:
    """An engine whose clients fail by schedule. The routes of a relay each have a time of their own until all end."""

    def __init__(
        self, inner: Engine, config: FaultConfig, seed: int, sizes: Callable[[str], int], clients: Sequence[str] = ()
    ) -> None:
        self.inner, self.config, self.seed, self.sizes = inner, config, seed, sizes
        self.late = choose_some(clients, config.late, seed, "late")
        self.malicious = choose_some(clients, config.byzantine, seed, "byzantine") | set(config.malicious)
        self.clock = 0.0
        self._relay: str | None = None
        self._lanes: dict[str, float] = {}  # of the relay under way, how far each route has come
        self._began = 0.0

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """Ask those who can be reached and will not break down; advance the clock by the slowest awaited."""
        if task == EVALUATION or all(client.startswith(SERVER) for client in requests):
            # The experimenter's look at the result and the server's own work are no part of what can fail here.
            return self.inner.ask(task, requests, deadline)
        name = task.rsplit(".", 1)[-1]  # without its module: methods are compared under the same faults
        failures: dict[str, Failure] = {}
        spans: dict[str, tuple[float, float]] = {}
        headers: dict[int, Header] = {}  # a broadcast is one request for all
        for client, request in requests.items():
            if id(request) not in headers:
                headers[id(request)] = Header.model_validate(decode(request))
            header = headers[id(request)]
            if not spans:
                self._begin(header.relay)
            lane = client if header.route is None else header.route
            start = self._lanes.get(lane, self._began)
            seconds, failure = self._fate(name, client, start, f"{header.step}-{header.id}")
            self._lanes[lane] = start + seconds
            spans[client] = (start, start + seconds)
            if failure is not None:
                failures[client] = failure
        self.clock = max(self._lanes.values())
        reached = {client: request for client, request in requests.items() if client not in failures}
        answers = self.inner.ask(task, reached, deadline) if reached else Answers()
        for client in self.malicious & set(answers.replies):
            rng = generator(self.seed, "lie", name, client, f"{headers[id(requests[client])].step}")
            answers.replies[client] = Blob(falsify(answers.replies[client].read(), self.config.attack, rng))
        answers.failures.update(failures)
        answers.spans = spans
        return answers

    def close(self) -> None:
        """Close the engine inside."""
        self.inner.close()

    def _begin(self, relay: str | None) -> None:
        """A new request begins now, unless it is the next stop of the relay under way."""
        if relay is None or relay != self._relay:
            self._relay, self._lanes, self._began = relay, {}, self.clock

    def _fate(self, task: str, client: str, start: float, when: str) -> tuple[float, Failure | None]:
        """How long the server waits for this client, and why it fails, if it does."""
        config = self.config
        rng = generator(self.seed, "faults", task, client, when)
        dropped, broke = rng.random() < config.dropout, rng.random() < config.failure
        if dropped or any(begin <= start < end for begin, end in config.outages.get(client, [])):
            return self._silence(0.0), Failure(client, "unavailable", f"away at {start:.1f} simulated seconds")
        speed = float(generator(self.seed, "speed", client).lognormal(0.0, config.spread))
        seconds = config.delay + config.seconds_per_example * self.sizes(client) / speed
        if config.random_delay:  # from a source of its own: all else is scheduled as without
            slowed = generator(self.seed, "delay", task, client, when)
            seconds += float(slowed.exponential(config.random_delay))
        if broke:
            noticed = self._silence(seconds * rng.random())
            return noticed, Failure(client, "crashed", "broke down in the middle of the task")
        if client in self.late:
            return config.deadline or seconds, Failure(client, "timeout", "always answers too late")
        # Who is slow sends its heartbeat, so that only the deadline ends the wait (GANDALF, section 5.5).
        if config.deadline is not None and seconds > config.deadline:
            return config.deadline, Failure(client, "timeout", f"would have taken {seconds:.1f} simulated seconds")
        return seconds, None

    def _silence(self, began: float) -> float:
        """When the server gives up a client that fell silent after so many seconds: it misses the heartbeat, or else
        waits until the deadline; without either the silence is noticed at once."""
        config = self.config
        limit = math.inf if config.deadline is None else config.deadline
        if config.heartbeat is not None:
            return min(began + config.heartbeat, limit)
        return max(began, config.delay) if config.deadline is None else limit


def choose_some(clients: Sequence[str], share: float, seed: int, what: str) -> frozenset[str]:
    """An exact share of the clients; those of a smaller share are among those of a larger one."""
    order = generator(seed, "some of the clients", what).permutation(len(clients))
    return frozenset(clients[row] for row in order[: round(share * len(clients))])


def falsify(reply: bytes, attack: str, rng: np.random.Generator) -> bytes:
    """A reply whose tensors of numbers are something else; all else in it is as it was."""
    answer = decode(reply)
    return encode({**answer, "fields": _falsify_value(answer["fields"], attack, rng)}) if answer["ok"] else reply


def _falsify_value(value: Any, attack: str, rng: np.random.Generator) -> Any:
    if isinstance(value, dict):
        return {name: _falsify_value(item, attack, rng) for name, item in value.items()}
    if isinstance(value, list):
        return [_falsify_value(item, attack, rng) for item in value]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if attack == "negated":
        return -value
    strength = value.double().square().mean().sqrt().item() if value.numel() else 0.0
    return torch.from_numpy(strength * rng.standard_normal(tuple(value.shape))).to(value.dtype)
