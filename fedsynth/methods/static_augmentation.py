"""Static augmentation (a baseline of GANDALF, section 5.3.1): clients rotate and shift images of the classes they have
few of, once before training.

Deviations: the paper doubles the six minority classes of clients that have four large and six small ones. Here the
minority classes of a client are those with fewer examples than the mean over the classes it has, which are the same six
there. Images are not mirrored unless `flip` says so (`form = "published"` does): a mirrored letter or digit is another
one, or none. The paper does not say how far images are turned and shifted.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from fedsynth.components.loop import LoopConfig, checked_slots, federated_loop, loop_outcome
from fedsynth.components.settings import PublishedForm
from fedsynth.components.synthetic_store import KeptImages, keep_made
from fedsynth.data.dataset import Schema
from fedsynth.errors import UserError
from fedsynth.federation import Client, Done, Federation, Outcome, method, task
from fedsynth.synthesis.static import MOST, Static, fill_classes


class StaticSettings(BaseModel):
    """How images are moved about."""

    rotate: float = Field(15.0, ge=0, le=180, description="largest angle, in degrees, to either side")
    shift: float = Field(0.1, ge=0, le=0.5, description="largest shift, as a share of width and height")
    flip: bool = Field(False, description="mirror every other copy; makes nonsense of digits and letters")
    padding: Literal["edge", "zero"] = Field("edge", description="what moves in from outside: the edge's pixels, or 0")

    def how(self) -> Static:
        """The settings as the making of copies wants them."""
        return Static(self.rotate, self.shift, self.flip, self.padding)


def require_pictures(schema: Schema) -> None:
    """Only images can be turned and shifted."""
    if len(schema.shape) != 3:
        raise UserError(
            f"Static augmentation turns and shifts images, but an example of this data has shape {schema.shape}; "
            "choose another method, or give data.shape."
        )


def minority_classes(counts: np.ndarray) -> np.ndarray:
    """Which classes have fewer examples than the mean over those that have any; a class without any is not one."""
    present = counts > 0
    return np.asarray(present & (counts < counts.sum() / max(1, present.sum())))


@task
def augment_minorities(client: Client, copies: int, how: dict[str, Any]) -> Done:
    """Make so many copies of every image of the client's minority classes, and keep them."""
    x, y = client.data.train.tensors()
    counts = client.data.train.counts(client.schema.classes)
    wanted = np.where(minority_classes(counts), copies * counts, 0)
    images, labels = fill_classes(x, y, wanted, client.rng("static"), Static(**how))
    if len(labels):
        keep_made(client, images, labels)
    return client.release(Done())


class StaticConfig(StaticSettings, PublishedForm, LoopConfig):
    """Settings of static augmentation."""

    published: ClassVar[dict[str, Any]] = {"flip": True}

    copies: int = Field(1, ge=0, le=MOST, description="copies of each image of a minority class; 0 is FedAvg")


@method("static_augmentation", config=StaticConfig, fedavg_when={"copies": 0})
def static_augmentation(fed: Federation, cfg: StaticConfig) -> Outcome:
    """Clients double the classes they have few of by turned and shifted copies, then FedAvg."""
    checked_slots(fed, cfg, local_data=KeptImages())
    if cfg.copies:
        require_pictures(fed.schema)
        fed.once("augment", lambda: augmented(fed, cfg))
    return loop_outcome(federated_loop(fed, cfg, local_data=KeptImages()))


def augmented(fed: Federation, cfg: StaticConfig) -> dict[str, Any]:
    """Have all clients make their copies."""
    replies = fed.broadcast(augment_minorities, copies=cfg.copies, how=vars(cfg.how()))
    return {"clients": len(replies)}
