"""Ensemble (Guha et al. 2019, One-Shot Federated Learning): clients train alone, once, and their models vote.

Every client trains the start model to its end and sends it; the result is all of these models together, and what it
says of an example is the mean of what they say. It is the teacher of one-shot methods that distil it (DENSE), so it
stands beside them: how much of it does the distilled model keep?

Deviations. The paper trains support vector machines, has each client decide by its validation data whether its model
is good enough, and compares ensembles of selected clients; here all models vote. It averages the models' outputs;
`vote` averages their scores (as DENSE's equation 1 does) or their probabilities. Distillation of the ensemble on
public data is not here.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedsynth.components.loop import Loop
from fedsynth.components.one_shot import OneShotConfig, as_ensemble, one_shot
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.layers import Vote
from fedsynth.learning.models import ModelSpec


class EnsembleConfig(OneShotConfig):
    """What is averaged, and what each model counts."""

    vote: Vote = Field("probabilities", description="what is averaged over the models: their probabilities or scores")
    weights: Literal["equal", "examples"] = Field("equal", description="what a client's model counts in the vote")

    @property
    def classifier(self) -> ModelSpec:
        """So many of the experiment's model as clients answered."""
        return self.model.model_copy(update={"vote": self.vote})

    @model_validator(mode="after")
    def _averages_no_weights(self) -> Self:
        for slot in ("aggregator", "server", "post_aggregation"):
            if getattr(self, slot) is not None:
                raise ValueError(f"{slot} is for methods that average weights: here models vote; remove it")
        if self.model.vote not in (None, self.vote):
            raise ValueError("model.vote follows from the method: give method.vote")
        if self.train.norm_buffers != "average":
            raise ValueError("every model keeps BatchNorm's statistics of its own client: remove train.norm_buffers")
        return self


@method("ensemble", config=EnsembleConfig)
def ensemble(fed: Federation, cfg: EnsembleConfig) -> Outcome:
    """Clients train alone, once, and their models vote."""
    loop = Loop(fed, one_shot(cfg))
    start = loop.state.model
    loop.state.model = as_ensemble([(start, 1.0)])
    for round in loop.rounds():
        loop.state.model = start  # what clients are sent
        replies = loop.exchange(round).values()
        votes = [(reply.model, reply.examples if cfg.weights == "examples" else 1.0) for reply in replies]
        loop.state.model = as_ensemble(votes or [(start, 1.0)])
    return Outcome(loop.state.model)
