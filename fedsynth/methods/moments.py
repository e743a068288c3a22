"""Moments: one release of sums makes a Gaussian for each class, and clients draw from it what they lack.

No paper: ours. FedDPMS's idea (share noisy means of classes) in a space where it works without training: the lowest DCT
coefficients of images, or the columns of tables. Every client releases number, sum and second moment of its classes
once, exactly, with noise of its own, or in a secure sum that has the noise once (`components/moment_release.py`). The
server sends everybody the Gaussians that follow. In every round a client draws what it lacks of each class to a share
of its largest, anew each time, and trains on its own examples and these.

It is a value of the slot for local data, so it stands beside any other method: `local_data = "moments"`. With
`share = 0` it is FedAvg, bit-identical.
"""

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.ablations import Controls, draw_from_all, stand_ins
from fedsynth.components.additions import INSTEAD, SYNTHETIC, class_names, note_additions, record_additions
from fedsynth.components.class_moments import Size
from fedsynth.components.moment_release import ATTEMPTS, MomentRelease, MomentSettings, ReleasedMoments, release_moments
from fedsynth.components.samples import Samples
from fedsynth.components.slots import LocalData
from fedsynth.federation import Client, Done, Federation, method, task
from fedsynth.federation.records import pictures
from fedsynth.federation.tasks import TaskError
from fedsynth.learning.models import Classifier
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.class_balance import shortage_to_share
from fedsynth.synthesis.moments import Basis, ClassModel, deviations, draw

DRAWN, MOST_CLASSES = 3, 20  # of the picture that explains them
EXPLAINED = (
    "Clients released once how many examples of each class they have, their sum and their second moment: added up, a "
    "Gaussian of each class, with its mean and its spread (brighter: more). Draws from it stand in for what a client "
    "lacks, and nothing else of anybody's examples is in them."
)
KEPT = "class moments"  # in the private state
NOBODY = "Nobody could be reached to release class moments: clients train on their own examples alone."
PICTURED = 50  # draws of each class that are shown; pictures have the first ten, `quality` evaluates all

CONTROLS: Controls = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "real samples": {"synthetic": "real"},
}


@task
def keep_moments(client: Client, model: ClassModel, size: Size, real: Samples | None) -> Done:
    """Keep what to draw from for the rounds to come; real examples where these are the control."""
    check_model(model, Basis(client.schema.shape, size), client.schema.classes)
    kept = {"model": model.model_dump(), "size": size, "real": real and real.model_dump()}
    client.state.keep_public(KEPT, kept)
    return client.release(Done())


def check_model(model: ClassModel, basis: Basis, classes: int) -> None:
    """Refuse a model that is not one of this data."""
    fits = model.means.shape == (classes, basis.dimensions) and model.known.shape == (classes,)
    factors = model.factors.shape
    if not fits or len(factors) != 3 or factors[0] not in (1, classes) or factors[1] != basis.dimensions:
        raise TaskError("The class moments that came do not fit the shape of this client's examples.")


