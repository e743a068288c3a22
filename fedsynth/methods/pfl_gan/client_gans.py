"""Phase 1 of PFL-GAN: every client trains a conditional GAN and releases its generator; the server draws a set with
each and compares the sets. Methods that need groups of similar clients share it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedsynth.components.local_training import Unprotected, UpdatesSlot
from fedsynth.components.loop import update_privacy
from fedsynth.components.private_gan import fit_gan_privately
from fedsynth.components.samples import Samples, as_bytes
from fedsynth.components.server_work import FROM_WEIGHTS
from fedsynth.components.settings import MethodConfig
from fedsynth.errors import ConfigError, UserError
from fedsynth.federation import Client, Federation, Message, Reply, State, leaves, task
from fedsynth.federation.journal import Journal
from fedsynth.learning.similarity import Rule, divergences, groups, neighbours, profile
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.privacy.guarantee import constant_guarantee
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


class GanConfig(MethodConfig):
    """How clients' GANs are trained and compared."""

    gan: Literal["r1", "wgan_gp", "vae"] = Field("r1", description="kind of the GANs")
    gan_channels: int = Field(16, ge=1, description="channels of their finest layer")
    gan_latent: int = Field(64, ge=1, description="length of the random vector an image is drawn from")
    gan_steps: int = Field(1000, ge=0, description="generator steps of a client's GAN")
    gan_batch_size: int = Field(64, ge=1, description="real images of one critic step")
    critic_steps: int = Field(1, ge=1, description="critic steps before each generator step")
    gan_lr: float = Field(2e-3, gt=0, description="Adam's rate for generator and critic")
    samples_per_class: int = Field(100, ge=1, description="images of each class that the server draws with each GAN")
    autoencoder: str = Field(
        "synthetic",
        description="what the auto-encoder learns from: synthetic (the drawn sets), untrained, or the path of an .npz "
        "file",
    )
    encoder_steps: int = Field(500, ge=0, description="steps of the auto-encoder's training")
    encoder_latent: int = Field(256, ge=2, description="length of its latent")
    threshold: Rule = Field(
        "gap",
        description="who is a neighbour: nearer than the mean, in the nearer of two clusters of its distances, in the "
        "same of K clusters by K-means or spectral, in the same group where groups are clearly apart (gap), or "
        "everybody (none)",
    )
    clusters: int | None = Field(
        None,
        ge=1,
        description="K of k-means, and of spectral, which without it takes the largest gap of its eigenvalues",
    )
    side_by_side: int = Field(4, ge=1, description="GANs trained between two checkpoints; not fewer than cores")
    gans_from: str | None = Field(
        None, description="folder of an earlier run on the same split: the server takes the GANs that it got then"
    )

    @model_validator(mode="after")
    def _clusters_belong_to_k(self) -> "GanConfig":
        if self.threshold == "k-means" and self.clusters is None:
            raise ValueError('threshold = "k-means" needs to know how many: set clusters')
        if self.clusters is not None and self.threshold not in ("k-means", "spectral"):
            raise ValueError(f'clusters has no meaning for threshold = "{self.threshold}": remove it')
        return self

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


class GanRequest(Message):
    """How a GAN is to be trained."""

    spec: GanSpec
    training: GanTraining
    steps: int
    updates: UpdatesSlot = Unprotected()


class ClientGan(Message):
    """A generator and the classes that it knows."""

    generator: Weights
    classes: list[int]


class KeptGans(Message):
    """The generators of a run, by client, and how they were trained."""

    request: GanRequest
    gans: dict[str, ClientGan]


class OwnGan(Reply):
    """A client's GAN."""

    generator: Weights = leaves("a generator trained on the client's data: whoever has it can draw images like them")
    classes: list[int] = leaves("which classes the client has examples of")


class Drawn(Reply):
    """What a generator draws."""

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
def train_own_gan(client: Client, request: GanRequest) -> OwnGan:
    """Algorithm 1, lines 1 to 4: a conditional GAN on the client's own data. Its critic stays."""
    classes = client.schema.classes
    gan = build_gan(request.spec, client.schema.shape, classes, derive(client.seed, "own gan", client.id))
    if request.updates.hides_records:
        everything = torch.ones(classes, dtype=torch.bool)  # which ones it has would tell of its records
        guarantee = fit_gan_privately(client, gan, everything, request.training, request.steps, request.updates)
        private = OwnGan(generator=generator_weights(gan.weights()), classes=list(range(classes)))
        return client.release(private, generator=guarantee, classes=constant_guarantee(guarantee))
    x, y = client.data.train.tensors()
    rng = generator(client.seed, "own gan training", client.id)
    train_gan(gan, TrainingImages(x, y), request.training, request.steps, rng)
    return client.release(OwnGan(generator=generator_weights(gan.weights()), classes=sorted(set(y.tolist()))))


