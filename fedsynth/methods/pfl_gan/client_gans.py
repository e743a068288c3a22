"""Phase 1 of PFL-GAN: every client trains a conditional GAN and lets its generator out; the server makes a set with
each and compares the sets. Methods that need groups of like clients share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedsynth.components.private_gan import private_gan_fit
from fedsynth.components.server_work import FROM_WEIGHTS
from fedsynth.components.update_privacy import Protection, chosen_protection, says_nothing
from fedsynth.errors import ConfigError, UserError
from fedsynth.federation import Client, Federation, Reply, State, leaves, task
from fedsynth.federation.journal import Journal
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.feddpms.autoencoding import require_images
from fedsynth.methods.pfl_gan.similarity import Rule, divergences, groups, neighbours, profile
from fedsynth.seeding import derive, generator
from fedsynth.synthesis.autoencoder import (
    build_autoencoder,
    embed,
    load_autoencoder,
    read_public_images,
    reconstruction_errors,
    train_autoencoder,
)
from fedsynth.synthesis.gan import GanSpec, TrainingImages, build_gan, generator_weights, load_generator, make_images
from fedsynth.synthesis.gan_training import GanTraining, train_gan

KEPT = "the clients' GANs"  # the phase that keeps them
MOST_FOR_ENCODER = 20_000  # images that the auto-encoder learns from, at most

MadeSet = dict[str, Tensor]
"""Images as bytes and their labels, in an order in which every beginning is balanced."""


class GanSettings(BaseModel):
    """How clients' GANs are trained and compared."""

    gan: Literal["r1", "wgan_gp", "vae"] = Field("r1", description="kind of the GANs")
    gan_channels: int = Field(16, ge=1, description="channels of their finest layer")
    gan_latent: int = Field(64, ge=1, description="length of the random vector an image is made from")
    gan_steps: int = Field(1000, ge=0, description="generator steps of a client's GAN")
    gan_batch_size: int = Field(64, ge=1, description="real images of one critic step")
    critic_steps: int = Field(1, ge=1, description="critic steps before each generator step")
    gan_lr: float = Field(2e-3, gt=0, description="Adam's rate for generator and critic")
    made_per_class: int = Field(100, ge=1, description="images of each class that the server makes with each GAN")
    autoencoder: str = Field(
        "made",
        description="what the auto-encoder learns from: made (the made sets), untrained, or the path of an .npz file",
    )
    encoder_steps: int = Field(500, ge=0, description="steps of the auto-encoder's training")
    encoder_latent: int = Field(256, ge=2, description="length of its latent")
    threshold: Rule = Field(
        "gap",
        description="who is a neighbour: nearer than the mean, in the nearer of two clusters, in the same spectral "
        "cluster, in the same group where groups are clearly apart (gap), or everybody (none)",
    )
    side_by_side: int = Field(4, ge=1, description="GANs trained between two checkpoints; not fewer than cores")
    gans_from: str | None = Field(
        None, description="folder of an earlier run on the same split: the server takes the GANs that it got then"
    )

    def earlier_runs(self) -> list[str]:
        """Runs that this one builds on."""
        return [self.gans_from] if self.gans_from else []

    def gan_spec(self) -> GanSpec:
        """The GANs to build."""
        return GanSpec(kind=self.gan, channels=self.gan_channels, latent=self.gan_latent)

    def gan_training(self) -> GanTraining:
        """How to train them."""
        return GanTraining(
            batch_size=self.gan_batch_size,
            generator_lr=self.gan_lr,
            critic_lr=self.gan_lr,
            critic_steps=self.critic_steps,
        )


class OwnGan(Reply):
    """A client's GAN."""

    generator: Weights = leaves("a generator trained on the client's data: whoever has it can draw images like them")
    classes: list[int] = leaves("which classes the client has examples of")


class Made(Reply):
    """What a generator makes."""

    images: Tensor = leaves(f"images, {FROM_WEIGHTS}")
    labels: Tensor = leaves("their labels")


class Learnt(Reply):
    """A network that the server has trained."""

    weights: Weights = leaves(f"weights of a network that was trained on images {FROM_WEIGHTS}")


class Profile(Reply):
    """P_i."""

    shares: np.ndarray = leaves(f"mean softmaxed embedding of images {FROM_WEIGHTS}")
    error: float = leaves("their mean reconstruction error")


