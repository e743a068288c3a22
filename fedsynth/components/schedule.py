"""When a slot value acts: from a round on, and perhaps only in every so many."""

from typing import Self

from pydantic import BaseModel, Field, field_validator

NEVER = 10**9  # a first round that does not come


class Scheduled(BaseModel):
    """Settings of a slot value that does not act in every round."""

    start_round: int | float = Field(
        1, gt=0, description="first round in which it acts (burn-in before); below 1: it acts after this share of them"
    )
    every: int = Field(1, ge=1, description="it acts in every so many rounds")
    offset: int = Field(0, ge=0, description="and so many rounds later than the first")

    @field_validator("start_round")
    @classmethod
    def _round_or_share(cls, start: int | float) -> int | float:
        if start >= 1 and start != int(start):
            raise ValueError("give a whole number of rounds, or a share of them below 1")
        return int(start) if start >= 1 else start

    def scheduled(self, rounds: int) -> Self:
        """The same for a run of so many rounds: a start that is given as a share of them becomes a round."""
        if self.start_round >= 1:
            return self
        # 0.75 of 60 rounds is over after round 45; a product that rounding left just below counts as whole.
        return self.model_copy(update={"start_round": int(self.start_round * rounds + 1e-9) + 1})

    def active(self, index: int) -> bool:
        """Whether it acts in this round, counted from 1."""
        if self.start_round < 1:
            raise ValueError("A start that is a share of the rounds has no round before `scheduled` was called.")
        since = index - int(self.start_round) - self.offset
        return since >= 0 and since % self.every == 0


class LateStart(Scheduled):
    """The same for what does harm in the first rounds, when a model knows little."""

    start_round: int | float = Field(
        0.75,
        gt=0,
        description="first round in which it acts (burn-in before); below 1: it acts after this share of them",
    )
