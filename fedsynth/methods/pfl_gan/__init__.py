"""PFL-GAN (algorithm 1): one model per client, helped by synthetic images of similar clients.

Every client trains a conditional GAN and sends its generator. The server draws a balanced set with each, embeds it with
an auto-encoder, and takes d_ij = KL(P_i ‖ P_j) of the mean softmaxed embeddings. T_i has ⌊S_ij⌋ samples of every
neighbour j; a refined GAN is trained on it and sent to client i, which trains its own classifier on private and
synthetic images. See `client_gans.py`, `similarity.py`, `refining.py` and `mixed_batches.py`. Ours, without
GANs of the clients: `shared = "moments"` (`client_moments.py`).

Deviations. The discriminator is of no use to the server and stays at the client. T_i itself is sent, without a refined
GAN, which cost accuracy (`use`). The client itself enters neither τ_i nor σ_i (the paper's table 2 shows that), nor our
T_i; read literally eq. 5 has S_ii = c. c is the size of a drawn set. Neighbours are those of a clearly separate group,
everybody where there is none; the mean (eq. 6) always cuts off some, interchangeable clients too. `form = "published"`
has refined GANs, the client's own set in T_i, and the mean. The auto-encoder learns from the drawn sets, so that no
public set is needed; the paper's is pre-trained on one data set and not described further. GANs and classifier are not
described either: ours are small. Synthetic images come fresh at each step, in mixed batches, as many as the private
batch has (published: 50). A client without neighbours trains local-only. With `use = "refined"`, `refine = "group"`
trains one refined GAN for a whole group, on the sets of all its members.

Nothing protects the generators, unless `privacy.updates = "dp_sgd"`: then the critics are trained by DP-SGD, clients do
not say which classes they have, and the generators are all that leaves. Without synthesis it is `local`, bit-identical.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from fedsynth.components.ablations import Controls
from fedsynth.components.additions import INSTEAD, count_labels, record_additions
from fedsynth.components.samples import Samples
from fedsynth.components.settings import PublishedForm
from fedsynth.federation import Federation, Outcome, State, method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.methods.pfl_gan.client_gans import ClientGan, GanRequest, Similarity
from fedsynth.methods.pfl_gan.client_moments import SharedConfig, find_neighbours
from fedsynth.methods.pfl_gan.mixed_batches import (
    KeptGenerator,
    deliver,
    receive_generator,
    receive_samples,
    train_on_mixed_batches,
)
from fedsynth.methods.pfl_gan.refining import group_sets, real_sets, refine_gans, server_sets
from fedsynth.synthesis.gan import draw_some, load_generator

PICTURED = 50  # images of each class that are shown; pictures have the first ten, `quality` evaluates all
PICTURED_GROUPS = 4
FRESH = "They are drawn anew at every step; counted are those of one pass over a client's own examples."


class PflGanConfig(PublishedForm, SharedConfig):
    """PFL-GAN's settings."""

    published: ClassVar[dict[str, Any]] = {
        **{"threshold": "mean", "samples_per_class": 1000, "synthetic_per_step": 50},
        **{"use": "refined", "own_set": True},
    }
    requires_individual_updates: ClassVar[str] = "its server works with the generator of each client"

    protects: ClassVar[bool] = True  # what leaves: the generators

    use: Literal["direct", "refined"] = Field(
        "direct", description="what mixed batches take: images of the set T_i itself, or of a GAN refined on it"
    )
    own_set: bool = Field(False, description="whether a client's T_i holds what its own GAN drew, too (S_ii = c)")
    refine: Literal["client", "group"] = Field(
        "client", description="a refined GAN for each client, or one for each group of clients"
    )
    refined_steps: int = Field(1000, ge=0, description="generator steps of a refined GAN")
    draws: Literal["fresh", "once"] = Field(
        "fresh", description="a refined GAN's images: drawn anew at each step, or once, as many as T_i has"
    )
    synthetic_per_step: int | None = Field(
        None, ge=0, description="synthetic images in a mixed batch; none given: as many as the private batch has"
    )
    synthetic: Literal["generated", "noise", "real", "none"] = Field(
        "generated", description="controls: noise or neighbours' real images with the same labels, or nothing instead"
    )

    @model_validator(mode="after")
    def _protected_as_far_as_it_goes(self) -> "PflGanConfig":
        if self.privacy.updates not in ("none", "dp_sgd"):
            raise ValueError(f'privacy.updates = "{self.privacy.updates}" is for averaged models; use "dp_sgd"')
        if self.privacy.updates == "dp_sgd" and self.gan != "wgan_gp":
            raise ValueError(f'privacy.updates = "dp_sgd" needs gan = "wgan_gp", not "{self.gan}"')
        if self.privacy.updates == "dp_sgd" and self.synthetic == "real":
            raise ValueError('synthetic = "real" releases real images, so privacy.updates = "dp_sgd" would say nothing')
        return self


