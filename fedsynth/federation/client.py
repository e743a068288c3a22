"""What a task sees of the client it runs at: data, private state, randomness and the one way out."""

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

import numpy as np

from fedsynth.data.dataset import ClientData, Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation.payload import Fields, Sealed, encode
from fedsynth.federation.store import StateStore
from fedsynth.federation.tasks import Reply, TaskError
from fedsynth.learning.models import Classifier, ModelSpec, initial_model, instantiate
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.privacy import Budget, BudgetError, Guarantee, Spending, say_epsilon
from fedsynth.seeding import Secret, generator, secret_generator

R = TypeVar("R", bound=Reply)

SPENT = "privacy spent"  # in the private state: what earlier releases have cost, where there is a budget
PUBLIC = "public entries"  # in the private state: the names of those that no record shows in


class PrivateState(MutableMapping[str, Any]):
    """What a client keeps between tasks and never sends. Read from its store when first touched.

    Assign to keep (`state["model"] = weights`): changing a stored tensor in place is not noticed. An entry follows from
    the records, without protection, unless it was kept by `keep_public`: a release that claims to hide single records
    may not lean on others, and `private_reads` tells which ones a task has read.
    """

    def __init__(self, store: StateStore, client: str, version: str | None) -> None:
        self._store, self._client, self._version = store, client, version
        self._values: Fields | None = None
        self.changed = False
        self.private_reads: set[str] = set()

    def _load(self) -> Fields:
        if self._values is None:
            self._values = self._store.read(self._client, self._version) if self._version else {}
        return self._values

    def __getitem__(self, key: str) -> Any:
        values = self._load()
        if key in values and key not in values.get(PUBLIC, ()):
            self.private_reads.add(key)
        return values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._put(key, value, public=False)

    def keep_public(self, key: str, value: Any) -> None:
        """Keep what follows from requests, from protected releases, from random numbers and from nothing else."""
        self._put(key, value, public=True)

    def note(self, key: str, value: Any) -> None:
        """Keep what no task reads: a simulation may look at it when the run ends. Written only when it is new."""
        if self._load().get(key) != value:
            self._put(key, value, public=False)

    def _put(self, key: str, value: Any, public: bool) -> None:
        values = self._load()
        others = [name for name in values.get(PUBLIC, ()) if name != key]
        values[key] = value
        values[PUBLIC] = [*others, key] if public else others
        if not values[PUBLIC]:
            del values[PUBLIC]
        self.changed = True

    def __delitem__(self, key: str) -> None:
        values = self._load()
        del values[key]
        if key in values.get(PUBLIC, ()):
            values[PUBLIC] = [name for name in values[PUBLIC] if name != key]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._load() if key != PUBLIC)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def fingerprint(self) -> str:
        """A hash of the state as the task found it."""
        return self._store.fingerprint(self._client, self._version) if self._version else ""

    def save(self, version: str, step: int) -> None:
        """Write the state under a new version that remembers the one it came from."""
        self._store.write(self._client, version, step, self._version, self._load())


