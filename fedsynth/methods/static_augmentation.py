"""Static augmentation (a baseline of GANDALF, section 5.3.1): clients rotate and shift images of the classes they have
few of, once before training.

Deviations: the paper doubles the six minority classes of clients that have four large and six small ones. Here the
minority classes of a client are those with fewer examples than the mean over the classes it has, which are the same six
there. Images are not mirrored unless `flip` says so (`form = "published"` does): a mirrored letter or digit is another
one, or none. The paper does not say how far images are rotated and shifted.
"""

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedsynth.components.additions import COPIES, record_additions
from fedsynth.components.loop import Loop, LoopConfig, federated_loop
from fedsynth.components.samples import Samples
from fedsynth.components.settings import PublishedForm
from fedsynth.components.synthetic_store import KeptSamples, keep_samples
from fedsynth.federation import Client, Done, Federation, Outcome, method, task
from fedsynth.synthesis.static import MOST, Static, fill_classes


def minority_classes(counts: np.ndarray) -> np.ndarray:
    """Which classes have fewer examples than the mean over those that have any; a class without any is not one."""
    present = counts > 0
    return np.asarray(present & (counts < counts.sum() / max(1, present.sum())))


@task
def augment_minorities(client: Client, copies: int, static: Static) -> Done:
    """Make so many copies of every image of the client's minority classes, and keep them."""
    x, y = client.data.train.tensors()
    counts = client.class_counts()
    wanted = np.where(minority_classes(counts), copies * counts, 0)
    images, labels = fill_classes(x, y, wanted, client.rng("static"), static)
    if len(labels):
        keep_samples(client, Samples(images=images, labels=labels))
    return client.release(Done())


class StaticConfig(Static, PublishedForm, LoopConfig):
    """Settings of static augmentation."""

    published: ClassVar[dict[str, Any]] = {"flip": True}

    copies: int = Field(1, ge=0, le=MOST, description="copies of each image of a minority class; 0 is FedAvg")


@method("static_augmentation", config=StaticConfig, fedavg_when={"copies": 0})
def static_augmentation(fed: Federation, cfg: StaticConfig) -> Outcome:
    """Clients double the classes they have few of by augmented copies, then FedAvg."""
    Loop(fed, cfg, local_data=KeptSamples())
    if cfg.copies:
        fed.schema.require_images(1)
        static = cfg.static_augmentation()
        record_additions(fed, COPIES, about="Which classes those are, every client decides by itself.")
        fed.once("augment", lambda: len(fed.broadcast(augment_minorities, copies=cfg.copies, static=static)))
    return federated_loop(fed, cfg, local_data=KeptSamples())