@task
def draw_set(client: Client, gan: ClientGan, spec: GanSpec, per_class: int) -> Drawn:
    """Line 6: a balanced set. What is no generator of this kind, or draws no numbers, draws nothing."""
    shape, known = client.schema.shape, [label for label in gan.classes if 0 <= label < client.schema.classes]
    nothing = Drawn(**dict(Samples.none(shape, torch.uint8)))
    labels = torch.tensor(known, dtype=torch.int64).repeat(per_class)
    try:
        net = load_generator(spec, shape, client.schema.classes, gan.generator)
    except UserError:
        return client.release(nothing)
    images = make_images(net, spec, labels, client.rng("made set"))
    if not torch.isfinite(images).all():
        return client.release(nothing)
    return client.release(Drawn(images=as_bytes(images), labels=labels))


@task
def learn_encoder(client: Client, images: Tensor, latent: int, steps: int) -> Learnt:
    """Train the auto-encoder; without steps it stays as it was born."""
    net = build_autoencoder(client.schema.shape, latent, derive(client.seed, "autoencoder"))
    train_autoencoder(net, images.to(torch.float32) / 255, steps, client.rng("autoencoder"))
    return client.release(Learnt(weights=weights_of(net)))


@task
def profile_set(client: Client, images: Tensor, encoder: Weights, latent: int) -> Profile:
    """Line 9: P_i of one drawn set; not a number where the set is empty."""
    if not len(images):
        return client.release(Profile(shares=np.full(latent, np.nan), error=math.nan))
    net, x = load_autoencoder(client.schema.shape, latent, encoder), images.to(torch.float32) / 255
    return client.release(Profile(shares=profile(embed(net, x)), error=float(reconstruction_errors(net, x).mean())))


class Compared(Message):
    """The drawn sets, how far they are from each other, and their mean reconstruction errors (nan: an empty set)."""

    sets: dict[str, Samples]
    distances: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class Similarity:
    """What the server knows after phase 1; rows and columns are `clients`, all of the federation."""

    clients: list[str]
    sets: dict[str, Samples]
    distances: np.ndarray
    near: np.ndarray
    errors: np.ndarray

    @property
    def groups(self) -> list[list[str]]:
        """Clients that are each other's neighbours."""
        return [[self.clients[row] for row in group] for group in groups(self.near)]


def find_similar(fed: Federation, cfg: GanConfig) -> Similarity:
    """Have all clients train GANs, draw a set with each, and compare the sets."""
    fed.schema.require_images()
    public = None
    if cfg.autoencoder not in ("synthetic", "untrained"):
        public = as_bytes(read_public_images(cfg.autoencoder, fed.schema.shape))
    gans = own_gans(fed, cfg)
    found = fed.once("similarity", lambda: compare_sets(fed, cfg, gans, public), Compared)
    near = neighbours(found.distances, cfg.threshold, cfg.clusters)
    similar = Similarity(list(fed.clients), found.sets, found.distances, near, found.errors)
    unusable = [client for client, drawn in similar.sets.items() if not len(drawn)]
    if unusable:
        fed.note(f"No usable GAN came from {', '.join(unusable)}: nobody takes samples from there.")
    record_similarity(fed, similar, "d_ij = KL(P_i ‖ P_j) of the drawn sets' embeddings")
    return similar


def own_gans(fed: Federation, cfg: GanConfig) -> dict[str, ClientGan]:
    """The generators of all clients that answered: those of an earlier run, or trained now. Kept for later runs."""
    request = GanRequest(
        spec=cfg.gan_spec(), training=cfg.gan_training(), steps=cfg.gan_steps, updates=update_privacy(cfg)
    )
    if cfg.gans_from:
        run = Path(cfg.gans_from)
        kept = fed.once(KEPT, lambda: KeptGans(request=request, gans=earlier_gans(fed, run, request)), KeptGans)
        fed.note(f'The clients\' GANs are those of "{run.name}": what clients sent with them is in the ledger there.')
    else:
        gans = train_gans(fed, cfg, request)
        kept = fed.once(KEPT, lambda: KeptGans(request=request, gans=gans), KeptGans)
    return kept.gans