class Client:
    """One participant, as its tasks see it."""

    def __init__(
        self,
        id: str,
        data: ClientData,
        schema: Schema,
        state: PrivateState,
        seed: int,
        round: int,
        device: str,
        budget: Budget | None = None,
        secret: Secret | None = None,
        turn: int = 0,
    ) -> None:
        self.id, self.schema = id, schema
        self.public_size = data.public_size  # the number of training examples that everybody may know
        self.looked = False  # at its records
        self._data = data
        self.state, self.seed, self.round, self.device = state, seed, round, device
        self.budget = budget
        self.turn = turn  # how often a relay of this round has been here before
        self.released: Reply | None = None
        self.sealed: Sealed | None = None  # what leaves: the reply as it was when it was released
        self.guarantees: dict[str, Guarantee] = {}
        self._secret = secret
        self._request: tuple[str, Mapping[str, Any]] = ("", {})
        self._drawn: set[str] = set()  # purposes for which noise was drawn
        self._spent: Spending | None = None  # before this task

    @property
    def data(self) -> ClientData:
        """The client's train, validation and test parts. That a task has looked at them is noted."""
        self.looked = True
        return self._data

    @property
    def place_in_run(self) -> tuple[Any, ...]:
        """What tells this task from all others: client, round and, where a relay comes again, its turn."""
        return (self.id, self.round, self.turn) if self.turn else (self.id, self.round)

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose of this client in this round (and turn); the same on every engine."""
        return generator(self.seed, purpose, *self.place_in_run)

    def build(self, spec: ModelSpec, weights: Weights | None = None) -> Classifier:
        """A network with these weights, on the client's device; without any, the one that everybody starts from."""
        if weights is None:
            return initial_model(self.seed, spec, self.schema).to(self.device)
        return instantiate(spec, self.schema.shape, self.schema.classes, weights).to(self.device)

    def initial_weights(self, spec: ModelSpec) -> Weights:
        """The weights that everybody starts from."""
        return weights_of(initial_model(self.seed, spec, self.schema))

    def class_counts(self) -> np.ndarray:
        """How many training examples of each class the client has; exact, so for its own use."""
        return self.data.train.counts(self.schema.classes)

    def answers(self, task: str, fields: Mapping[str, Any]) -> None:
        """Say which request the noise is for. A task that wraps another says so for the one inside."""
        self._request = task, fields

    def noise_rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for what a proof of privacy needs: noise, who is in a batch, what is drawn for each record.

        With a secret they depend on it, on all that the request says and on the private state: the same request again
        gets the same noise and so learns nothing new, any other gets other noise. Without one they are those of `rng`,
        so that a simulation can be repeated: the server knows the seed, and who knows it can take the noise off.
        """
        if purpose in self._drawn:
            raise FedsynthError(f'Noise for "{purpose}" was drawn twice in one task: noise that is used twice cancels.')
        self._drawn.add(purpose)
        if self._secret is None:
            return self.rng(purpose)
        task, fields = self._request
        asked = encode({"task": task, "seed": self.seed, "at": list(map(str, self.place_in_run)), "fields": fields})
        return secret_generator(self._secret(), purpose, hashlib.sha256(asked).hexdigest(), self.state.fingerprint())

    def release(self, reply: R, **guarantees: Guarantee) -> R:
        """Let `reply` leave the client, as it is now; a task must return what this gives back.

        `guarantees` names the fields that a mechanism protects. A field without one is entered in the ledger as
        unprotected. A release that would pass the privacy budget is refused, and with it the task.
        """
        unknown = set(guarantees) - set(type(reply).model_fields)
        if unknown:
            raise FedsynthError(
                f"A guarantee was given for {sorted(unknown)}, which {type(reply).__name__} does not have."
            )
        self._check_basis(guarantees)
        if self._secret is None or not self._drawn:  # noise that is not drawn from the secret is none to rely on
            guarantees = {name: guarantee.seeded() for name, guarantee in guarantees.items()}
        if self.budget is not None and any(guarantee.proven for guarantee in guarantees.values()):
            self._spend(self.budget, guarantees)
        self.released, self.sealed, self.guarantees = reply, Sealed(reply.fields()), guarantees
        return reply

    def _check_basis(self, guarantees: Mapping[str, Guarantee]) -> None:
        """A proof about single records is void where something unprotected that follows from all of them went in."""
        if self.state.private_reads and any(g.proven and g.unit == "record" for g in guarantees.values()):
            raise TaskError(
                f"Nothing can be proven about single records here: the client's private state "
                f"({', '.join(sorted(self.state.private_reads))}) went in, which follows from its records unprotected."
            )

    def _spend(self, budget: Budget, guarantees: dict[str, Guarantee]) -> None:
        """Charge the budget, or refuse."""
        if self._spent is None:
            self._spent = Spending.from_list(self.state.get(SPENT, []))
        spending = self._spent.plus(guarantees.values())
        exceeded = budget.exceeded(spending)
        if exceeded:
            scope, epsilon = exceeded
            raise BudgetError(
                f"Client {self.id} refused to send {', '.join(sorted(guarantees))}: it would reach "
                f"{say_epsilon(epsilon, scope, budget.delta)}, past privacy.budget = {budget.epsilon:g}."
            )
        self.state.keep_public(SPENT, spending.as_list())