CONTROLS: Controls = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "real samples": {"synthetic": "real"},
    "refined GAN": {"use": "refined"},
    "untrained encoder": {"autoencoder": "untrained"},
}


@method("pfl_gan", config=PflGanConfig, model="pfl_cnn", controls=CONTROLS, search={"gan_lr": (5e-4, 5e-3)})
def pfl_gan(fed: Federation, cfg: PflGanConfig) -> Outcome:
    """Clients that are similar, by GANs they share, help each other with synthetic images; one model per client."""
    if cfg.synthetic != "none":
        similar = find_neighbours(fed, cfg)
        show_own(fed, similar)
        hand_out(fed, cfg, similar)
    per_step = cfg.train.batch_size if cfg.synthetic_per_step is None else cfg.synthetic_per_step
    state = State(model=None, personal="alone")
    for index in fed.rounds("train", cfg.train.rounds, state):
        fed.broadcast(train_on_mixed_batches, spec=cfg.model, training=cfg.train.local(index), per_step=per_step)
    return Outcome(None, personal="alone", no_global="every client has a model of its own")


def hand_out(fed: Federation, cfg: PflGanConfig, similar: Similarity) -> None:
    """Lines 13 to 16: give every client that has neighbours T_i, or a refined GAN made of it."""
    sets = similar.sets
    if cfg.synthetic == "real":
        sets = fed.once("real samples", lambda: real_sets(fed, cfg.samples_per_class), dict[str, Samples])
    given = server_sets(similar, sets, cfg.threshold, cfg.own_set)
    alone = [client for client in fed.clients if client not in given]
    if alone:
        fed.note(f"No neighbours, so trained local-only: {', '.join(alone)}.")
    noise, what = cfg.synthetic == "noise", INSTEAD.get(cfg.synthetic, SYNTHETIC)
    if cfg.use == "direct" or cfg.synthetic == "real":
        samples: dict[str, dict[str, object]] = {c: {"samples": s, "noise": noise} for c, s in given.items()}
        fed.once("hand out sets", lambda: deliver(fed, receive_samples, samples))
        record_additions(fed, what, planned={c: count_labels(s.labels, fed.schema.classes) for c, s in given.items()})
        return
    uses = {client: client for client in given}
    trained_on = given
    if cfg.refine == "group":
        trained_on, uses = group_sets(similar, sets)
        uses = {client: of for client, of in uses.items() if client in given}
    request = GanRequest(spec=cfg.gan_spec(), training=cfg.gan_training(), steps=cfg.refined_steps)
    refined = refine_gans(fed, trained_on, request, cfg.side_by_side)
    kept = {c: KeptGenerator(gan=refined[of], spec=request.spec, noise=noise) for c, of in uses.items()}
    pool = {client: len(given[client]) if cfg.draws == "once" else 0 for client in uses}
    requests: dict[str, dict[str, object]] = {c: {"kept": kept[c], "pool": pool[c]} for c in uses}
    fed.once("hand out generators", lambda: deliver(fed, receive_generator, requests))
    record_additions(fed, what, about="" if cfg.draws == "once" else FRESH)
    show_refined(fed, cfg, similar, {client: refined[of] for client, of in uses.items()})


def show_own(fed: Federation, similar: Similarity) -> None:
    """Pictures of one client in each group: what its own GAN draws."""
    for number, group in enumerate(similar.groups[:PICTURED_GROUPS], 1):
        own = similar.sets[group[0]]
        if len(own):
            rows = torch.cat([torch.nonzero(own.labels == c)[:PICTURED, 0] for c in own.labels.unique()])
            fed.show(f"group-{number}-own-gan", own.rows(rows).floats(), own.labels[rows])


def show_refined(fed: Federation, cfg: PflGanConfig, similar: Similarity, refined: dict[str, ClientGan]) -> None:
    """The same with its refined GAN."""
    for number, group in enumerate(similar.groups[:PICTURED_GROUPS], 1):
        if group[0] in refined:
            better, spec = refined[group[0]], cfg.gan_spec()
            net = load_generator(spec, fed.schema.shape, fed.schema.classes, better.generator)
            drawn = draw_some(net, spec, better.classes, PICTURED, fed.rng(f"picture {number}"))
            fed.show(f"group-{number}-refined-gan", *drawn)
