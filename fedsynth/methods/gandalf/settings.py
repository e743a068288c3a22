"""Settings of GANDALF and of its variants."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedsynth.components.sequential import MediatedConfig
from fedsynth.components.settings import PublishedForm
from fedsynth.methods.static_augmentation import StaticSettings
from fedsynth.synthesis.gan import GanSpec
from fedsynth.synthesis.gan_training import GanTraining


class GandalfConfig(PublishedForm, StaticSettings, MediatedConfig):
    """GANDALF's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"tau": (0.2, 1.0), "generator_lr": (5e-4, 5e-3)}

    published: ClassVar[dict[str, Any]] = {
        "labeller": "federated",
        "visit_steps": 3,
        "generator_lr": 5e-5,
        "critic_lr": 1e-4,
        "gan_batch_size": 256,
        "balanced": False,
        "tau": 0.5,
        "flip": True,
    }

    groups: int | Literal["all"] = Field(2, description="M_g: groups that train a GAN each; all: every client its own")
    generators: int | None = Field(None, ge=1, description="J: generators that a client gets; none given: all")
    gan: Literal["wgan_gp", "r1", "vae"] = Field(
        "wgan_gp", description="kind of the GANs: Wasserstein with a gradient penalty, R1, or an auto-encoder"
    )
    gan_channels: int = Field(16, ge=1, description="channels of their finest layer")
    gan_latent: int = Field(64, ge=1, description="length of the random vector an image is made from")
    gan_steps: int = Field(1200, ge=0, description="generator steps of each GAN, at most")
    visit_steps: int = Field(60, ge=1, description="T_g: generator steps of one visit")
    critic_steps: int = Field(2, ge=1, description="T_d: critic steps before each generator step")
    gan_batch_size: int = Field(32, ge=1, description="real images of one critic step")
    generator_lr: float = Field(2e-3, gt=0, description="Adam's rate for the generator")
    critic_lr: float = Field(2e-3, gt=0, description="Adam's rate for the critic")
    balanced: bool = Field(True, description="GANs see all classes of a client equally often")
    moments: bool = Field(True, description="Adam's moments travel with the weights")
    flat: float = Field(
        0.0, ge=0, description="stop when all losses changed by less than this share in a round; 0: at gan_steps only"
    )
    labeller: Literal["conditional", "federated"] = Field(
        "conditional", description="conditional: GANs are told the class; federated: a classifier labels what they make"
    )
    labeller_rounds: int = Field(5, ge=1, description="rounds that train this classifier")
    tau: float = Field(1.0, ge=0, le=1, description="τ: share of what a client lacks that is made")
    static: bool = Field(True, description="fill up what could not be made by turned and shifted copies")
    counts_epsilon: float | None = Field(
        1.0, gt=0, description="ε of the noise on class counts, at privacy.delta; none: exact counts leave"
    )
    gan_epsilon: float | None = Field(
        None, gt=0, description="with dp_sgd: ε of a client's part in the GANs, in place of privacy.noise"
    )
    synthetic: Literal["generated", "noise", "real", "none"] = Field(
        "generated", description="controls: noise or real images with the same labels, or nothing, in their place"
    )

    averaged: ClassVar[bool] = False  # whether a GAN is averaged over its clients, or handed from one to the next

    @model_validator(mode="after")
    def _consistent(self) -> GandalfConfig:
        if isinstance(self.groups, int) and self.groups < 1:
            raise ValueError(f"groups = {self.groups} must be 1 or more")
        if self.gan_epsilon is not None and self.privacy.updates != "dp_sgd":
            raise ValueError('gan_epsilon protects nothing alone; add privacy.updates = "dp_sgd"')
        if self.privacy.updates == "dp_sgd":
            if self.counts_epsilon is None:
                raise ValueError('privacy.updates = "dp_sgd" needs counts_epsilon: exact class counts are not private')
            if self.gan != "wgan_gp" or self.labeller != "conditional":
                raise ValueError('privacy.updates = "dp_sgd" needs gan = "wgan_gp" and labeller = "conditional"')
            if self.privacy.target is not None and self.gan_epsilon is None and self.synthetic != "none":
                raise ValueError(
                    "privacy.target calibrates the noise of the rounds alone; give gan_epsilon for that of the GANs "
                    "(or privacy.noise for both)"
                )
        return self

    @property
    def private(self) -> bool:
        """Whether everything that leaves is protected."""
        return self.privacy.updates == "dp_sgd"

    def gan_spec(self) -> GanSpec:
        """The GANs to build."""
        conditional = self.labeller == "conditional"
        return GanSpec(kind=self.gan, conditional=conditional, channels=self.gan_channels, latent=self.gan_latent)

    def gan_training(self) -> GanTraining:
        """How to train them."""
        return GanTraining(
            batch_size=self.gan_batch_size,
            generator_lr=self.generator_lr,
            critic_lr=self.critic_lr,
            critic_steps=self.critic_steps,
            balanced=self.balanced,
        )


class OneGroupConfig(GandalfConfig):
    """Settings of Private FL-GAN."""

    groups: Literal[1] = Field(1, description="one group: everybody trains the same GAN")


class EachAloneConfig(GandalfConfig):
    """Settings of SDA-FL."""

    groups: Literal["all"] = Field("all", description="every client trains a GAN of its own")


class AveragedConfig(OneGroupConfig):
    """Settings of FedDPGAN."""

    averaged: ClassVar[bool] = True
