"""PFL-GAN (algorithm 1): one model per client, helped by images of the clients that are like it.

Every client trains a conditional GAN and sends its generator. The server makes a balanced set with each, embeds it with
an auto-encoder, and takes d_ij = KL(P_i ‖ P_j) of the mean softmaxed embeddings. T_i has ⌊S_ij⌋ samples of every
neighbour j; a refined GAN is trained on it and sent to client i, which trains its own classifier on private and made
images. See `client_gans.py`, `similarity.py`, `refining.py` and `beside_made.py`.

Deviations. The discriminator is of no use to the server and stays at the client. The client itself is not among its
neighbours, and enters neither τ_i, σ_i nor T_i, which the paper leaves open. c is the size of a made set. Neighbours
are those of a clearly separate group, everybody where there is none; `form = "published"` has the mean (eq. 6), which
always cuts off some, interchangeable clients too. The auto-encoder learns from the made sets, so that no public set is
needed; the paper's is pre-trained on one data set and not described further. GANs and classifier are not described
either: ours are small. Made images come fresh at each step, beside the private batch and as many as it has (published:
50). A client without neighbours trains alone. `use = "direct"` trains on T_i itself, without refined GANs;
`refine = "group"` trains one refined GAN for a whole group, on the sets of all its members.

Nothing protects the generators, unless `privacy.updates = "dp_sgd"`: then the critics are trained by DP-SGD, clients do
not say which classes they have, and the generators are all that leaves. Without synthesis it is `local` to the bit.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from fedsynth.components.ablations import draw_real_samples
from fedsynth.components.settings import MethodConfig, PublishedForm
from fedsynth.federation import Federation, Outcome, State, method
from fedsynth.methods.pfl_gan.beside_made import deliver, receive_generator, receive_images, train_beside_made
from fedsynth.methods.pfl_gan.client_gans import GanSettings, Likeness, MadeSet, as_floats, find_likeness
from fedsynth.methods.pfl_gan.refining import group_sets, refined_gans, server_sets
from fedsynth.synthesis.gan import load_generator, make_images

PICTURED = 50  # images of each class that are shown; pictures have the first ten, `quality` judges all
PICTURED_GROUPS = 4


class PflGanConfig(PublishedForm, GanSettings, MethodConfig):
    """PFL-GAN's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"gan_lr": (5e-4, 5e-3)}

    published: ClassVar[dict[str, Any]] = {"threshold": "mean", "made_per_class": 1000, "made_per_step": 50}
    needs_single: ClassVar[str] = "its server works with the generator of each client"

    protects: ClassVar[bool] = True  # what leaves: the generators

    use: Literal["refined", "direct"] = Field(
        "refined", description="what clients train beside: images of a refined GAN, or the set T_i itself"
    )
    refine: Literal["client", "group"] = Field(
        "client", description="a refined GAN for each client, or one for each group of clients"
    )
    refined_steps: int = Field(1000, ge=0, description="generator steps of a refined GAN")
    made: Literal["step", "once"] = Field(
        "step", description="a refined GAN's images: made afresh at each step, or once, as many as T_i has"
    )
    made_per_step: int | None = Field(
        None, ge=0, description="made images beside each private batch; none given: as many as the batch has"
    )
    synthetic: Literal["generated", "noise", "real", "none"] = Field(
        "generated", description="controls: noise or neighbours' real images with the same labels, or nothing instead"
    )

    @model_validator(mode="after")
    def _protected_as_far_as_it_goes(self) -> PflGanConfig:
        if self.privacy.updates not in ("none", "dp_sgd"):
            raise ValueError(f'privacy.updates = "{self.privacy.updates}" is for averaged models; use "dp_sgd"')
        if self.privacy.updates == "dp_sgd" and self.gan != "wgan_gp":
            raise ValueError(f'privacy.updates = "dp_sgd" needs gan = "wgan_gp", not "{self.gan}"')
        if self.privacy.updates == "dp_sgd" and self.synthetic == "real":
            raise ValueError('synthetic = "real" lets real images out, so privacy.updates = "dp_sgd" would say nothing')
        return self


CONTROLS: dict[str, dict[str, Any]] = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "real samples": {"synthetic": "real"},
    "T_i directly": {"use": "direct"},
    "untrained encoder": {"autoencoder": "untrained"},
}


