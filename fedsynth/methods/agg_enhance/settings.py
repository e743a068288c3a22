"""The settings of interior points: how they are made, which are kept, how the aggregate is tuned on them."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from fedsynth.components.server_work import TuningSettings
from fedsynth.components.settings import PublishedForm
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.synthesis.inversion import Inversion


class InteriorSettings(PublishedForm, TuningSettings):
    """How points are synthesised and used."""

    published: ClassVar[dict[str, Any]] = {
        **{"image_optimizer": "sgd", "clamp": False, "start": "last", "restarts": 1, "choice": "consensus"},
        **{"labels": "hard", "min_consensus": 0.0, "queue": 0, "decay": 0.0, "tune_rate": 1.0, "max_tune_lr": 0.0},
    }

    steps: int = Field(100, ge=0, description="optimisation steps for a point")
    image_lr: float = Field(0.1, gt=0, description="learning rate for the points")
    image_optimizer: Literal["adam", "sgd"] = Field("sgd", description="optimiser of the points")
    clamp: bool = Field(False, description="keep pixels between 0 and 1")
    start: Literal["noise", "last"] = Field(
        "noise", description="a point starts from uniform noise, or half-way between that and the class's last point"
    )
    restarts: int = Field(1, ge=1, description="starting points of a class, from each of which every model makes one")
    choice: Literal["consensus", "random"] = Field(
        "consensus", description="which model's point is kept for a class (random is for comparison)"
    )
    min_consensus: float = Field(
        0.0,
        ge=0,
        le=1,
        description="a class is left out of a round where its point's mean consensus is less: the probability of the "
        "class, 0 from a model that predicts another",
    )
    labels: Literal["hard", "soft"] = Field(
        "hard", description="the aggregate learns a point's class, or what the received models say of it on average"
    )
    queue: int = Field(1, ge=0, description="points of so many rounds are kept; 0: of all")
    decay: float = Field(0.0, ge=0, lt=1, description="a kept point loses this share of its weight in every round")
    tune_epochs: int = Field(10, ge=0, description="epochs of the server on the kept points")
    tune_rate: float = Field(1.0, gt=0, description="learning rate of the server, as a share of the clients'")
    max_tune_lr: float = Field(
        0.05, ge=0, description="and never more than this, whatever the clients' is; 0: no limit"
    )
    secure: bool = Field(False, description="clients make and score the candidates: the server needs no single model")
    points: Literal["synthetic", "noise", "real", "prior"] = Field(
        "synthetic",
        description="controls in their place: noise with the same labels, as many real points, new in every round, or "
        "one real point of each class for good",
    )

    def inversion(self) -> Inversion:
        """The settings as the inversion wants them."""
        low, high = (0.0, 1.0) if self.clamp else (None, None)
        return Inversion(steps=self.steps, lr=self.image_lr, optimizer=self.image_optimizer, low=low, high=high)

    def tuning(self, local: LocalTraining) -> LocalTraining:
        """The clients' training with the server's epochs, batches and rate."""
        training = super().tuning(local)
        return training.model_copy(update={"lr": min(training.lr, self.max_tune_lr or training.lr)})
