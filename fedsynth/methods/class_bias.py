"""Class-bias correction: after each aggregation the head's mean scores are made equal for all classes.

A control for AggEnhance (see `agg_enhance`) and methods like it, not a published method. Tuning an aggregate on inputs
of all classes makes it, first of all, predict all classes equally often. This does that alone and trains nothing: the
aggregate's scores are W f + b with f the features of an input. With f̄ their mean over some inputs, spread as noise or
as points of every class, the mean scores less their own average are d = (W f̄ + b) − mean. Then

    through = "bias":      b ← b − strength · d
    through = "weights":   W ← W − strength · d_W f̄ᵀ / ‖f̄‖²,   b ← b − strength · d_b

where d = d_W + d_b are the parts of W f̄ and of b. Either makes mean scores equal on these inputs (strength 1); the
second does so on all inputs whose mean features have the same direction, however long they are.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedsynth.components.ablations import Controls, draw_from_all
from fedsynth.components.schedule import NEVER, Scheduled
from fedsynth.components.slots import AggregationContext, PostAggregation
from fedsynth.errors import ConfigError
from fedsynth.federation import Client, Reply, leaves, method, task
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.methods.agg_enhance.search import Search
from fedsynth.methods.agg_enhance.settings import InteriorSettings
from fedsynth.privacy import PrivacyConfig

BATCH = 500
REAL_EACH = 20  # real inputs of each class, for the control

CONTROLS: Controls = {"without synthesis": {"start_round": NEVER}, "real samples": {"inputs": "real"}}

Through = Literal["bias", "weights"]


@method("class_bias", model="agg_cnn", controls=CONTROLS, fedavg_when={"strength": 0.0})
class ClassBias(Scheduled, PostAggregation, name="class_bias"):
    """The server makes the head's mean scores on noise equal for all classes; no images are trained on."""

    inputs: Literal["noise", "points", "real"] = Field(
        "noise",
        description="what scores are measured on: uniform noise, class interior points of the received models, or, as "
        "a control, real samples",
    )
    count: int = Field(200, ge=1, description="inputs of noise")
    through: Through = Field("weights", description="what is changed: biases alone, or weights along the mean feature")
    strength: float = Field(1.0, ge=0, le=1, description="share of the difference that is taken away")

    @property
    def single_models(self) -> bool:
        return self.inputs == "points"

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        if not isinstance(net.head, nn.Linear) or net.head.bias is None:
            raise ConfigError(
                '"class_bias" corrects a linear head with biases, and this model has none: choose another model.'
            )

    def tune(self, context: AggregationContext) -> Weights:
        images = None if self.strength == 0 else self.images(context)
        if images is None:
            return context.model
        fields = {"images": images, "through": self.through, "strength": self.strength}
        job = {"model": context.model, "spec": context.spec, **fields}
        found = context.fed.compute(equalise_head, {"equalise": job})["equalise"]
        context.fed.measure("class bias", found.spread)
        return found.model

    def images(self, context: AggregationContext) -> Tensor | None:
        """The inputs; None where nobody could be reached for them."""
        fed = context.fed
        if self.inputs == "real":
            return draw_from_all(fed, per_class=REAL_EACH).images
        count = self.count if self.inputs == "noise" else fed.schema.classes
        noise = torch.from_numpy(fed.rng("class bias").random((count, *fed.schema.shape))).float()
        if self.inputs == "noise":
            return noise
        found = Search(context, InteriorSettings()).points(noise)
        return None if found is None else found.images


class Equalised(Reply):
    """A model with another head."""

    model: Weights = leaves("weights, the head's mean scores made equal")
    spread: float = leaves("how far the mean scores of the classes lay apart before: their standard deviation")


@task
def equalise_head(
    client: Client, model: Weights, spec: ModelSpec, images: Tensor, through: Through, strength: float
) -> Equalised:
    """Make the mean scores on these inputs equal for all classes."""
    net = client.build(spec, model).eval()
    with torch.no_grad():
        features = torch.cat([net.body(batch.to(client.device)) for batch in images.split(BATCH)]).cpu()
    mean = features.double().mean(0)
    weight, bias = model["head.weight"].double(), model["head.bias"].double()
    apart = centred(weight @ mean + bias)
    head = equalised(weight, bias, mean, through, strength)
    changed = {
        f"head.{n}": entry.to(model[f"head.{n}"].dtype) for n, entry in zip(("weight", "bias"), head, strict=True)
    }
    return client.release(Equalised(model=model | changed, spread=float(apart.std(correction=0))))


def equalised(weight: Tensor, bias: Tensor, mean: Tensor, through: Through, strength: float) -> tuple[Tensor, Tensor]:
    """A head whose mean scores differ less: nothing of the difference stays at strength 1."""
    of_weights = centred(weight @ mean)
    if through == "bias":
        return weight, bias - strength * (of_weights + centred(bias))
    along = mean / (mean @ mean).clamp_min(1e-12)
    return weight - strength * torch.outer(of_weights, along), bias - strength * centred(bias)


def centred(values: Tensor) -> Tensor:
    """The values less their average."""
    return values - values.mean()
