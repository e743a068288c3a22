"""A fixed body and a head that is made of one release: which features, and how far out they count."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

import fedsynth.learning.features  # noqa: F401  (registers the fixed features)
from fedsynth.components.feature_sums import Features
from fedsynth.components.released_sums import ReleaseConfig
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation
from fedsynth.learning.models import FIXED, Classifier, ModelSpec
from fedsynth.learning.pretrained import with_body_of
from fedsynth.learning.weights import Weights, weights_of


class FeatureConfig(ReleaseConfig):
    """What is measured of an example."""

    dimensions: ClassVar[tuple[int, int]] = (1000, 300)  # unless told: of fixed features; with ε

    features: str | None = Field(
        None,
        description="fixed features: wavelets, random_conv, pixels, columns, or a plug-in's; none given: wavelets for "
        "images, columns for tables",
    )
    backbone: str | None = Field(
        None,
        description="safetensors file with the weights of a pretrained [model], whose body is used in place of fixed "
        "features",
    )
    dimension: int | None = Field(
        None, ge=1, description="most fixed features: more are projected at random; none given: 1000, with ε 300"
    )
    length: float | None = Field(
        None, gt=0, description="with ε: features longer than this are cut; fixed features know theirs, a backbone not"
    )
    clip: float = Field(
        0.3, gt=0, description="with ε: what is farther from the centre than this share of length is cut"
    )

    @property
    def classifier(self) -> ModelSpec:
        """Fixed features and a linear head; with a backbone, the experiment's model."""
        if self.backbone is not None:
            return self.model
        name = self.features or "fixed"
        default = self.dimensions[self.epsilon is not None]
        return ModelSpec(name=name, dimension=(self.dimension or default) if name in FIXED else self.dimension)

    def begin(self, fed: Federation) -> tuple[Classifier, Weights, Features]:
        """The model, the weights it starts from (its body's from the backbone), and what to ask clients for."""
        net = fed.initial_model(self.classifier)
        if self.backbone:
            weights = with_body_of(Path(self.backbone), net)
            return net, weights, Features(spec=self.classifier, model=weights)
        if any(True for _ in net.body.parameters()):
            raise ConfigError(
                f'method.features = "{self.features}" is a model whose weights are trained: choose wavelets, '
                "random_conv, pixels or columns; or name it as [model] and give method.backbone, a file with its "
                "weights."
            )
        return net, weights_of(net), Features(spec=self.classifier)

    def longest(self, net: Classifier) -> float:
        """With ε: longer features are cut."""
        length = self.length or getattr(net.body, "length", None)
        if length is None:
            raise ConfigError(
                "With method.epsilon the features of a backbone must be bounded: set method.length to the longest "
                "that should count in full, such as the median length on public data."
            )
        return float(length)

    @model_validator(mode="after")
    def _bounded_where_private(self) -> Self:
        if self.backbone is not None and (self.features is not None or self.dimension is not None):
            raise ValueError("backbone takes the place of features and dimension: give one or the other")
        if self.epsilon is None and (self.length is not None or self.clip != type(self).model_fields["clip"].default):
            raise ValueError("length and clip bound a record in a private release: give epsilon, or neither of them")
        return self
