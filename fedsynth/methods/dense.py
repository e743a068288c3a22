"""DENSE (Zhang et al. 2022, DENSE: Data-Free One-Shot Federated Learning): an ensemble of one exchange, distilled.

Algorithm 1. Clients train once, to the end, and send their models. The server trains a generator on their ensemble D,
the mean of their scores (eq. 1): what it makes of a label is what D takes for it (eq. 2), has the statistics that the
models' BatchNorm layers store (eq. 3) and lies where D and the global model differ (eq. 4). In turn the global model
learns from D on what was generated (eq. 6). As `post_aggregation = "dense"` it follows every round of another method,
which is the paper's extension to several rounds.

`form = "published"`: 200 epochs of 30 generator steps on 128 samples, after which the model takes one step, on these.
Ours: fewer and smaller epochs, in each of which the model goes over all batches so far, as it does in the authors'
program. Deviations in both: the generator is ours, and told the label; in that program it starts anew in each
epoch, together with noise that is trained, too, and images are shifted and flipped before the models see them, which is
not here. While the generator trains, the global model's BatchNorm has its stored statistics. Where models have no
BatchNorm, eq. 3 is left out.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.ablations import Controls
from fedsynth.components.additions import INSTEAD, record_at_server
from fedsynth.components.loop import federated_loop
from fedsynth.components.one_shot import OneShotConfig, one_shot
from fedsynth.components.schedule import Scheduled
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import AggregationContext, PostAggregation
from fedsynth.federation import Client, Federation, Outcome, Reply, leaves, method, task
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.synthesis.distillation import SampleGenerator
from fedsynth.synthesis.ensemble_distillation import Distillation, EnsembleDistillation, Parts

PICTURED = 10  # samples of each class


class DistilledEnsemble(Reply):
    """A model that has learned from an ensemble."""

    model: Weights = leaves("weights, distilled from shared models on samples that were made from these alone")
    images: Tensor = leaves("samples of a generator that was trained on shared weights alone")
    made: Tensor = leaves("numbers of samples of each class")
    parts: Parts = leaves("parts of the generator's last loss")


@task
def distil_ensemble(
    client: Client,
    model: Weights,
    teachers: list[Weights],
    spec: ModelSpec,
    latent: int,
    channels: int,
    how: Distillation,
    training: LocalTraining,
) -> DistilledEnsemble:
    """Both stages of DENSE, at the server: train a generator on the models, and the model on what it makes."""
    classes = client.schema.classes
    random = torch.Generator().manual_seed(int(client.rng("ensemble distillation").integers(2**62)))
    generator = SampleGenerator(client.schema.shape, classes, latent, channels)
    student = client.build(spec, model)
    stages = EnsembleDistillation(generator, [client.build(spec, w) for w in teachers], student, how, training)
    made = stages.run(classes, random)
    labels = torch.arange(classes).repeat_interleave(PICTURED)
    with torch.no_grad():
        images = generator(torch.randn((len(labels), latent), generator=random), labels)
    return client.release(DistilledEnsemble(model=weights_of(student), images=images, made=made, parts=stages.parts))


class DenseSettings(PublishedForm):
    """How generator and model are trained."""

    published: ClassVar[dict[str, Any]] = {
        **{"distil_epochs": 200, "generator_steps": 30, "tune_batch_size": 128, "pool": False}
    }

    distil_epochs: int = Field(40, ge=0, description="epochs of generator and model at the server")
    generator_steps: int = Field(10, ge=0, description="T_G: steps of the generator in an epoch")
    tune_batch_size: int = Field(64, ge=2, description="samples that an epoch makes")
    generator_lr: float = Field(0.001, gt=0, description="learning rate of the generator (Adam)")
    statistics: float = Field(1.0, ge=0, description="λ1: weight of the BatchNorm statistics (eq. 3)")
    boundary: float = Field(0.5, ge=0, description="λ2: weight of samples where ensemble and model differ (eq. 4)")
    pool: bool = Field(True, description="the model goes over all samples so far in each epoch, not the last alone")
    distil_lr: float = Field(0.01, gt=0, description="learning rate of the model")
    distil_momentum: float = Field(0.9, ge=0, lt=1, description="its momentum")
    start: Literal["fresh", "average"] = Field(
        "fresh", description="the model begins as everybody's start model, or as the average of the clients'"
    )
    latent: int = Field(100, ge=1, description="length of the noise that samples are made of")
    channels: int = Field(16, ge=1, description="width of the generator of images")
    samples: Literal["synthetic", "noise"] = Field("synthetic", description="control: uniform noise in their place")


class DenseTuning(DenseSettings, Scheduled, PostAggregation, name="dense"):
    """The server distils the ensemble of the received models into one, on samples of a generator."""

    def tune(self, context: AggregationContext) -> Weights:
        fed = context.fed
        start = context.model if self.start == "average" else fed.initial_weights(context.spec)
        if not self.distil_epochs:
            return start
        job = {
            "model": start,
            "teachers": list(context.received.values()),
            "spec": context.spec,
            "latent": self.latent,
            "channels": self.channels,
            "how": self.how(),
            "training": LocalTraining(lr=self.distil_lr, momentum=self.distil_momentum),
        }
        done = fed.compute(distil_ensemble, {"distil": job})["distil"]
        record_at_server(fed, INSTEAD.get(self.samples, SYNTHETIC), done.made.numpy())
        if self.samples == "synthetic":
            fed.measure("generator: cross-entropy", done.parts.infidelity)
            fed.measure("generator: BatchNorm statistics", done.parts.statistics)
            if context.last:
                fed.show("dense", done.images, torch.arange(fed.schema.classes).repeat_interleave(PICTURED))
        return done.model

    def how(self) -> Distillation:
        """The settings as the two stages want them."""
        return Distillation(
            epochs=self.distil_epochs,
            generator_steps=self.generator_steps,
            batch_size=self.tune_batch_size,
            generator_lr=self.generator_lr,
            statistics=self.statistics,
            boundary=self.boundary,
            pool=self.pool,
            noise=self.samples == "noise",
        )


class DenseConfig(DenseSettings, OneShotConfig):
    """Settings of DENSE after one exchange."""


CONTROLS: Controls = {
    "without synthesis": {"distil_epochs": 0, "start": "average"},
    "noise": {"samples": "noise"},
    "no boundary": {"boundary": 0.0},
}


@method("dense", config=DenseConfig, controls=CONTROLS, search={"distil_lr": (0.001, 0.1)})
def dense(fed: Federation, cfg: DenseConfig) -> Outcome:
    """Clients train alone, once; the server distils the ensemble of their models on samples of a generator."""
    tuning = DenseTuning(**{name: getattr(cfg, name) for name in DenseSettings.model_fields})
    return federated_loop(fed, one_shot(cfg), post_aggregation=tuning)
