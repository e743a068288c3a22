"""What a server program sees of its federation: clients to ask, rounds to count, randomness to draw."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedsynth.data.dataset import Schema
from fedsynth.errors import FedsynthError, UserError
from fedsynth.federation.journal import Journal
from fedsynth.federation.participation import Participation
from fedsynth.federation.payload import PayloadError, decode, encode, not_finite
from fedsynth.federation.port import POOLED, SERVER, Answers, Blob, Engine, Failure
from fedsynth.federation.records import checked_record
from fedsynth.federation.replies import Relayed, Replies, Route
from fedsynth.federation.state import Policy, QuorumError, State, Watcher, picked, typed
from fedsynth.federation.tasks import Task, TaskError
from fedsynth.learning.models import Classifier, ModelSpec, initial_model
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.privacy import BudgetError, Guarantee, say_epsilon
from fedsynth.seeding import Secret, generator, secret_generator

T = TypeVar("T")


class Federation:
    """The clients, as a server program may use them."""

    def __init__(
        self,
        engine: Engine,
        clients: Sequence[str],
        schema: Schema,
        seed: int = 0,
        policy: Policy | None = None,
        journal: Journal | None = None,
        watcher: Watcher | None = None,
        pooled: bool = False,
        version_readable: Callable[[str, str], bool] = lambda client, version: True,
        secret: Secret | None = None,
    ) -> None:
        self.engine, self.clients, self.schema, self.seed = engine, tuple(clients), schema, seed
        self.policy, self.journal, self.watcher = policy or Policy(), journal or Journal(None), watcher
        reserved = [client for client in self.clients if client == POOLED or client.startswith(SERVER)]
        if reserved:
            raise UserError(
                f'A client cannot be called "{reserved[0]}": "{POOLED}" and names that begin with "{SERVER}" have a '
                "meaning of their own here. Give it another name."
            )
        self.round = 0  # of the model that is evaluated
        self._moment = 0  # rounds and steps of phases: what randomness is told apart by
        self.participation = Participation()
        self._pooled, self._checkpoint, self._asks = pooled, 0, 0
        self._secret, self.secret_noise = secret, secret is not None
        self._known = frozenset((*self.clients, POOLED))
        self._versions: dict[str, str] = {}
        self._finished: list[str] = []
        self._entered: set[str] = set()
        self._inside = ""
        self._current: dict[str, Any] | None = None
        self._seconds, self._clock = 0.0, time.perf_counter()
        self._resume(version_readable)

    # -- asking -------------------------------------------------------------------------------------------------

    def broadcast(
        self,
        task: Task,
        to: Iterable[str] | None = None,
        quorum: float | None = None,
        attempts: int = 1,
        **fields: Any,
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
        self,
        task: Task,
        requests: Mapping[str, Mapping[str, Any]],
        quorum: float | None = None,
        attempts: int = 1,
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

    def compute(self, task: Task, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Work of the server's own, by name, over the cores of its engine. Nothing of it crosses to a client."""
        requests = {SERVER + name: self._request(task, [], fields) for name, fields in jobs.items()}
        self._asks += 1
        answers = self.engine.ask(task.name, requests, None)
        self.participation.notes.extend(answers.notes)
        done: dict[str, Any] = {}
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

    # -- choosing and drawing -----------------------------------------------------------------------------------

    def sample(self, fraction: float = 1.0, among: Sequence[str] | None = None) -> list[str]:
        """A share of the clients, at least one, drawn for this round and in the order of the federation."""
        clients = self.clients if among is None else tuple(among)
        count = picked(fraction, len(clients))
        if count >= len(clients):
            return list(clients)
        rows = self.rng("sample").choice(len(clients), count, replace=False)
        return [clients[row] for row in sorted(rows)]

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose of the server in this round."""
        return generator(self.seed, purpose, "server", self._moment)

    def noise_rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for privacy noise that the server adds; by the secret key, where there is one."""
        return self.rng(purpose) if self._secret is None else secret_generator(self._secret(), purpose, self._moment)

    def initial_weights(self, spec: ModelSpec) -> Weights:
        """The weights that every method of this seed starts from; clients can make them, too."""
        return weights_of(self.initial_model(spec))

    def initial_model(self, spec: ModelSpec) -> Classifier:
        """The model that every method of this seed starts from."""
        return initial_model(self.seed, spec, self.schema)

    def pooled(self) -> str:
        """The pretended client that holds everybody's data, for upper bounds. Only a simulation has it."""
        if not self._pooled:
            raise FedsynthError("Pooled data exists in simulations only: this federation's data is apart.")
        return POOLED

    def note(self, text: str) -> None:
        """Tell the user something about this run; said once, in the summary."""
        if text not in self.participation.notes:
            self.participation.notes.append(text)

    def record(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep a small matrix, groups or a table for people to see (see `records.py`); the last of a name counts."""
        if not self._replaying:
            self.participation.records[name] = checked_record(name, value, self.round)

    def show(self, name: str, images: Tensor, labels: Tensor) -> None:
        """Pictures for people to look at, made at the server of what it has; a run folder keeps them.

        What is not an image (channels, height, width) is not shown.
        """
        if self.watcher and not self._replaying and len(self.schema.shape) == 3:
            self.watcher.show(self, name, images, labels)

    @property
    def _replaying(self) -> bool:
        """Whether a resumed program is still in what it did before: people have been shown that already."""
        return self._current is not None or not self._entered.issuperset(self._finished)

    @property
    def seconds(self) -> float:
        """Seconds this run has taken so far, those before a resume included."""
        return self._seconds + time.perf_counter() - self._clock

    # -- the journal --------------------------------------------------------------------------------------------

    def rounds(self, name: str, count: int, state: State) -> Iterator[int]:
        """Count rounds of the model that is evaluated, from 1; after each `state` is validated, recorded and kept.

        A resumed run goes on after its last kept round, with `state` as it was then. A program that sets
        `state.finished` ends them early.
        """
        return self._count(name, count, state, evaluated=True)

    def steps(self, name: str, count: int, state: State) -> Iterator[int]:
        """Count the steps of a phase that is no round, such as training GANs; each is kept as a round is."""
        return self._count(name, count, state, evaluated=False)

    def _count(self, name: str, count: int, state: State, evaluated: bool) -> Iterator[int]:
        self._enter(name)
        if name in self._finished:
            state.restore(self.journal.phase(name)["state"])
            return
        done = self._take_up(name, state)
        ledger = self.participation.ledger
        if done == 0:
            ledger.begin_phase()
        if self.watcher:
            self.watcher.phase_started(name, count, done)
        for index in range(done + 1, count + 1):
            self._moment += 1
            self.round += evaluated
            self._inside = name
            ledger.begin_round()
            yield index
            ledger.end_round()
            self._inside = ""
            stop = bool(self.watcher and self._observe(name, state, evaluated))
            last = stop or index == count or vars(state).get("finished", False) or self._spent_up()
            if last:
                self._finish(name, {"state": vars(state)})
            self._keep(None if last else name, index, state)
            if last:
                break
        if count == 0:
            self._finish(name, {"state": vars(state)})

    def _observe(self, name: str, state: State, evaluated: bool) -> bool:
        """Have the watcher look at what a round or step left; whether to stop here."""
        assert self.watcher is not None
        if evaluated:
            return self.watcher.round_done(self, name, state)
        self.watcher.step_done(self, name)
        return False

    def _spent_up(self) -> bool:
        """Whether one more round like the last would bring a client past its privacy budget."""
        budget = self.policy.budget
        over = self.participation.ledger.would_overspend(budget) if budget else None
        if budget is None or over is None:
            return False
        client, scope, epsilon = over
        self.note(
            f"Stopped after round {self.round}: one more like it would bring client {client} to "
            f"{say_epsilon(epsilon, scope, budget.delta)}, past privacy.budget = {budget.epsilon:g}."
        )
        return True

    def once(self, name: str, work: Callable[[], T], kind: Any = None) -> T:
        """Do a piece of work once in the life of a run and keep what it gave, clients' private states included.

        What is kept comes back as plain dicts and lists, or as `kind` where that is given.
        """
        self._enter(name)
        if name not in self._finished:
            self._finish(name, {"result": work()})
            self._keep(None, 0, None)
        result = self.journal.phase(name)["result"]
        return typed(kind, result) if kind is not None else result

    def _enter(self, name: str) -> None:
        """A phase begins: by a name of its own, and not inside another, or a resumed run would lose its place."""
        if self._inside:
            raise FedsynthError(f'The phase "{name}" begins inside the rounds of "{self._inside}": put it outside.')
        if name in self._entered:
            raise FedsynthError(f'Two phases of this program are called "{name}": give each a name of its own.')
        self._entered.add(name)

    def _take_up(self, name: str, state: State) -> int:
        kept, self._current = self._current, None
        if kept is None or kept["phase"] != name:
            return 0
        state.restore(kept["state"])
        return int(kept["index"])

    def _finish(self, name: str, values: dict[str, Any]) -> None:
        self.journal.keep_phase(name, values)
        self._finished.append(name)

    def _keep(self, phase: str | None, index: int, state: State | None) -> None:
        self._checkpoint += 1
        self._asks = 0
        self.journal.write(
            self._checkpoint,
            {
                "step": self._checkpoint,
                "round": self.round,
                "moment": self._moment,
                "phase": phase,
                "index": index,
                "finished": self._finished,
                "state": vars(state) if phase and state else {},
                "versions": self._versions,
                "participation": self.participation.as_dict(),
                "seconds": self.seconds,
                "clock": self.engine.clock,
                "watcher": self.watcher.snapshot() if self.watcher else {},
            },
        )

    def _resume(self, version_readable: Callable[[str, str], bool]) -> None:
        def whole(kept: dict[str, Any]) -> bool:
            return all(version_readable(client, version) for client, version in kept["versions"].items())

        kept = self.journal.latest(whole)
        if kept is None:
            if self.watcher:
                self.watcher.restore({})
            return
        self._checkpoint, self.round, self._moment = kept["step"], kept["round"], kept["moment"]
        self._seconds = kept["seconds"]
        self._finished, self._versions = list(kept["finished"]), dict(kept["versions"])
        self.participation = Participation.from_dict(kept["participation"])
        self._current = kept if kept["phase"] else None
        self.engine.clock = kept["clock"]
        if self.watcher:
            self.watcher.restore(kept["watcher"])


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