@method("pfl_gan", config=PflGanConfig, model="pfl_cnn", controls=CONTROLS)
def pfl_gan(fed: Federation, cfg: PflGanConfig) -> Outcome:
    """Clients that are alike, by GANs they share, help each other with made images; one model per client."""
    if cfg.synthetic != "none":
        likeness = find_likeness(fed, cfg)
        show_own(fed, likeness)
        hand_out(fed, cfg, likeness)
    per_step = cfg.train.batch_size if cfg.made_per_step is None else cfg.made_per_step
    state = State(model=None, personal="alone")
    for index in fed.rounds("train", cfg.train.rounds, state):
        fed.broadcast(train_beside_made, spec=cfg.model, training=cfg.train.local(index), per_step=per_step)
    return Outcome(None, personal="alone", no_global="every client has a model of its own")


def hand_out(fed: Federation, cfg: PflGanConfig, likeness: Likeness) -> None:
    """Lines 13 to 16: give every client that has neighbours T_i, or a refined GAN made of it."""
    sets = likeness.sets
    if cfg.synthetic == "real":
        sets = fed.once("real samples", lambda: real_sets(fed, cfg))
    given = server_sets(likeness, sets, cfg.threshold)
    alone = [client for client in fed.clients if client not in given]
    if alone:
        fed.note(f"No neighbours, so trained alone: {', '.join(alone)}.")
    noise = {"noise": True} if cfg.synthetic == "noise" else {}
    if cfg.use == "direct" or cfg.synthetic == "real":
        fed.once("hand out sets", lambda: deliver(fed, receive_images, {c: {**s, **noise} for c, s in given.items()}))
        return
    uses = {client: client for client in given}
    trained_on = given
    if cfg.refine == "group":
        trained_on, uses = group_sets(likeness, sets)
        uses = {client: of for client, of in uses.items() if client in given}
    refined = refined_gans(fed, cfg, trained_on)
    pools = {c: {"pool": len(given[c]["labels"])} if cfg.made == "once" else {} for c in uses}
    orders = {c: {**refined[of], "spec": cfg.gan_spec(), **pools[c], **noise} for c, of in uses.items()}
    fed.once("hand out generators", lambda: deliver(fed, receive_generator, orders))
    show_refined(fed, cfg, likeness, {client: refined[of] for client, of in uses.items()})


def real_sets(fed: Federation, cfg: PflGanConfig) -> dict[str, MadeSet]:
    """Real images of every client in place of made ones, as many of each class as it has of them."""
    fed.note("Real images crossed between clients, as an upper bound: this is a control, not a method.")
    sets: dict[str, MadeSet] = {}
    for client, reply in fed.broadcast(draw_real_samples, per_class=cfg.made_per_class).items():
        order = torch.from_numpy(fed.rng(f"order of {client}").permutation(len(reply.labels)))
        images = reply.images[order]
        sets[client] = {"images": (images * 255).round().to(torch.uint8), "labels": reply.labels[order]}
    nothing = {"images": torch.zeros((0, *fed.schema.shape), dtype=torch.uint8), "labels": torch.zeros(0).long()}
    return {client: sets.get(client, nothing) for client in fed.clients}


def show_own(fed: Federation, likeness: Likeness) -> None:
    """Pictures of one client in each group: what its own GAN makes."""
    for number, group in enumerate(likeness.groups[:PICTURED_GROUPS], 1):
        own = likeness.sets[group[0]]
        if len(own["labels"]):
            rows = torch.cat([torch.nonzero(own["labels"] == c)[:PICTURED, 0] for c in own["labels"].unique()])
            fed.show(f"group-{number}-own-gan", as_floats(own["images"][rows]), own["labels"][rows])


def show_refined(fed: Federation, cfg: PflGanConfig, likeness: Likeness, refined: dict[str, dict[str, Any]]) -> None:
    """The same with its refined GAN."""
    for number, group in enumerate(likeness.groups[:PICTURED_GROUPS], 1):
        if group[0] in refined:
            better = refined[group[0]]
            labels = torch.tensor(better["classes"]).repeat_interleave(PICTURED)
            net = load_generator(cfg.gan_spec(), fed.schema.shape, fed.schema.classes, better["generator"])
            images = make_images(net, cfg.gan_spec(), labels, fed.rng(f"picture {number}"))
            fed.show(f"group-{number}-refined-gan", images, labels)
