"""Settings shared by the methods: how the training goes, and the base of every method's own settings."""

from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, Field, model_validator
from pydantic.fields import FieldInfo

from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining, learning_rate
from fedsynth.privacy import PrivacyConfig


class TrainConfig(BaseModel, frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False):
    """The `[train]` section."""

    rounds: int = Field(20, ge=0, validation_alias=AliasChoices("rounds", "num_rounds"), description="rounds")
    local_epochs: int = Field(5, ge=0, description="epochs at a client in one round")
    batch_size: int = Field(16, ge=1, description="examples a step")
    lr: float = Field(0.1, gt=0, description="learning rate of the clients")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="optimiser of the clients")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    max_grad_norm: float | None = Field(None, gt=0, description="longer gradients are shortened to this norm")
    schedule: Literal["constant", "step", "exponential", "cosine"] = Field(
        "constant", description="how the learning rate changes over the rounds"
    )
    lr_step: int = Field(10, ge=1, description="rounds per factor lr_gamma, for step and exponential")
    lr_gamma: float = Field(0.5, gt=0, description="factor of the learning rate every lr_step rounds")
    fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        validation_alias=AliasChoices("fraction", "fraction_fit"),
        description="share of the clients picked each round",
    )
    norm_buffers: Literal["average", "pooled", "local", "recalibrate"] = Field(
        "average",
        description="BatchNorm's running statistics: averaged, those of all data together, kept at the clients, or "
        "measured anew",
    )
    quorum: float | None = Field(
        None, ge=0, le=1, description="share of the asked clients that must answer (all; with faults, none)"
    )
    deadline: float | None = Field(None, gt=0, description="seconds to wait for the answers to one request")
    patience: int | None = Field(
        None, ge=1, description="stop after so many evaluations without a better validation accuracy"
    )

    @model_validator(mode="after")
    def _momentum_belongs_to_sgd(self) -> "TrainConfig":
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f'momentum has no meaning for optimizer = "{self.optimizer}"; remove it or choose "sgd"')
        return self

    def local(self, round: int) -> LocalTraining:
        """How clients train in this round."""
        rate = learning_rate(self.schedule, self.lr, round, self.rounds, self.lr_step, self.lr_gamma)
        as_here = self.model_dump(include=set(LocalTraining.model_fields))
        return LocalTraining(**as_here | {"epochs": self.local_epochs, "lr": rate})


class MethodConfig(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False):
    """Base of a method's settings. `train`, `model` and `privacy` come from their own sections of an experiment.

    `protects` says whether all that the method sends after training is protected as `privacy.updates` asks. The shared
    loop does it; a method that trains in a task of its own does not unless it says so.
    `requires_individual_updates` says why the method needs more than the sum of what clients send; empty where it does
    not.
    """

    train: TrainConfig = Field(default_factory=TrainConfig, exclude=True)
    model: ModelSpec = Field(default_factory=ModelSpec, exclude=True)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig, exclude=True)

    protects: ClassVar[bool] = False
    requires_individual_updates: ClassVar[str] = (
        "it trains outside of the shared loop, whose mean is what can be summed securely"
    )

    @model_validator(mode="after")
    def _keeps_the_promise_of_privacy(self) -> "MethodConfig":
        if self.privacy.updates != "none" and not self.protects:
            raise ValueError(
                f'privacy.updates = "{self.privacy.updates}" protects the shared loop of fedavg and its relatives, '
                'and this method trains outside of it; set privacy.updates = "none" or choose another method'
            )
        if self.privacy.secure_aggregation and self.requires_individual_updates:
            raise ValueError(
                "privacy.secure_aggregation = true cannot be used with this method: "
                f"{self.requires_individual_updates}; set it to false, or choose a method of which the server needs "
                "only the mean, such as fedavg"
            )
        return self

    @property
    def classifier(self) -> ModelSpec:
        """The model that the method ends with: the one asked for, unless it has one of its own."""
        return self.model

    def earlier_runs(self) -> list[str]:
        """Folders of runs that this one builds on; a runner makes sure that they had the same split."""
        return []

    @classmethod
    def own_settings(cls) -> dict[str, FieldInfo]:
        """The settings a user may give in the `[method]` section."""
        return {name: field for name, field in cls.model_fields.items() if name not in MethodConfig.model_fields}


class PublishedForm(BaseModel):
    """A setting that turns the paper's choices on where the method's own differ."""

    published: ClassVar[dict[str, Any]] = {}  # what the paper chose

    form: Literal["ours", "published"] = Field(
        "ours", description="published: the paper's choice of every setting below that is not given"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_papers_choice(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("form") == "published":
            return cls.published | values
        return values