@task
def train_own_gan(
    client: Client, spec: GanSpec, training: GanTraining, steps: int, protection: Protection | None = None
) -> OwnGan:
    """Algorithm 1, lines 1 to 4: a conditional GAN on the client's own data. Its critic stays."""
    x, y = client.data.train.tensors()
    gan = build_gan(spec, client.schema.shape, client.schema.classes, derive(client.seed, "own gan", client.id))
    if protection is not None:
        everything = torch.ones(client.schema.classes, dtype=torch.bool)  # which ones it has would tell of its records
        guarantee = private_gan_fit(client, gan, x, y, everything, training, steps, protection)
        private = OwnGan(generator=generator_weights(gan.weights()), classes=list(range(client.schema.classes)))
        return client.release(private, generator=guarantee, classes=says_nothing(guarantee))
    train_gan(gan, TrainingImages(x, y), training, steps, generator(client.seed, "own gan training", client.id))
    return client.release(OwnGan(generator=generator_weights(gan.weights()), classes=sorted(set(y.tolist()))))


@task
def make_set(client: Client, generator: Weights, spec: GanSpec, classes: list[int], per_class: int) -> Made:
    """Line 6: a balanced set. What is no generator of this kind, or draws no numbers, makes nothing."""
    shape, known = client.schema.shape, [label for label in classes if 0 <= label < client.schema.classes]
    nothing = Made(images=torch.zeros((0, *shape), dtype=torch.uint8), labels=torch.zeros(0, dtype=torch.int64))
    labels = torch.tensor(known, dtype=torch.int64).repeat(per_class)
    try:
        net = load_generator(spec, shape, client.schema.classes, generator)
    except UserError:
        return client.release(nothing)
    images = make_images(net, spec, labels, client.rng("made set"))
    if not torch.isfinite(images).all():
        return client.release(nothing)
    return client.release(Made(images=(images * 255).round().to(torch.uint8), labels=labels))


@task
def learn_encoder(client: Client, images: Tensor, latent: int, steps: int) -> Learnt:
    """Train the auto-encoder; without steps it stays as it was born."""
    net = build_autoencoder(client.schema.shape, latent, derive(client.seed, "autoencoder"))
    train_autoencoder(net, as_floats(images), steps, client.rng("autoencoder"))
    return client.release(Learnt(weights=weights_of(net)))


@task
def profile_set(client: Client, images: Tensor, encoder: Weights, latent: int) -> Profile:
    """Line 9: P_i of one made set; not a number where the set is empty."""
    if not len(images):
        return client.release(Profile(shares=np.full(latent, np.nan), error=math.nan))
    net, x = load_autoencoder(client.schema.shape, latent, encoder), as_floats(images)
    return client.release(Profile(shares=profile(embed(net, x)), error=float(reconstruction_errors(net, x).mean())))


@dataclass(frozen=True)
class Likeness:
    """What the server knows after phase 1; rows and columns are `clients`, all of the federation."""

    clients: list[str]
    sets: dict[str, MadeSet]
    distances: np.ndarray
    near: np.ndarray
    errors: np.ndarray  # mean reconstruction error of each made set; nan where there is none

    @property
    def groups(self) -> list[list[str]]:
        """Clients that are each other's neighbours."""
        return [[self.clients[row] for row in group] for group in groups(self.near)]


def as_floats(images: Tensor) -> Tensor:
    """Stored images as networks take them."""
    return images.to(torch.float32) / 255


def find_likeness(fed: Federation, cfg: Any) -> Likeness:
    """Have all clients train GANs, make a set with each, and compare the sets. `cfg` has the settings above."""
    require_images(fed.schema)
    public = None
    if cfg.autoencoder not in ("made", "untrained"):
        public = (read_public_images(cfg.autoencoder, fed.schema.shape) * 255).round().to(torch.uint8)
    gans = own_gans(fed, cfg)
    found = fed.once("similarity", lambda: compared(fed, cfg, gans, public))
    near = neighbours(found["distances"], cfg.threshold)
    likeness = Likeness(list(fed.clients), found["sets"], found["distances"], near, found["errors"])
    unusable = [client for client, made in likeness.sets.items() if not len(made["labels"])]
    if unusable:
        fed.note(f"No usable GAN came from {', '.join(unusable)}: nobody takes samples from there.")
    record_likeness(fed, likeness)
    return likeness


def own_gans(fed: Federation, cfg: Any) -> dict[str, dict[str, Any]]:
    """The generators of all clients that answered: those of an earlier run, or trained now. Kept for later runs."""
    how = {"spec": cfg.gan_spec(), "training": cfg.gan_training(), "steps": cfg.gan_steps}
    if protection := chosen_protection(cfg):
        how["protection"] = protection
    written = {name: value if isinstance(value, int) else value.model_dump(mode="json") for name, value in how.items()}
    if cfg.gans_from:
        run = Path(cfg.gans_from)
        kept = fed.once(KEPT, lambda: {"how": written, "gans": earlier_gans(fed, run, written)})
        fed.note(f'The clients\' GANs are those of "{run.name}": what left clients with them is in the ledger there.')
    else:
        gans = trained_gans(fed, cfg, how)
        kept = fed.once(KEPT, lambda: {"how": written, "gans": gans})
    return dict(kept["gans"])


