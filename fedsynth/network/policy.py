"""What a site allows, whatever the server asks. A policy can only refuse: it never makes a request do more."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from fedsynth.federation.payload import empty
from fedsynth.federation.store import alone, lock_of, write_atomically
from fedsynth.federation.tasks import Task
from fedsynth.privacy import Budget, Guarantee, Spending, say_epsilon

FROM_SUMS = ("all but a malicious server", "all but the server")  # what a site that trusts sums takes of masked numbers


class SitePolicy(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The `[policy]` table of a site's file."""

    tasks: tuple[str, ...] | None = Field(None, description="the only tasks that may run here; all, when not given")
    refused: tuple[str, ...] = Field((), description="tasks that may not run here")
    records: bool = Field(
        False, description="whether records may leave as they are, or as means of a few: real images, for instance"
    )
    unprotected: bool = Field(
        True,
        description="whether anything may leave without a guarantee that holds against everybody, the server included; "
        "evaluation counts too. false needs epsilon",
    )
    trust_sum: bool = Field(
        False,
        description="with unprotected = false: whether masked numbers may leave although only noise that the server "
        "adds, or a share of it that each client adds, protects their sum",
    )
    epsilon: float | None = Field(
        None, gt=0, description="largest ε that this site spends on a record, over all runs together"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of that ε")
    examples: int | None = Field(
        None, ge=1, description="number of training examples that is declared as public; the true one, when not given"
    )
    largest_request: int = Field(2**30, ge=1, description="bytes that a request may have")

    @model_validator(mode="after")
    def _protects_something(self) -> "SitePolicy":
        if not self.unprotected and self.epsilon is None:
            raise ValueError("unprotected = false needs epsilon: a guarantee with an ε of any size protects nothing")
        if self.trust_sum and self.unprotected:
            raise ValueError("trust_sum does nothing alone; add unprotected = false")
        return self

    def refusal(self, task: str, size: int) -> str:
        """Why a request may not be carried out here; empty when it may."""
        if size > self.largest_request:
            return f"the request has {size} bytes, and this site takes {self.largest_request} at most"
        if task in self.refused or (self.tasks is not None and task not in self.tasks):
            return f'the policy of this site does not allow the task "{task}"'
        return ""

    def kept_here(self, task: Task) -> str:
        """Why nothing that this task sends may leave; empty when it may, as far as its declaration tells."""
        raw = task.raw_fields()
        if raw and not self.records:
            return f'the policy of this site keeps records here, and "{task.name}" sends them ({", ".join(raw)})'
        return ""

    def objection(self, fields: Mapping[str, Any], guarantees: Mapping[str, Guarantee], looked: bool = True) -> str:
        """Why a reply may not leave; empty when it may. These words are for the site's own log.

        A reply without anything in it tells that its task did not fail; of a task that has `looked` at records, that is
        something.
        """
        if self.unprotected:
            return ""
        bare = [name for name, value in fields.items() if not self._covers(guarantees.get(name), value)]
        if bare:
            return f"without a privacy guarantee: {', '.join(sorted(bare))}"
        return "the task looked at records, and its success would tell of them" if looked and not guarantees else ""

    def _covers(self, guarantee: Guarantee | None, value: Any) -> bool:
        """Whether a field is protected from the server, too, or says nothing."""
        if guarantee is None:
            return empty(value)
        trusted = self.trust_sum and guarantee.masked and guarantee.against in FROM_SUMS
        return guarantee.proven and (guarantee.against == "everybody" or trusted)


class SiteBudget:
    """What a site has spent over all runs, in a file of its own, which no server can turn back."""

    def __init__(self, file: Path, policy: SitePolicy) -> None:
        self.file, self.policy = file, policy

    def charge(self, guarantees: Mapping[str, Guarantee]) -> str:
        """Note what is about to leave; why it may not, if that would pass the site's budget.

        One process at a time reads and writes the file, whichever runs they belong to.
        """
        if not any(guarantee.costs for guarantee in guarantees.values()):
            return ""
        with alone(lock_of(self.file)):
            kept = json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else []
            spending = Spending.from_list(kept).plus(guarantees.values())
            if self.policy.epsilon is not None:
                exceeded = Budget(self.policy.epsilon, self.policy.delta).exceeded(spending)
                if exceeded:
                    scope, epsilon = exceeded
                    limit = f"past the policy of this site, {self.policy.epsilon:g}"
                    return f"it would reach {say_epsilon(epsilon, scope, self.policy.delta)}, {limit}"
            write_atomically(self.file, json.dumps(spending.as_list()).encode())
        return ""
