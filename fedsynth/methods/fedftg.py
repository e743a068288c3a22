"""FedFTG (Zhang et al. 2022, Fine-tuning Global Model via Data-Free Knowledge Distillation for Non-IID FL).

After averaging, the server distils the received models into the average on samples of a conditional generator, in a
game: min over w, max over G of E_{z, y ~ p_t(y)} [ L_md − λ_cls L_cls − λ_dis L_dis ]. L_md, the discrepancy of models
and average, makes samples hard; L_cls keeps them what the models take for their class, L_dis apart. Labels are drawn as
the round's clients have them (customized label sampling, p_t(y) ∝ Σ_k n_k^y), and a model weighs for a class what its
client has of it (class-level ensemble, α_k^y = n_k^y / Σ_i n_i^y). It stands on any method of the shared loop:
`post_aggregation = "hard_samples"`. Without iterations it is FedAvg, bit-identical.

Deviations. L_md is KL(σ(D(x; w_k)) ‖ σ(D(x; w))) for both players; the authors' program gives the generator the mean
absolute difference of scores instead, and one step for each client in turn, where one step here has all clients. The
distances in L_dis are means over entries, as there. Class counts are asked for once. BatchNorm goes on with its stored
statistics. The generator is ours (`synthesis/gan_networks.py`; for tables, a hidden layer), its Adam starts anew each
round; the model's rate is a tenth of the clients', as in the paper's settings.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.ablations import Controls
from fedsynth.components.additions import INSTEAD, record_at_server
from fedsynth.components.class_counts import count_classes
from fedsynth.components.schedule import Scheduled
from fedsynth.components.slots import AggregationContext, PostAggregation
from fedsynth.federation import Client, Reply, leaves, method, task
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import Weights, load_weights, weights_of
from fedsynth.synthesis.distillation import HardSampleDistillation, HardSamples, Losses, SampleGenerator
from fedsynth.synthesis.feature_generator import class_shares

PICTURED = 10  # samples of each class
NOBODY = "Nobody has told class counts: the average was not fine-tuned."


class Distilled(Reply):
    """A model after fine-tuning, and the generator that made it."""

    model: Weights = leaves("weights, fine-tuned on samples that a generator made from shared weights alone")
    generator: Weights = leaves("weights of a generator, trained on shared weights alone")
    images: Tensor = leaves("samples of that generator")
    drawn: Tensor = leaves("numbers of samples of each class")
    losses: Losses = leaves("mean losses")


@task
def distil_hard_samples(
    client: Client,
    model: Weights,
    teachers: list[Weights],
    spec: ModelSpec,
    generator: Weights,
    latent: int,
    channels: int,
    shares: Tensor,
    frequencies: Tensor,
    how: HardSamples,
    training: LocalTraining,
) -> Distilled:
    """A round of FedFTG at the server; a new generator where none was sent."""
    classes = client.schema.classes
    random = torch.Generator().manual_seed(int(client.rng("hard samples").integers(2**62)))
    maker = SampleGenerator(client.schema.shape, classes, latent, channels)
    if generator:
        load_weights(maker, generator)
    student = client.build(spec, model)
    nets = [client.build(spec, weights) for weights in teachers]
    game = HardSampleDistillation(maker, nets, student, shares, how, training)
    drawn = game.run(frequencies, random)
    labels = torch.arange(classes).repeat_interleave(PICTURED)
    with torch.no_grad():
        images = maker(torch.randn((len(labels), latent), generator=random), labels)
    made = {"model": weights_of(student), "generator": weights_of(maker)}
    return client.release(Distilled(**made, images=images, drawn=drawn, losses=game.losses))


CONTROLS: Controls = {
    "without synthesis": {"iterations": 0},
    "noise": {"samples": "noise"},
    "not hard": {"hardness": 0.0},
}


@method("fedftg", controls=CONTROLS, fedavg_when={"iterations": 0}, search={"tune_rate": (0.01, 1.0)})
class HardSampleTuning(Scheduled, PostAggregation, name="hard_samples"):
    """The server distils the received models into their average on hard samples of a generator."""

    unprotected: ClassVar[str] = "clients release how many examples of each class they have"

    iterations: int = Field(10, ge=0, description="turns of generator and model in a round")
    generator_steps: int = Field(1, ge=0, description="steps of the generator in a turn")
    model_steps: int = Field(5, ge=0, description="steps of the model in a turn")
    tune_batch_size: int = Field(50, ge=2, description="samples a step")
    tune_rate: float = Field(0.1, gt=0, description="learning rate of the model, as a share of the clients'")
    generator_lr: float = Field(0.01, gt=0, description="learning rate of the generator (Adam)")
    hardness: float = Field(1.0, ge=0, description="weight of the discrepancy in the generator's loss; 0: not hard")
    fidelity: float = Field(1.0, ge=0, description="λ_cls: weight of what models take samples for")
    diversity: float = Field(1.0, ge=0, description="λ_dis: weight of the term that keeps samples apart")
    labels: Literal["customized", "uniform"] = Field(
        "customized", description="classes of samples: as the round's clients have them, or all alike"
    )
    ensemble: Literal["classes", "equal"] = Field(
        "classes", description="what a model weighs: its client's share of the examples of the class, or 1/K"
    )
    latent: int = Field(100, ge=1, description="length of the noise that samples are made of")
    channels: int = Field(16, ge=1, description="width of the generator of images")
    samples: Literal["synthetic", "noise"] = Field("synthetic", description="control: uniform noise in their place")

    def tune(self, context: AggregationContext) -> Weights:
        if not self.iterations:
            return context.model
        counts = self.counts(context)
        if not counts or not float(sum(each.sum() for each in counts.values())) > 0:
            context.fed.note(NOBODY)
            return context.model
        job = self.job(context, counts)
        done = context.fed.compute(distil_hard_samples, {"distil": job})["distil"]
        context.memory["generator"] = done.generator
        self.show(context, done)
        return done.model

    def counts(self, context: AggregationContext) -> dict[str, Tensor]:
        """n_k^y of the round's clients; each is asked once."""
        known = context.memory.setdefault("counts", {})
        missing = [client for client in context.received if client not in known]
        if missing:
            replies = context.fed.broadcast(count_classes, to=missing)
            known |= {client: torch.from_numpy(reply.counts).double() for client, reply in replies.items()}
        return {client: known[client] for client in context.received if client in known}

    def job(self, context: AggregationContext, counts: dict[str, Tensor]) -> dict[str, object]:
        """The request to the server's own worker."""
        told = torch.stack(list(counts.values()))
        even = torch.full_like(told, 1 / len(told))
        frequencies = told.sum(0) if self.labels == "customized" else torch.ones_like(told[0])
        return {
            "model": context.model,
            "teachers": [context.received[client] for client in counts],
            "spec": context.spec,
            "generator": context.memory.get("generator", {}),
            "latent": self.latent,
            "channels": self.channels,
            "shares": (class_shares(told) if self.ensemble == "classes" else even).float(),
            "frequencies": frequencies / frequencies.sum(),
            "how": self.how(),
            "training": context.training.model_copy(update={"lr": context.training.lr * self.tune_rate}),
        }

    def how(self) -> HardSamples:
        """The settings as the game wants them."""
        return HardSamples(
            iterations=self.iterations,
            generator_steps=self.generator_steps,
            model_steps=self.model_steps,
            batch_size=self.tune_batch_size,
            generator_lr=self.generator_lr,
            hardness=self.hardness,
            fidelity=self.fidelity,
            diversity=self.diversity,
            noise=self.samples == "noise",
        )

    def show(self, context: AggregationContext, done: Distilled) -> None:
        """What was drawn, the losses, and in the end pictures."""
        fed = context.fed
        record_at_server(fed, INSTEAD.get(self.samples, SYNTHETIC), done.drawn.numpy())
        if self.samples == "synthetic":
            fed.measure("discrepancy on hard samples", done.losses.discrepancy)
            fed.measure("models on hard samples", done.losses.infidelity)
            if context.last:
                fed.show("hard-samples", done.images, torch.arange(fed.schema.classes).repeat_interleave(PICTURED))