@method("moments", controls=CONTROLS, fedavg_when={"share": 0.0}, search={"share": (0.1, 1.0)})
class Moments(MomentSettings, LocalData, name="moments"):
    """Clients draw what they lack from a Gaussian of each class, made of sums that are released once."""

    private_when: ClassVar[str] = (
        "it needs epsilon, and per_class in place of share: what a client lacks follows from its records"
    )

    share: float = Field(
        0.5, ge=0, le=1, description="a client fills each class up to this share of its largest, every round anew"
    )
    per_class: int | None = Field(
        None, ge=1, description="in place of that: so many of each class, whatever a client has (needed with dp_sgd)"
    )
    synthetic: Literal["generated", "noise", "real", "none"] = Field(
        "generated", description="controls: noise or real examples with the same labels, or nothing, in their place"
    )

    @property
    def post_processing(self) -> bool:
        return not self.active(1) or (self.epsilon is not None and self.per_class is not None)

    def active(self, index: int) -> bool:
        return self.synthetic != "none" and (self.share > 0 or self.per_class is not None)

    def prepare(self, fed: Federation, privacy: PrivacyConfig) -> None:
        if not self.active(1):
            return
        released = release_moments(fed, self, MomentRelease(privacy=privacy, epsilon=self.epsilon))
        if released is None:
            fed.note(NOBODY)
            return
        show(fed, released)
        self.record(fed, released.model)
        missed = fed.once("send class moments", lambda: self.send(fed, released))
        if missed:
            fed.note(f"Could not be reached to be sent the class moments: {', '.join(missed)}.")

    def send(self, fed: Federation, released: ReleasedMoments) -> list[str]:
        """Give everybody what to draw from; the clients that could not be reached."""
        real = draw_from_all(fed) if self.synthetic == "real" else None
        model, size = released.model, released.size
        return list(fed.broadcast(keep_moments, attempts=ATTEMPTS, model=model, size=size, real=real).failures)

    def record(self, fed: Federation, model: ClassModel) -> None:
        """What clients add: the same of every class, or what each finds that it lacks."""
        what = INSTEAD.get(self.synthetic, SYNTHETIC)
        if self.per_class is None:
            record_additions(fed, what, about="A client draws what it lacks, by itself, in every round anew.")
        else:
            each = model.known.numpy() * self.per_class
            record_additions(fed, what, planned=dict.fromkeys(fed.clients, each), about="Drawn anew in every round.")

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: Samples | None
    ) -> tuple[Tensor, Tensor]:
        if KEPT not in client.state:
            return x, y
        kept = client.state[KEPT]
        model, real = ClassModel(**kept["model"]), kept["real"]
        wanted = np.full(client.schema.classes, self.per_class or 0)
        if self.per_class is None:
            wanted = shortage_to_share(client.class_counts(), self.share)
        labels = np.repeat(np.arange(len(wanted)), np.where(model.known.numpy(), wanted, 0))
        basis, of = Basis(client.schema.shape, kept["size"]), torch.from_numpy(labels)
        note_additions(client, of)
        noise = noise_like(basis, len(labels), client.rng("noise"))
        drawn = stand_ins(self.synthetic, of, noise, Samples(**real) if real else None, client.rng("control"))
        if drawn is None:
            drawn = basis.examples(draw(model, labels, client.rng("moments")))
        return torch.cat([x, drawn.to(x)]), torch.cat([y, of.to(y)])


def noise_like(basis: Basis, count: int, rng: np.random.Generator) -> Tensor:
    """Uniform pixels, or standard normal columns."""
    shape = (count, *basis.shape)
    return torch.from_numpy(
        rng.random(shape, dtype=np.float32) if basis.images else rng.standard_normal(shape, dtype=np.float32)
    )


def show(fed: Federation, released: ReleasedMoments) -> None:
    """Pictures of draws of each class; what was counted of it."""
    model, names = released.model, class_names(fed)
    basis, known = Basis(fed.schema.shape, released.size), np.flatnonzero(model.known.numpy())
    if basis.images and len(known):
        labels = np.repeat(known, PICTURED)
        drawn = basis.examples(draw(model, labels, fed.rng("picture")))
        fed.show("moments", drawn, torch.from_numpy(labels))
        fed.record("The Gaussian of each class", picture(model, basis, drawn, [names[label] for label in known]))
    there = ["yes" if label in known else "no" for label in range(len(names))]
    rows = [[*row] for row in zip(names, [round(count, 1) for count in released.counts], there, strict=True)]
    about = f"Counts have noise of standard deviation {released.noise:.3g}." if released.noise else ""
    columns = ["class", "examples counted", "drawn from"]
    fed.record("class moments", {"kind": "table", "about": about, "columns": columns, "rows": rows})
    if len(known) < len(names):
        missing = ", ".join(name for name, is_there in zip(names, there, strict=True) if is_there == "no")
        fed.note(f"Nothing is drawn of {missing}: the released counts do not show that anybody has it.")


def picture(model: ClassModel, basis: Basis, drawn: Tensor, names: list[str]) -> dict[str, object]:
    """Mean, spread and some draws of each class."""
    known = np.flatnonzero(model.known.numpy())[:MOST_CLASSES]
    spread = torch.stack([deviations(model, basis, int(label)) for label in known])
    rows = {"mean": basis.examples(model.means[known]), "spread": spread / spread.max().clamp_min(1e-12)}
    rows |= {f"draw {n + 1}": drawn[n::PICTURED][: len(known)] for n in range(DRAWN)}
    return pictures({name: row.numpy() for name, row in rows.items()}, names[: len(known)], EXPLAINED)
