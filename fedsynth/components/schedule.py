"""When a slot value acts: from a round on, and perhaps only in every so many."""

from pydantic import BaseModel, Field

NEVER = 10**9  # a first round that does not come


class Scheduled(BaseModel):
    """Settings of a slot value that does not act in every round."""

    start_round: int = Field(1, ge=1, description="first round in which it acts (burn-in before)")
    every: int = Field(1, ge=1, description="it acts in every so many rounds")
    offset: int = Field(0, ge=0, description="and so many rounds later than the first")

    def active(self, index: int) -> bool:
        """Whether it acts in this round, counted from 1."""
        since = index - self.start_round - self.offset
        return since >= 0 and since % self.every == 0
