"""FedGen (Zhu et al. 2021, Data-Free Knowledge Distillation for Heterogeneous Federated Learning): a feature generator.

Algorithm 1. The server trains a small generator G(z|y) of features on the heads of the models that it has received:
what is generated for a class is what the mean of the heads' scores takes for it (eq. 4). It sends the generator with
the model, and a client minimises its own loss and that of its head on generated features, whose classes are drawn as
they are frequent in the federation (eq. 5). The model is FedAvg's average; `alpha = 0` is FedAvg, bit-identical.

Deviations. The authors' program is not the paper's equations in all, and where they differ the equations are followed:
it adds, at clients, a distance between scores of examples and those of features that are generated for the same
classes, weighs the term of eq. 5 by 10 at first and less from round to round, and sums the losses of single heads,
weighted by what each client has of the class (`heads = "classes"` has these weights inside eq. 4). As there, the
generator's loss has a term that keeps what is generated apart (`diversity`; 0 is eq. 4 alone). The generator has no
BatchNorm and Adam starts anew each round. A client draws as many features a step as its batch has examples.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedsynth.components.slots import AggregationContext, LocalContext, LocalObjective, Memory, PostAggregation
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Reply, leaves, method, task
from fedsynth.federation.tasks import TaskError
from fedsynth.learning.models import Classifier
from fedsynth.learning.training import CrossEntropy, FitResult, Objective
from fedsynth.learning.weights import Weights, WeightsError, load_weights, weights_of
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.feature_generator import FeatureGenerator, GeneratorTraining, class_shares, train_generator

COUNTS = "label counts"  # beside the weights in a reply
FREQUENCIES, PREFIX = "label frequencies", "generator."  # beside the model in a request
SENDS_COUNTS = "its clients send how many examples of each class they have"


@dataclass
class Regularised(CrossEntropy):
    """Eq. 5: the loss on examples, and α times that of the head on generated features."""

    generator: FeatureGenerator
    frequencies: np.ndarray
    alpha: float
    rng: np.random.Generator
    only_noise: bool = False

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of the examples + α · cross-entropy of as many features drawn from the generator."""
        assert isinstance(model, Classifier)
        labels = torch.from_numpy(self.rng.choice(len(self.frequencies), len(y), p=self.frequencies))
        features = self.draw(labels, model.head.in_features).to(x.device)
        return super().loss(model, x, y) + self.alpha * F.cross_entropy(model.head(features), labels.to(x.device))

    def draw(self, labels: Tensor, width: int) -> Tensor:
        """Features of these classes."""
        length = width if self.only_noise else self.generator.noise
        noise = torch.from_numpy(self.rng.standard_normal((len(labels), length), dtype=np.float32))
        with torch.no_grad():
            return noise if self.only_noise else self.generator(noise, labels)


class LearnedFeatures(Reply):
    """A generator after training."""

    generator: Weights = leaves("weights of a feature generator, trained on the heads of shared models")
    loss: float = leaves("its last loss on them")


@task
def learn_features(
    client: Client,
    generator: Weights,
    noise: int,
    hidden: int,
    heads: list[Weights],
    shares: Tensor,
    frequencies: Tensor,
    training: GeneratorTraining,
) -> LearnedFeatures:
    """Train the generator on heads that were sent (eq. 4); a new one where none was."""
    classes, features = heads[0]["weight"].shape
    random = torch.Generator().manual_seed(int(client.rng("feature generator").integers(2**62)))
    net = FeatureGenerator(noise, classes, hidden, features)
    if generator:
        load_weights(net, generator)
    loss = train_generator(net, heads, shares, frequencies, training, random)
    return client.release(LearnedFeatures(generator=weights_of(net), loss=loss))