def earlier_gans(fed: Federation, run: Path, how: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What clients sent in an earlier run: nothing leaves them again."""
    try:
        kept = Journal(run).phase(KEPT)["result"]
    except UserError:
        raise ConfigError(f'method.gans_from = "{run}": this is no run in which clients trained GANs.') from None
    other = [name for name in sorted({*how, *kept["how"]}) if kept["how"].get(name) != how.get(name)]
    if other:
        raise ConfigError(f'method.gans_from = "{run}": its GANs differ in {", ".join(other)} from what is asked here.')
    if set(kept["gans"]) - set(fed.clients):
        raise ConfigError(f'method.gans_from = "{run}": it had other clients.')
    return dict(kept["gans"])


def trained_gans(fed: Federation, cfg: Any, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A few clients between two checkpoints; those that did not answer are asked once more."""
    state = State(gans={}, missed=[])
    for index in fed.rounds("own GANs", math.ceil(len(fed.clients) / cfg.side_by_side), state):
        part = fed.clients[(index - 1) * cfg.side_by_side : index * cfg.side_by_side]
        replies = fed.broadcast(train_own_gan, to=part, **request)
        state.gans = state.gans | {client: reply.fields() for client, reply in replies.items()}
        state.missed = [*state.missed, *replies.failures]
    if not state.missed:
        return dict(state.gans)

    def asked_again() -> dict[str, dict[str, Any]]:
        return {c: reply.fields() for c, reply in fed.broadcast(train_own_gan, to=state.missed, **request).items()}

    return dict(state.gans) | fed.once("own GANs, asked again", asked_again)


def compared(fed: Federation, cfg: Any, gans: dict[str, dict[str, Any]], public: Tensor | None) -> dict[str, Any]:
    """Algorithm 1, lines 5 to 12, on the server's cores."""
    jobs = {c: {**gan, "spec": cfg.gan_spec(), "per_class": cfg.made_per_class} for c, gan in gans.items()}
    shape = fed.schema.shape
    sets = {client: {"images": torch.zeros((0, *shape), dtype=torch.uint8)} for client in fed.clients}
    sets = {client: made | {"labels": torch.zeros(0, dtype=torch.int64)} for client, made in sets.items()}
    sets |= {client: made.fields() for client, made in fed.compute(make_set, jobs).items()}
    shown = torch.cat([made["images"] for made in sets.values()]) if public is None else public
    if len(shown) > MOST_FOR_ENCODER:
        shown = shown[torch.from_numpy(fed.rng("shown").permutation(len(shown))[:MOST_FOR_ENCODER])]
    steps = 0 if cfg.autoencoder == "untrained" else cfg.encoder_steps
    job = {"images": shown, "latent": cfg.encoder_latent, "steps": steps}
    learnt = fed.compute(learn_encoder, {"autoencoder": job})["autoencoder"]
    encoder = learnt.fields()["weights"]
    profiles = fed.compute(
        profile_set,
        {c: {"images": m["images"], "encoder": encoder, "latent": cfg.encoder_latent} for c, m in sets.items()},
    )
    table = np.stack([profiles[client].fields()["shares"] for client in fed.clients])
    errors = np.array([profiles[client].fields()["error"] for client in fed.clients])
    return {"sets": sets, "distances": divergences(table), "errors": errors}


def record_likeness(fed: Federation, likeness: Likeness) -> None:
    """The matrix with the chosen neighbours, and the groups, for people to see."""
    rows, columns = np.nonzero(likeness.near)
    fed.record(
        "distances of clients",
        {
            "kind": "matrix",
            "about": "d_ij = KL(P_i ‖ P_j) of the made sets' embeddings; marked: the neighbours that a client (row) "
            "takes samples from.",
            "rows": likeness.clients,
            "values": [[float(d) if np.isfinite(d) else None for d in row] for row in likeness.distances],
            "marks": [[int(i), int(j)] for i, j in zip(rows, columns, strict=True)],
        },
    )
    named = {f"group {number}": group for number, group in enumerate(likeness.groups, 1)}
    fed.record(
        "groups of clients",
        {"kind": "groups", "about": "Clients that chose each other as neighbours.", "groups": named},
    )
