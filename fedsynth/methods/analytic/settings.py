"""The settings of `analytic`."""

from typing import Literal, Self

from pydantic import Field, model_validator

import fedsynth.learning.features  # noqa: F401  (registers the fixed features)
from fedsynth.components.released_sums import ReleaseConfig
from fedsynth.learning.models import FIXED, ModelSpec

RIDGE, PRIVATE_RIDGE = 1e-3, 0.25  # of the mean eigenvalue; of the noise
DIMENSION, PRIVATE_DIMENSION = 1000, 300
CENTRE_SHARE = 0.05  # of μ², for the centre


class AnalyticConfig(ReleaseConfig):
    """What is measured of an example, and how it is weighed."""

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
    ridge: float | None = Field(
        None,
        gt=0,
        description="λ as a multiple of the mean second moment (none given: 0.001), or with ε of std·√dimension of the "
        "noise (0.25)",
    )
    length: float | None = Field(
        None, gt=0, description="with ε: features longer than this are cut; fixed features know theirs, a backbone not"
    )
    clip: float = Field(
        0.3, gt=0, description="with ε: what is farther from the centre than this share of length is cut"
    )
    weights: Literal["records", "classes", "clients"] = Field(
        "records", description="what weighs alike: every record, every class, or every client"
    )
    fewest: int = Field(
        1,
        ge=1,
        description="without ε and secure sum: a class of which a client has fewer examples is left out of what it "
        "sends; 1: none is",
    )
    personal_weight: float = Field(
        0.0,
        ge=0,
        description="how many times more a client counts its own examples, in a model that it keeps; 0: no such models",
    )
    keep: bool = Field(
        False, description="keep each client's sums in the run folder, so that later runs can start from them"
    )
    start: str | None = Field(
        None, description="folder of an earlier run with keep = true: who was asked then is not asked again"
    )
    leave: tuple[str, ...] = Field((), description="clients that are left out: not asked, and without their kept sums")

    @property
    def classifier(self) -> ModelSpec:
        """Fixed features and a linear head; with a backbone, the experiment's model."""
        if self.backbone is not None:
            return self.model
        name = self.features or "fixed"
        default = DIMENSION if self.epsilon is None else PRIVATE_DIMENSION
        return ModelSpec(name=name, dimension=(self.dimension or default) if name in FIXED else self.dimension)

    @property
    def strength(self) -> float:
        """`ridge`, or what was chosen on validation data."""
        return self.ridge or (RIDGE if self.epsilon is None else PRIVATE_RIDGE)

    @property
    def needs_each(self) -> bool:
        """Whether the sums of single clients are needed, not only of all."""
        return self.keep or self.weights == "clients"

    def earlier_runs(self) -> list[str]:
        """The run whose sums this one starts from."""
        return [self.start] if self.start else []

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.backbone is not None and (self.features is not None or self.dimension is not None):
            raise ValueError("backbone takes the place of features and dimension: give one or the other")
        if self.epsilon is None and (self.length is not None or self.clip != type(self).model_fields["clip"].default):
            raise ValueError("length and clip bound a record in a private release: give epsilon, or neither of them")
        if self.fewest > 1 and (self.epsilon is not None or self.privacy.secure_aggregation):
            raise ValueError(
                "fewest is for exact sums that the server sees one by one: with epsilon or a secure sum remove it"
            )
        single = [name for name in ("keep", "start") if getattr(self, name)]
        single += ['weights = "clients"'] if self.weights == "clients" else []
        if single and self.privacy.secure_aggregation:
            hidden = "privacy.secure_aggregation hides: remove one of the two"
            raise ValueError(f"{single[0]} needs the sums of single clients, which {hidden}")
        if single and self.epsilon is not None:
            centre = "what clients send is measured from a centre that follows from all of them: start anew"
            why = centre if single[0] in ("keep", "start") else "it would divide by numbers that are noisy"
            raise ValueError(f"{single[0]} does not go with epsilon: {why}")
        return self
