"""The server trains a head on virtual features: draws from the Gaussians of the classes. No example is near."""

from collections.abc import Sequence

from pydantic import BaseModel, Field
from torch import Tensor

from fedsynth.components.additions import class_names, count_labels, record_at_server
from fedsynth.components.moment_release import ReleasedMoments
from fedsynth.federation import Client, Federation, Reply, leaves, task
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.synthesis.mixtures import Gaussians, draw_mixture

VIRTUAL = "virtual features"
NOTHING_KNOWN = "The released counts do not show that anybody has an example: the head stayed as it was."


class HeadSettings(BaseModel):
    """How a head is trained on virtual features."""

    draws: int = Field(1000, ge=1, description="virtual features of each class")
    head_epochs: int = Field(20, ge=0, description="epochs of the head on them, by Adam in batches of 64")
    head_lr: float = Field(0.001, gt=0, description="learning rate of the head")

    def head_training(self) -> LocalTraining:
        """The same, for the training loop."""
        return LocalTraining(epochs=self.head_epochs, batch_size=64, lr=self.head_lr, optimizer="adam")


class TunedHead(Reply):
    """A model with another head."""

    model: Weights = leaves("weights, the head trained on draws from released class moments")


@task
def tune_head(
    client: Client, model: Weights, spec: ModelSpec, features: Tensor, labels: Tensor, training: LocalTraining
) -> TunedHead:
    """Train the head of a model on features; its body stays as it is."""
    net = client.build(spec, model)
    fit(net.head, features, labels, training, client.rng("head"))
    return client.release(TunedHead(model=weights_of(net)))


def head_on_draws(
    fed: Federation, mixture: Sequence[ReleasedMoments], model: Weights, spec: ModelSpec, settings: HeadSettings
) -> Weights:
    """The model with its head trained on as many draws of each class that is known."""
    gaussians = [Gaussians(each.model, each.counts) for each in mixture]
    features, labels = draw_mixture(gaussians, fed.schema.classes, settings.draws, fed.rng("virtual features"))
    if not len(labels):
        fed.note(NOTHING_KNOWN)
        return model
    drawn = count_labels(labels, fed.schema.classes)
    record_at_server(fed, VIRTUAL, drawn)
    if missing := [name for name, count in zip(class_names(fed), drawn, strict=True) if not count]:
        fed.note(
            f"The head was trained on nothing of {', '.join(missing)}: no released count shows that anybody has it."
        )
    fields = {"features": features, "labels": labels, "training": settings.head_training()}
    return fed.compute(tune_head, {"head": {"model": model, "spec": spec, **fields}})["head"].model
