"""The settings of `analytic`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedsynth.components.fixed_features import FeatureConfig

RIDGE, PRIVATE_RIDGE = 1e-3, 0.25  # of the mean eigenvalue; of the noise
CENTRE_SHARE = 0.05  # of μ², for the centre


class AnalyticConfig(FeatureConfig):
    """What is measured of an example, and how it is weighed."""

    ridge: float | None = Field(
        None,
        gt=0,
        description="λ as a multiple of the mean second moment (none given: 0.001), or with ε of std·√dimension of the "
        "noise (0.25)",
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
