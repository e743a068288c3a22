"""What a site allows, whatever the server asks. A policy can only refuse: it never makes a request do more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fedsynth.federation.store import write_atomically
from fedsynth.privacy import Budget, Guarantee, Spending, say_epsilon


class SitePolicy(BaseModel):
    """The `[policy]` table of a site's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tasks: tuple[str, ...] | None = Field(None, description="the only tasks that may run here; all, when not given")
    refused: tuple[str, ...] = Field(
        ("draw_real_samples", "average_images"),
        description="tasks that may not run here; by default those in which images leave, real or averaged",
    )
    unprotected: bool = Field(
        True, description="whether anything without a privacy guarantee may leave; evaluation counts too"
    )
    epsilon: float | None = Field(None, gt=0, description="largest ε that this site spends, over all runs together")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of that ε")
    largest_request: int = Field(2**30, ge=1, description="bytes that a request may have")

    def refusal(self, task: str, size: int) -> str:
        """Why a request may not be carried out here; empty when it may."""
        if size > self.largest_request:
            return f"the request has {size} bytes, and this site takes {self.largest_request} at most"
        if task in self.refused or (self.tasks is not None and task not in self.tasks):
            return f'the policy of this site does not allow the task "{task}"'
        return ""

    def objection(self, fields: Mapping[str, Any], guarantees: Mapping[str, Guarantee]) -> str:
        """Why a reply may not leave; empty when it may."""
        bare = [
            name
            for name, value in fields.items()
            if value is not None and not (name in guarantees and guarantees[name].proven)
        ]
        if bare and not self.unprotected:
            return f"the policy of this site lets nothing out without a privacy guarantee ({', '.join(sorted(bare))})"
        return ""


class SiteBudget:
    """What a site has spent over all runs, in a file of its own, which no server can turn back."""

    def __init__(self, file: Path, policy: SitePolicy) -> None:
        self.file, self.policy = file, policy

    def charge(self, guarantees: Mapping[str, Guarantee]) -> str:
        """Note what is about to leave; why it may not, if that would pass the site's budget."""
        if not any(guarantee.proven for guarantee in guarantees.values()):
            return ""
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
