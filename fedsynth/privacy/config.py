"""The `[privacy]` section."""

from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from fedsynth.privacy.budget import Budget

Updates = Literal["none", "dp_sgd", "clipped", "laplace", "gaussian"]
NoiseAt = Literal["client", "server"]

SMALLEST, LARGEST = 1e-9, 1e9  # of noise and clip: far beyond sense on both sides


class PrivacyConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """At which δ to account, how much may be spent, and how model updates are protected."""

    delta: float = Field(1e-5, gt=0, lt=1, description="δ of every ε that is shown; far below 1 / examples of a client")
    budget: float | None = Field(
        None,
        gt=0,
        description="largest ε a client may reach by its protected releases; the round that would pass it is refused",
    )
    updates: Updates = Field(
        "none",
        description="how model updates are protected: dp_sgd, each record; clipped, each client as a whole; laplace "
        "and gaussian, as AggEnhance and GANDALF were published: noise that proves nothing",
    )
    clip: float = Field(
        1.0, description="longest gradient of a record (dp_sgd) or update of a client (clipped); the rest is cut"
    )
    noise: float = Field(
        1.0,
        description="noise multiplier: standard deviation of the noise divided by clip; laplace, gaussian: its scale",
    )
    noise_at: NoiseAt = Field(
        "client", description="clipped: who adds the noise; server protects against everybody but the server"
    )
    target: float | None = Field(
        None, gt=0, description="ε over all rounds that the noise is calibrated to, in place of noise"
    )
    secret_noise: bool | None = Field(
        None,
        description="true: privacy noise comes from a key of the run's own, deleted when the run is done; false: from "
        "the seed, so that a run can be repeated to the bit, and an ε holds only against those who do not know the "
        "seed; none given: true where updates = dp_sgd or clipped, or a budget, ask for protection",
    )
    secure_aggregation: bool = Field(
        False,
        description="the server learns the sum of a round's updates and no single one; needs fedsynth[flower], and a "
        "method that wants only the mean",
    )
    secure_threshold: float = Field(
        0.6, gt=0.5, le=1, description="share of a round's clients that must stay for their sum to be opened"
    )

    @field_validator("clip", "noise")
    @classmethod
    def _more_than_nothing(cls, value: float) -> float:
        if not SMALLEST <= value <= LARGEST:
            more = "it must be more than 0, because nothing is proven without a clip and noise"
            raise ValueError(more if value < SMALLEST else f"it must be {LARGEST:g} at most")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "PrivacyConfig":
        for name in ("clip", "noise", "noise_at", "target"):
            value = getattr(self, name)
            if self.updates == "none" and value != type(self).model_fields[name].default:
                raise ValueError(f'{name} = {value} protects nothing alone; add updates = "dp_sgd" or "clipped"')
        if not self.secure_aggregation and self.secure_threshold != type(self).model_fields["secure_threshold"].default:
            raise ValueError("secure_threshold does nothing alone; add secure_aggregation = true")
        if self.noise_at == "server" and self.updates != "clipped":
            raise ValueError(f'noise_at = "server" belongs to updates = "clipped", not "{self.updates}"')
        for name in ("clip", "target"):
            value = getattr(self, name)
            if self.updates in ("laplace", "gaussian") and value != type(self).model_fields[name].default:
                raise ValueError(
                    f'{name} = {value} does not go with updates = "{self.updates}", which cuts nothing and '
                    'so proves nothing; choose "clipped"'
                )
        return self

    @property
    def draws_in_secret(self) -> bool:
        """Whether privacy noise is secret: as asked for, or else where the experiment asks for an ε to rely on."""
        if self.secret_noise is not None:
            return self.secret_noise
        return self.updates in ("dp_sgd", "clipped") or self.budget is not None

    def limit(self) -> Budget | None:
        """The budget, if there is one."""
        return None if self.budget is None else Budget(self.budget, self.delta)
