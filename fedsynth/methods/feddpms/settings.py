"""Settings of FedDPMS and FedVAE."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedsynth.components.ablations import Controls
from fedsynth.components.loop import LoopConfig
from fedsynth.components.settings import PublishedForm


class FedVaeConfig(LoopConfig):
    """Settings of the auto-encoder."""

    protects: ClassVar[bool] = False  # trains in a task of its own
    requires_individual_updates: ClassVar[str] = (
        "it trains in a task of its own, outside of the shared loop, and sends models openly"
    )

    latent: int | None = Field(None, ge=1, description="latent dimensions (32 for one channel, 128 for colour)")
    vae_weight: float = Field(0.05, ge=0, description="λ: weight of the auto-encoder's loss")


class FedDpmsConfig(PublishedForm, FedVaeConfig):
    """FedDPMS's settings."""

    published: ClassVar[dict[str, Any]] = {
        "autoencoder": "joint",
        "decoder": "plain",
        "mechanism": "paper",
        "quota": 50,
        "classes": 3,
        "senders": 1,
        "redraw": False,
        "hardness": 1.0,
    }

    autoencoder: Literal["beside", "joint"] = Field(
        "beside", description="beside: reads the classifier's features; joint: one loss for both, as published"
    )
    vae_lr: float = Field(0.001, gt=0, description="learning rate of an auto-encoder that stands beside")
    preliminary: float = Field(0.4, ge=0, le=1, description="share of the rounds that also train the auto-encoder")
    decoder: Literal["conditional", "plain"] = Field(
        "conditional",
        description="conditional: told the class, averaged every round; plain: uploaded once, as published",
    )
    mechanism: Literal["calibrated", "paper"] = Field(
        "calibrated", description="calibrated: class statistics with (ε, δ); paper: filtered noisy means, as published"
    )
    epsilon: float = Field(
        8.0, gt=0, description="ε of the calibrated release, per record, add or remove one, at privacy.delta"
    )
    clip: float = Field(1.0, gt=0, le=1, description="latents are clipped to this share of the longest possible")
    spread: float | None = Field(
        None, gt=0, description="spread of drawn latents; none given: from the released second moment"
    )
    widening: float = Field(
        1.5, gt=0, description="latents are drawn so many times as widely as the released second moment says"
    )
    sigma: float = Field(3.0, gt=0, description="σ of the paper's noise (3 for Fashion-MNIST, 4 for CIFAR10)")
    quota: int | Literal["even"] = Field(
        "even", description="α: synthetic examples of a scarce class, or even: up to an even share of the client's data"
    )
    classes: int | Literal["auto"] = Field(
        "auto", description="n: scarce (and abundant) classes of a client, or auto: those below half of an even share"
    )
    senders: int = Field(3, ge=1, description="clients that may serve a receiver; calibrated: for each class")
    filter: float | Literal["recognised", "none"] = Field(
        "recognised",
        description="use only synthetic examples that the classifier recognises; a number: at least so certainly",
    )
    hardness: float = Field(
        0.5, ge=0, le=1, description="share of the wanted class in a synthetic label; the rest is the model's opinion"
    )
    tries: int = Field(20, ge=1, description="draws for each wanted example, at most")
    redraw: bool = Field(True, description="calibrated: draw new synthetic examples every round")
    synthetic: Literal["decoded", "noise", "real", "none"] = Field(
        "decoded", description="controls: noise or real images with the same labels, or nothing, in their place"
    )

    @field_validator("filter")
    @classmethod
    def _a_probability(cls, value: float | str) -> float | str:
        if isinstance(value, float) and not 0 <= value < 1:
            raise ValueError(f"filter = {value:g} must be a probability: 0 or more and less than 1")
        return value

    @model_validator(mode="after")
    def _numbers_where_the_paper_has_them(self) -> "FedDpmsConfig":
        for name in ("quota", "classes"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f'{name} = {value} must be 1 or more (synthetic = "none" turns synthesis off)')
        if self.mechanism == "paper" and self.quota == "even":
            raise ValueError('quota = "even" belongs to mechanism = "calibrated"; give a number')
        releases = self.mechanism == "calibrated" and self.synthetic != "none"
        if releases and self.privacy.budget is not None and self.epsilon > self.privacy.budget:
            raise ValueError(f"epsilon = {self.epsilon:g} is more than privacy.budget = {self.privacy.budget:g} allows")
        return self

    def least_certainty(self) -> float | None:
        """How certain the filter must be; None without a filter."""
        return {"recognised": 0.0, "none": None}[self.filter] if isinstance(self.filter, str) else self.filter


CONTROLS: Controls = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "no filter": {"filter": "none"},
    "real samples": {"synthetic": "real"},
}
