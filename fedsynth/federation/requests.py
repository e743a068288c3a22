"""How a server program asks its clients: requests go out, answers are checked and counted, quorums are kept."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedsynth.errors import FedsynthError, UserError
from fedsynth.federation.participation import Participation
from fedsynth.federation.payload import Fields, PayloadError, decode, encode, not_finite
from fedsynth.federation.port import POOLED, SERVER, Answers, Blob, Engine, Failure
from fedsynth.federation.replies import Relayed, Replies, Route
from fedsynth.federation.state import Policy, QuorumError
from fedsynth.federation.tasks import Task, TaskError
from fedsynth.privacy import BudgetError, Guarantee


class Requests:
    """The clients, as they can be asked."""

    def __init__(self, engine: Engine, clients: Sequence[str], seed: int, policy: Policy) -> None:
        self.engine, self.clients, self.seed, self.policy = engine, tuple(clients), seed, policy
        reserved = [client for client in self.clients if client == POOLED or client.startswith(SERVER)]
        if reserved:
            raise UserError(
                f'A client cannot be called "{reserved[0]}": "{POOLED}" and names that begin with "{SERVER}" have a '
                "meaning of their own here. Give it another name."
            )
        self.round = 0  # of the model that is evaluated
        self._moment = 0  # rounds and steps of phases: what randomness is told apart by
        self.participation = Participation()
        self._checkpoint, self._asks = 0, 0
        self._known = frozenset((*self.clients, POOLED))
        self._versions: dict[str, str] = {}
        self._seconds, self._clock = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds this run has taken so far, those before a resume included."""
        return self._seconds + time.perf_counter() - self._clock

    @property
    def versions(self) -> Mapping[str, str]:
        """Which version of its private state each client has; one that keeps nothing has none."""
        return self._versions

    def broadcast(
        self, task: Task, to: Iterable[str] | None = None, quorum: float | None = None, attempts: int = 1, **fields: Any
    ) -> Replies:
        """The same request to many clients (all, unless `to` says which). `quorum` stands in for the policy's.

        Clients that cannot be reached are asked up to `attempts` times.
        """
        clients = list(self.clients if to is None else to)
        bodies = dict.fromkeys(clients, self._request(task, clients, fields))

        def again(missing: list[str]) -> dict[str, bytes]:
            return dict.fromkeys(missing, self._request(task, missing, fields))

        return self._ask_repeatedly(task, bodies, quorum, attempts, again)

    def scatter(
        self, task: Task, requests: Mapping[str, Mapping[str, Any]], quorum: float | None = None, attempts: int = 1
    ) -> Replies:
        """A different request to each client; `quorum` and `attempts` as in `broadcast`."""

        def bodies(clients: Iterable[str]) -> dict[str, bytes]:
            return {client: self._request(task, [client], requests[client]) for client in clients}

        return self._ask_repeatedly(task, bodies(requests), quorum, attempts, bodies)

    def relay(
        self, task: Task, start: Mapping[str, Any] | Sequence[Mapping[str, Any]], routes: Sequence[Route]
    ) -> list[Relayed]:
        """Hand a payload from client to client along each route, the routes side by side.

        A route is a list of clients, or is asked after every stop who comes next (None ends it). `start` is what all
        routes begin with, or one for each. Each reply's fields replace the fields of the same name for the next hop. A
        failed hop is skipped and the payload survives as the last holder left it.
        """
        names = set(task.request_type.model_fields)
        starts = [start] * len(routes) if isinstance(start, Mapping) else start
        carried = [Relayed(fields=dict(fields)) for fields in starts]
        stops = [route if callable(route) else _along(route) for route in routes]
        relay = f"{self._checkpoint}-{self._asks}"
        for stop in itertools.count(1):
            following = {route: asked(carried[route]) for route, asked in enumerate(stops)}
            now = {client: route for route, client in following.items() if client is not None}
            if not now:
                return carried
            if len(now) < sum(client is not None for client in following.values()):
                raise FedsynthError(f'Two routes of task "{task.name}" meet at one client, at stop {stop}.')
            requests = {
                client: self._request(
                    task,
                    [client],
                    {name: value for name, value in carried[route].fields.items() if name in names},
                    {"relay": relay, "route": f"{route}", "turn": carried[route].tried.count(client)},
                )
                for client, route in now.items()
            }
            # No quorum here: a hop that fails is skipped, and who was missed is in the result.
            replies = self._ask(task, requests, quorum=0.0)
            for client, route in now.items():
                carried[route].arrive(client, replies, names)
        raise AssertionError("a count has no end")

    def compute(self, task: Task, jobs: Mapping[str, Mapping[str, Any]]) -> Fields:
        """Work of the server's own, by name, over the cores of its engine. Nothing of it crosses to a client."""
        requests = {SERVER + name: self._request(task, [], fields) for name, fields in jobs.items()}
        self._asks += 1
        answers = self.engine.ask(task.name, requests, None)
        self.participation.notes.extend(answers.notes)
        done: Fields = {}
        for name in jobs:
            failure = answers.failures.get(SERVER + name)
            answer = {} if failure else decode(answers.replies[SERVER + name].read())
            if answer and not answer["ok"]:
                failure = _failure(SERVER + name, answer)
            if failure:
                trace = f"\n{failure.traceback.rstrip()}" if failure.traceback else ""
                raise FedsynthError(f'The server\'s own work failed in task "{task.name}": {failure.message}.{trace}')
            done[name] = task.read_reply(answer["fields"])
            self.participation.server_seconds += float(answer["seconds"])
        return done

    def _request(
        self, task: Task, clients: Sequence[str], fields: Mapping[str, Any], stop: Mapping[str, Any] | None = None
    ) -> bytes:
        limit = {"budget": asdict(self.policy.budget)} if self.policy.budget else {}
        return encode(
            {
                "task": task.name,
                "id": f"{self._asks}",
                "step": self._checkpoint + 1,
                "seed": self.seed,
                "round": self._moment,
                "states": {c: self._versions[c] for c in clients if c in self._versions},
                **limit,
                **(stop or {}),
                "fields": fields,
            }
        )

    def _ask_repeatedly(
        self,
        task: Task,
        requests: dict[str, bytes],
        quorum: float | None,
        attempts: int,
        again: Callable[[list[str]], dict[str, bytes]],
    ) -> Replies:
        """Ask, and ask those again who could not be reached; the quorum is of those who answered in the end."""
        replies = self._ask(task, requests, quorum if attempts == 1 else 0.0)
        for _ in range(attempts - 1):
            missing = [client for client, failure in replies.failures.items() if failure.may_pass]
            if not missing:
                break
            replies = replies.joined_by(self._ask(task, again(missing), quorum=0.0))
        if attempts > 1:
            self._check_quorum(task, replies, self.policy.quorum if quorum is None else quorum)
        return replies

    def _ask(self, task: Task, requests: dict[str, bytes], quorum: float | None = None) -> Replies:
        unknown = set(requests) - self._known
        if unknown:
            raise FedsynthError(f"These clients are not part of the federation: {sorted(unknown)}.")
        self._asks += 1
        for client, body in requests.items():
            self.participation.request(client, task.name, len(body))
        began = self.seconds, self.engine.clock
        answers = self.engine.ask(task.name, requests, self.policy.deadline)
        self.participation.notes.extend(answers.notes)
        replies = self._accept(task, requests, answers)
        ended = self.seconds, self.engine.clock
        self.participation.timeline.add(task.name, self.round, began, ended, replies, replies.failures, answers.spans)
        for failure in replies.failures.values():
            if failure.kind == "over budget":
                raise BudgetError(failure.message)
        self._check_quorum(task, replies, self.policy.quorum if quorum is None else quorum)
        return replies

    def _accept(self, task: Task, asked: Iterable[str], answers: Answers) -> Replies:
        """Check every answer once; what passes is read again, one at a time, when the program wants it."""
        accepted: dict[str, Blob] = {}
        failures = dict(answers.failures)
        order = list(asked)
        for client in order:
            if client in failures:
                continue
            blob = answers.replies.get(client)
            if blob is None:
                failures[client] = Failure(client, "lost", "the engine gave neither a reply nor a reason")
                continue
            try:
                answer = decode(blob.read())
                if not answer["ok"]:
                    failures[client] = _failure(client, answer)
                    continue
                fields = task.read_reply(answer["fields"]).fields()
                if broken := next(not_finite(fields), None):  # a client that checks itself does not send that
                    raise TaskError(f'"{broken}" holds numbers that are not finite')
                version, guarantees = answer["state"], _guarantees(task, answer["guarantees"])
                seconds, epochs = float(answer["seconds"]), float(answer["epochs"])
            except (PayloadError, TaskError, KeyError, TypeError, ValueError) as error:
                failures[client] = Failure(client, "task error", f"an unusable reply: {error}")
                continue
            accepted[client] = blob
            if version:
                self._versions[client] = version
            self.participation.answer(client, task.name, blob.size, seconds, epochs)
            self.participation.release(client, task.name, task.leaves(), fields, guarantees)
        for failure in failures.values():
            self.participation.failure(failure, task.name, self.round)
        return Replies(task, accepted, failures, order)

    def _check_quorum(self, task: Task, replies: Replies, quorum: float) -> None:
        answered, asked = len(replies), len(replies) + len(replies.failures)
        if answered >= quorum * asked:
            return
        first = next(iter(replies.failures.values()))
        trace = f"\n{first.traceback.rstrip()}" if first.traceback else ""
        raise QuorumError(
            f'Round {self.round}, task "{task.name}": {answered} of {asked} clients answered, '
            f"{quorum:.0%} must. First failure: {first}.{trace}"
        )


def _along(clients: Sequence[str]) -> Callable[[Relayed], str | None]:
    """A route that was fixed beforehand."""
    rest = iter(clients)
    return lambda payload: next(rest, None)


def _failure(client: str, answer: Mapping[str, Any]) -> Failure:
    """What a client says went wrong with its task."""
    if answer["error"] == BudgetError.__name__:
        return Failure(client, "over budget", answer["message"])
    return Failure(client, "task error", f"{answer['error']}: {answer['message']}", answer["traceback"])


def _guarantees(task: Task, given: Mapping[str, Any]) -> dict[str, Guarantee]:
    """What a client declares about the fields of its reply, checked."""
    unknown = set(given) - set(task.leaves())
    if unknown:
        raise TaskError(f'guarantees for {sorted(unknown)}, which task "{task.name}" does not send')
    return {name: Guarantee.model_validate(values) for name, values in given.items()}
