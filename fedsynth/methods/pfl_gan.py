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

Nothing protects the generators. Without synthesis it is `local` to the last bit.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from fedsynth.federation import Federation, Outcome, State, method
from fedsynth.methods.beside_made import receive_generator, receive_images, train_beside_made
from fedsynth.methods.client_gans import GanSettings, Likeness, MadeSet, as_floats, find_likeness
from fedsynth.methods.controls import draw_real_samples
from fedsynth.methods.refining import group_sets, refined_gans, server_sets
from fedsynth.methods.settings import MethodConfig, PublishedForm
from fedsynth.synthesis.gan import load_generator, make_images

PICTURED = 10  # images of each class in a picture
PICTURED_GROUPS = 4


class PflGanConfig(PublishedForm, GanSettings, MethodConfig):
    """PFL-GAN's settings."""

    published: ClassVar[dict[str, Any]] = {"threshold": "mean", "made_per_class": 1000, "made_per_step": 50}
    needs_single: ClassVar[str] = "its server works with the generator of each client"

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
        fed.once("hand out sets", lambda: told(fed, receive_images, {c: {**s, **noise} for c, s in given.items()}))
        return
    uses = {client: client for client in given}
    trained_on = given
    if cfg.refine == "group":
        trained_on, uses = group_sets(likeness, sets)
        uses = {client: of for client, of in uses.items() if client in given}
    refined = refined_gans(fed, cfg, trained_on)
    pools = {c: {"pool": len(given[c]["labels"])} if cfg.made == "once" else {} for c in uses}
    orders = {c: {**refined[of], "spec": cfg.gan_spec(), **pools[c], **noise} for c, of in uses.items()}
    fed.once("hand out generators", lambda: told(fed, receive_generator, orders))
    show_refinement(fed, cfg, likeness, {client: refined[of] for client, of in uses.items()})


def told(fed: Federation, task: Any, orders: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Send everybody what is theirs; those who do not answer are asked once more, then train alone."""
    replies = fed.scatter(task, orders) if orders else {}
    missed = {client: order for client, order in orders.items() if client not in replies}
    again = fed.scatter(task, missed) if missed else {}
    left = [client for client in missed if client not in again]
    if left:
        fed.note(f"Could not be reached to receive made images: {', '.join(left)}.")
    return {"missed": left}


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


def show_refinement(fed: Federation, cfg: PflGanConfig, likeness: Likeness, refined: dict[str, dict[str, Any]]) -> None:
    """Pictures of one client in each group: what its own GAN makes, and what its refined GAN makes."""
    shown = [group[0] for group in likeness.groups if group[0] in refined][:PICTURED_GROUPS]
    for number, client in enumerate(shown, 1):
        own, better = likeness.sets[client], refined[client]
        known = own["labels"].unique()
        rows = torch.cat([torch.nonzero(own["labels"] == label)[:PICTURED, 0] for label in known])
        fed.show(f"group-{number}-own-gan", as_floats(own["images"][rows]), own["labels"][rows])
        labels = torch.tensor(better["classes"]).repeat_interleave(PICTURED)
        net = load_generator(cfg.gan_spec(), fed.schema.shape, fed.schema.classes, better["generator"])
        images = make_images(net, cfg.gan_spec(), labels, fed.rng(f"picture {number}"))
        fed.show(f"group-{number}-refined-gan", images, labels)
