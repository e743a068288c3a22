"""What a server program sees of its federation: clients to ask, rounds to count, randomness to draw."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedsynth.data.dataset import Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation.journal import Journal
from fedsynth.federation.participation import Participation
from fedsynth.federation.payload import Fields
from fedsynth.federation.port import POOLED, Engine
from fedsynth.federation.records import checked_record
from fedsynth.federation.requests import Requests
from fedsynth.federation.state import Policy, State, Watcher, picked, typed
from fedsynth.learning.models import Classifier, ModelSpec, initial_model
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.privacy import say_epsilon
from fedsynth.seeding import Secret, generator, secret_generator

T = TypeVar("T")


class Federation(Requests):
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
        super().__init__(engine, clients, seed, policy or Policy())
        self.schema, self.journal, self.watcher = schema, journal or Journal(None), watcher
        self._pooled, self._secret, self.secret_noise = pooled, secret, secret is not None
        self._finished: list[str] = []
        self._entered: set[str] = set()
        self._inside = ""
        self.measured: dict[str, float] = {}  # numbers of the round that goes on
        self._current: Fields | None = None
        self._resume(version_readable)

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

    def measure(self, name: str, value: float) -> None:
        """Put a number of this round into the run's metrics; it must follow from what the server has anyway.

        One that is not finite is left out. What is measured in steps of a phase is not kept: these have no metrics.
        """
        if math.isfinite(value):
            self.measured[name] = float(value)

    def measure_alignment(self, name: str, spec: ModelSpec, model: Weights, samples: tuple[Tensor, Tensor]) -> None:
        """Measure, in a simulation, whether a step on these samples helps: the cosine between the gradient on them and
        the gradient on held-out data (AggEnhance, eq. 9). It goes into the metrics alone; the program never sees it.
        """
        if self.watcher:
            found = self.watcher.alignment(self, spec, model, samples)
            if found is not None:
                self.measure(name, found)

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
            self._inside, self.measured = name, {}
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

    def _finish(self, name: str, values: Fields) -> None:
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
        def whole(kept: Fields) -> bool:
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