def earlier_gans(fed: Federation, run: Path, request: GanRequest) -> dict[str, ClientGan]:
    """What clients sent in an earlier run: nothing leaves them again."""
    try:
        kept = KeptGans.model_validate(Journal(run).phase(KEPT)["result"])
    except (UserError, ValueError):
        raise ConfigError(f'method.gans_from = "{run}": this is no run in which clients trained GANs.') from None
    other = [name for name in sorted(GanRequest.model_fields) if getattr(kept.request, name) != getattr(request, name)]
    if other:
        raise ConfigError(f'method.gans_from = "{run}": its GANs differ in {", ".join(other)} from what is asked here.')
    if set(kept.gans) - set(fed.clients):
        raise ConfigError(f'method.gans_from = "{run}": it had other clients.')
    return kept.gans


class GansState(State):
    """GANs that were trained so far, and clients that could not be reached."""

    gans: dict[str, ClientGan]
    missed: list[str]


def train_gans(fed: Federation, cfg: GanConfig, request: GanRequest) -> dict[str, ClientGan]:
    """A few clients between two checkpoints; those that did not answer are asked once more."""

    def asked(clients: list[str]) -> tuple[dict[str, ClientGan], list[str]]:
        replies = fed.broadcast(train_own_gan, to=clients, request=request)
        return {c: ClientGan(**reply.fields()) for c, reply in replies.items()}, list(replies.failures)

    state = GansState(gans={}, missed=[])
    for index in fed.steps("own GANs", math.ceil(len(fed.clients) / cfg.side_by_side), state):
        found, missed = asked(list(fed.clients[(index - 1) * cfg.side_by_side : index * cfg.side_by_side]))
        state.gans, state.missed = state.gans | found, [*state.missed, *missed]
    if not state.missed:
        return dict(state.gans)
    again = fed.once("own GANs, asked again", lambda: asked(state.missed)[0], dict[str, ClientGan])
    return dict(state.gans) | again


def compare_sets(fed: Federation, cfg: GanConfig, gans: Mapping[str, ClientGan], public: Tensor | None) -> Compared:
    """Algorithm 1, lines 5 to 12, on the server's cores."""
    jobs = {c: {"gan": gan, "spec": cfg.gan_spec(), "per_class": cfg.samples_per_class} for c, gan in gans.items()}
    drawn = fed.compute(draw_set, jobs)
    nothing = Samples.none(fed.schema.shape, torch.uint8)
    sets = {c: Samples(**drawn[c].fields()) if c in drawn else nothing for c in fed.clients}
    shown = torch.cat([samples.images for samples in sets.values()]) if public is None else public
    if len(shown) > MOST_FOR_ENCODER:
        shown = shown[torch.from_numpy(fed.rng("shown").permutation(len(shown))[:MOST_FOR_ENCODER])]
    latent, steps = cfg.encoder_latent, 0 if cfg.autoencoder == "untrained" else cfg.encoder_steps
    learnt = fed.compute(learn_encoder, {"autoencoder": {"images": shown, "latent": latent, "steps": steps}})
    common = {"encoder": learnt["autoencoder"].weights, "latent": latent}
    profiles = fed.compute(profile_set, {c: {"images": samples.images, **common} for c, samples in sets.items()})
    table = np.stack([profiles[client].shares for client in fed.clients])
    errors = np.array([profiles[client].error for client in fed.clients])
    return Compared(sets=sets, distances=divergences(table), errors=errors)


def record_similarity(fed: Federation, similar: Similarity, distance: str) -> None:
    """The matrix with the chosen neighbours, and the groups, for people to see."""
    rows, columns = np.nonzero(similar.near)
    fed.record(
        "distances of clients",
        {
            "kind": "matrix",
            "about": f"{distance}; marked: the neighbours that a client (row) takes samples from.",
            "rows": similar.clients,
            "values": [[float(d) if np.isfinite(d) else None for d in row] for row in similar.distances],
            "marks": [[int(i), int(j)] for i, j in zip(rows, columns, strict=True)],
        },
    )
    named = {f"group {number}": group for number, group in enumerate(similar.groups, 1)}
    fed.record(
        "groups of clients",
        {"kind": "groups", "about": "Clients that chose each other as neighbours.", "groups": named},
    )