class FeatureTraining(PostAggregation, name="feature_generator"):
    """The server trains a generator of features on the heads of the received models, for the clients' objective."""

    needs: ClassVar[str] = "feature_generator"
    unprotected: ClassVar[str] = SENDS_COUNTS

    heads: Literal["equal", "classes"] = Field(
        "equal", description="what a head weighs: 1/K, or its client's share of the examples of the class"
    )
    generator_steps: int = Field(200, ge=1, description="steps of the generator in a round")
    generator_batch: int = Field(32, ge=2, description="features a step")
    generator_lr: float = Field(0.001, gt=0, description="learning rate of the generator (Adam)")
    diversity: float = Field(1.0, ge=0, description="weight of the term that keeps generated features apart")
    noise: int = Field(32, ge=1, description="length of the noise that features are made of")
    hidden: int = Field(128, ge=1, description="units of the generator's hidden layer")

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        if not isinstance(net.head, nn.Linear):
            raise ConfigError('"feature_generator" speaks to a linear head, and this model has none.')

    def active(self, index: int) -> bool:
        return True

    def sent(self, memory: Memory) -> Weights:
        generator = {PREFIX + name: entry for name, entry in memory.get("generator", {}).items()}
        return generator | {FREQUENCIES: memory["frequencies"]} if generator else {}

    def tune(self, context: AggregationContext) -> Weights:
        """Trains the generator on the models of this round, and leaves the model as it is."""
        told = {client: extra[COUNTS].double() for client, extra in context.extra.items() if COUNTS in extra}
        counts = context.memory.setdefault("counts", {})
        counts |= told
        frequencies = sum(counts.values(), torch.zeros(context.fed.schema.classes, dtype=torch.float64))
        if not told or not frequencies.sum() > 0:
            return context.model
        job = {
            "generator": context.memory.get("generator", {}),
            "noise": self.noise,
            "hidden": self.hidden,
            "heads": [head_of(context.received[client]) for client in told],
            "shares": self.shares(torch.stack(list(told.values()))),
            "frequencies": frequencies / frequencies.sum(),
            "training": GeneratorTraining(
                self.generator_steps, self.generator_batch, self.generator_lr, self.diversity
            ),
        }
        done = context.fed.compute(learn_features, {"features": job})["features"]
        context.memory["generator"], context.memory["frequencies"] = done.generator, job["frequencies"]
        context.fed.measure("loss of the feature generator", done.loss)
        return context.model

    def shares(self, counts: Tensor) -> Tensor:
        """What each client's head weighs for each class."""
        equal = torch.full_like(counts, 1 / len(counts))
        return (class_shares(counts) if self.heads == "classes" else equal).float()


def head_of(model: Weights) -> Weights:
    """The weights of the last layer alone."""
    return {name: model[f"head.{name}"] for name in ("weight", "bias")}


@method(
    "fedgen",
    fedavg_when={"alpha": 0.0},
    search={"alpha": (0.1, 10.0)},
    controls={"without synthesis": {"alpha": 0.0}, "noise": {"features": "noise"}},
    post_aggregation=FeatureTraining,
)
class GeneratedFeatures(LocalObjective, name="feature_generator"):
    """Clients train their head on features, too, from a generator that the server trains on everybody's heads."""

    needs: ClassVar[str] = "feature_generator"
    other_half: ClassVar[str] = "post_aggregation"
    unprotected: ClassVar[str] = SENDS_COUNTS

    alpha: float = Field(1.0, ge=0, description="weight of the loss on generated features (eq. 5: 1)")
    features: Literal["generated", "noise"] = Field(
        "generated", description="control: standard normal noise in place of generated features"
    )

    def begin(self, local: LocalContext) -> Objective:
        if not self.alpha or FREQUENCIES not in local.sent:
            return CrossEntropy()
        generator, frequencies = received_generator(local)
        rng = local.client.rng("generated features")
        return Regularised(generator, frequencies, self.alpha, rng, only_noise=self.features == "noise")

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        return {COUNTS: torch.from_numpy(local.client.class_counts())} if self.alpha else {}


def received_generator(local: LocalContext) -> tuple[FeatureGenerator, np.ndarray]:
    """The generator that came, and how frequent classes are; refused where they do not fit this client's model."""
    weights = {name.removeprefix(PREFIX): entry for name, entry in local.sent.items() if name.startswith(PREFIX)}
    classes, width = local.net.head.weight.shape
    shares = local.sent[FREQUENCIES].double()
    try:
        generator = FeatureGenerator.from_weights(weights, classes)
        fits = generator.second.out_features == width and generator.noise > 0 and shares.shape == (classes,)
    except (KeyError, ValueError, RuntimeError, WeightsError):
        fits = False
    if not fits or not (shares >= 0).all() or not 0 < float(shares.sum()) < float("inf"):
        raise TaskError("The feature generator that came does not fit this client's model and classes.")
    return generator, (shares / shares.sum()).numpy()
