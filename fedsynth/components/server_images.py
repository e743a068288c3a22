"""Images that a server synthesises from the models it has received: of each alone, or of all of them as one.

As one: DENSE (Zhang et al. 2022, eq. 1) and FedFTG (Zhang et al. 2022) synthesise for the mean of the models' scores,
by a generator, and train the server's model on what that mean says of each sample, so with soft labels. Here the images
themselves are optimised, by the statistics of every model's BatchNorm layers (DENSE, eq. 3: their mean over the
models). Deviations: no generator and no adversarial term (DENSE, eq. 4: samples on which ensemble and student differ);
every model counts the same in every class, where FedFTG weighs a client by its number of examples of the class, which
the server does not have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedsynth.components.one_shot import as_ensemble
from fedsynth.components.server_work import classify_images, invert_model
from fedsynth.components.slots import AggregationContext, Memory
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.synthesis.inversion import Inversion, Start

TOGETHER = 5  # images of each class that one job optimises from all models, so that cores share the work
STORE = "images"  # in the memory of the slot


class SourceSettings(BaseModel):
    """Which models the server's images come from, what they are labelled with, and how long they serve."""

    source: Literal["models", "ensemble"] = Field(
        "models", description="images are synthesised from each received model, or from all of them as one"
    )
    labels: Literal["auto", "wanted", "opinion"] = Field(
        "auto",
        description="trained on are the classes wanted, or what the mean of the received models says; auto: the latter "
        "with an ensemble",
    )
    consensus: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="an image is kept if the mean of the received models, its maker apart, gives its class this much",
    )
    store: int = Field(1, ge=1, description="rounds whose images the server keeps and tunes on")

    @property
    def soft(self) -> bool:
        """Whether the server trains on opinions."""
        return self.labels == "opinion" or (self.labels == "auto" and self.source == "ensemble")


@dataclass(frozen=True)
class ServerImages:
    """Images, the classes they were made for, and what the server trains on: these, or probabilities of each class."""

    images: Tensor
    wanted: Tensor
    targets: Tensor

    def rows(self, rows: Tensor) -> "ServerImages":
        """Some of them."""
        return ServerImages(self.images[rows], self.wanted[rows], self.targets[rows])


def from_each_model(context: AggregationContext, labels: Tensor, start: Start, how: Inversion) -> Tensor:
    """Images with these labels from every received model, one model after the other (Fed-ZDA, algorithm 3)."""
    common = {"spec": context.spec, "start": start, "labels": labels, "inversion": how}
    done = context.fed.compute(invert_model, {c: {"model": w, **common} for c, w in context.received.items()})
    return torch.cat([done[client].images for client in context.received])


def from_ensemble(context: AggregationContext, per_class: int, start: Start, how: Inversion) -> tuple[Tensor, Tensor]:
    """So many images of each class from all received models as one, and their labels, in jobs of a few of each."""
    model, spec = ensemble_of(context)
    # Every layer of every model pulls: a share of the weight each, so that it is their mean (DENSE, eq. 3).
    shared = replace(how, statistics=how.statistics / len(context.received))
    counts = [min(TOGETHER, per_class - done) for done in range(0, per_class, TOGETHER)]
    labels = [torch.arange(context.fed.schema.classes).repeat_interleave(count) for count in counts]
    jobs: dict[str, dict[str, Any]] = {
        str(number): {"model": model, "spec": spec, "start": start, "labels": wanted, "inversion": shared}
        for number, wanted in enumerate(labels)
    }
    done = context.fed.compute(invert_model, jobs)
    return torch.cat([done[job].images for job in jobs]), torch.cat(labels)


def ensemble_of(context: AggregationContext) -> tuple[Weights, ModelSpec]:
    """All received models as one that says the mean of their scores (DENSE, eq. 1)."""
    votes = [(weights, 1.0) for weights in context.received.values()]
    return as_ensemble(votes), context.spec.model_copy(update={"vote": "scores"})


def opinions(context: AggregationContext, images: Tensor, makers: Tensor | None = None) -> Tensor:
    """What the mean of the received models' scores says of each image: probabilities (images, classes).

    `makers` are the numbers of the models that images were made from: what these say of them does not count.
    """
    jobs = {c: {"model": w, "spec": context.spec, "images": images} for c, w in context.received.items()}
    done = context.fed.compute(classify_images, jobs)
    said = torch.stack([done[client].probabilities for client in context.received])
    return mean_opinion(said, makers)


def mean_opinion(probabilities: Tensor, makers: Tensor | None = None) -> Tensor:
    """The softmax of mean scores, out of probabilities (models, images, classes), the makers of the images apart.

    Scores are logarithms of probabilities up to a constant for each model and image, which the softmax takes away.
    """
    scores = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
    if makers is None or len(scores) == 1:
        return scores.mean(0).softmax(1)
    own = scores[makers, torch.arange(len(makers))]
    return ((scores.sum(0) - own) / (len(scores) - 1)).softmax(1)


def keep_rounds(memory: Memory, made: ServerImages, rounds: int) -> ServerImages:
    """The images of the last rounds, these among them; they stay in the memory, and so in checkpoints."""
    if rounds == 1:
        return made
    kept: list[Mapping[str, Tensor]] = [*memory.get(STORE, []), vars(made)][-rounds:]
    memory[STORE] = [dict(one) for one in kept]
    return ServerImages(*(torch.cat([one[part] for one in kept]) for part in ("images", "wanted", "targets")))
