"""One exchange of models in place of rounds: clients train as long as in all rounds together, and send once."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from pydantic import Field, model_validator

from fedsynth.components.loop import LoopConfig
from fedsynth.learning.aggregators import Weighted
from fedsynth.learning.models import MEMBER, SHARES
from fedsynth.learning.weights import Weights

OneShot = TypeVar("OneShot", bound="OneShotConfig")


class OneShotConfig(LoopConfig):
    """Settings of a method that asks every client once."""

    requires_individual_updates: ClassVar[str] = "the server works with the model of each client"

    epochs: int | None = Field(
        None, ge=0, description="epochs of every client, once; none given: train.rounds times train.local_epochs"
    )

    @model_validator(mode="after")
    def _protects_single_models(self) -> Self:
        if self.privacy.updates == "clipped":
            raise ValueError(
                'privacy.updates = "clipped" hides a client among others whose updates are summed up, and here the '
                'server works with the model of each: use "dp_sgd", which hides each record'
            )
        return self


def one_shot(cfg: OneShot) -> OneShot:
    """The settings with one round as long as all, of a single network."""
    epochs = cfg.train.rounds * cfg.train.local_epochs if cfg.epochs is None else cfg.epochs
    single: dict[str, Any] = {"rounds": min(1, cfg.train.rounds), "local_epochs": epochs}
    model = cfg.model.model_copy(update={"vote": None})
    return cfg.model_copy(update={"train": cfg.train.model_copy(update=single), "model": model})


def as_ensemble(votes: Sequence[Weighted]) -> Weights:
    """The weights of an ensemble of these models, each with what it counts."""
    entries = {f"{MEMBER}{n}.{name}": entry for n, (model, _) in enumerate(votes) for name, entry in model.items()}
    total = sum(count for _, count in votes)
    return entries | {SHARES: torch.tensor([count / total for _, count in votes])}
