"""What a task sees of the client it runs at: data, private state, randomness and the one way out."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

import numpy as np

from fedsynth.data.dataset import ClientData, Schema
from fedsynth.errors import FedsynthError
from fedsynth.federation.store import StateStore
from fedsynth.federation.tasks import Reply
from fedsynth.privacy import Budget, BudgetError, Guarantee, Spending, say_epsilon
from fedsynth.seeding import generator

R = TypeVar("R", bound=Reply)

SPENT = "privacy spent"  # in the private state: what earlier releases have cost, where there is a budget


class PrivateState(MutableMapping[str, Any]):
    """What a client keeps between tasks and never sends. Read from its store when first touched.

    Assign to keep (`state["model"] = weights`): changing a stored tensor in place is not noticed.
    """

    def __init__(self, store: StateStore, client: str, version: str | None) -> None:
        self._store, self._client, self._version = store, client, version
        self._values: dict[str, Any] | None = None
        self.changed = False

    def _load(self) -> dict[str, Any]:
        if self._values is None:
            self._values = self._store.read(self._client, self._version) if self._version else {}
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._load()[key] = value
        self.changed = True

    def __delitem__(self, key: str) -> None:
        del self._load()[key]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

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
        secret_noise: bool = False,
    ) -> None:
        self.id, self.data, self.schema = id, data, schema
        self.state, self.seed, self.round, self.device = state, seed, round, device
        self.budget, self.secret_noise = budget, secret_noise
        self.turn = 0  # how often a relay of this round has been here before
        self.released: Reply | None = None
        self.guarantees: dict[str, Guarantee] = {}
        self._spent: Spending | None = None  # before this task

    @property
    def occasion(self) -> tuple[Any, ...]:
        """What tells this visit from all others: client, round and, where a relay comes again, its turn."""
        return (self.id, self.round, self.turn) if self.turn else (self.id, self.round)

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose of this client in this round (and turn); the same on every engine."""
        return generator(self.seed, purpose, *self.occasion)

    def noise_rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for privacy noise: those of `rng` in a simulation, so that runs can be repeated.

        Where `secret_noise` is on they come from the operating system's entropy: everybody who gets a request knows the
        seed, and who knows the seed could subtract the noise.
        """
        return np.random.default_rng() if self.secret_noise else self.rng(purpose)

    def release(self, reply: R, **guarantees: Guarantee) -> R:
        """Let `reply` leave the client; a task must return what this gives back.

        `guarantees` names the fields that a mechanism protects. A field without one is entered in the ledger as
        unprotected. A release that would pass the privacy budget is refused, and with it the task.
        """
        unknown = set(guarantees) - set(type(reply).model_fields)
        if unknown:
            raise FedsynthError(
                f"A guarantee was given for {sorted(unknown)}, which {type(reply).__name__} does not have."
            )
        if self.budget is not None and any(guarantee.proven for guarantee in guarantees.values()):
            self._spend(self.budget, guarantees)
        self.released, self.guarantees = reply, guarantees
        return reply

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
        self.state[SPENT] = spending.as_list()
