"""Server's part of FedDPMS's sharing: what is asked of whom, who is matched with whom, what a receiver is sent.

State: `shared` holds what each client has let out (the paper's A, C and Z), `benefited` who has received (its B),
`frozen` the encoder at the end of the preliminary rounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsynth.federation import Federation, Replies, State
from fedsynth.methods.feddpms.augmenting import name_scarce_classes, share_statistics
from fedsynth.methods.feddpms.autoencoding import DECODER, VaeNet, VaeSpec, without
from fedsynth.methods.feddpms.latent_release import (
    Calibration,
    LatentModel,
    decode,
    draw_images,
    honest_epsilons,
    latent_model,
)
from fedsynth.methods.feddpms.matching import match

Order = dict[str, Any]


class Sharing:
    """How latents get from one client to another. This one shares nothing: the schedule without synthesis."""

    def orders(self, state: State, chosen: list[str]) -> dict[str, Order]:
        """What each of the chosen that has not benefited yet is given to synthesise from."""
        return {}

    def request(self, state: State, client: str) -> dict[str, Any] | None:
        """What a client is asked to share after its training; None when nothing."""
        return None

    def collect(self, state: State, replies: Replies) -> None:
        """Keep what was shared after the training."""

    def samples(self, state: State, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Some images that receivers may make, for people to look at: post-processing of what was shared."""
        return torch.zeros((0, 1, 1, 1)), torch.zeros(0, dtype=torch.int64)


class Published(Sharing):
    """Algorithms 2 and 3: filtered noisy means, exact lists of scarce and abundant classes."""

    def __init__(self, fed: Federation, cfg: Any, latent: int) -> None:
        self.fed, self.cfg, self.latent = fed, cfg, latent
        self.claim = published_claim(cfg.quota, latent, cfg.sigma, cfg.privacy.delta)

    def orders(self, state: State, chosen: list[str]) -> dict[str, Order]:
        """The means of the matched senders (algorithm 3)."""
        waiting = [client for client in chosen if client not in state.benefited]
        if not state.shared or not waiting:
            return {}
        lists = self.scarce(state, waiting)
        abundant = {client: sorted(set(kept["labels"].tolist())) for client, kept in state.shared.items()}
        orders = {}
        for client, scarce in lists.items():
            rng = self.fed.rng(f"match {client}")
            found = [state.shared[sender] for sender in match(client, scarce, abundant, self.cfg.senders, rng)]
            if any(len(kept["labels"]) for kept in found):
                means, labels = (torch.cat([kept[name] for kept in found]) for name in ("means", "labels"))
                orders[client] = {"kind": "means", "means": means, "labels": labels}
        return orders

    def scarce(self, state: State, waiting: list[str]) -> dict[str, list[int]]:
        """The lists of those who can be reached."""
        replies = self.fed.broadcast(name_scarce_classes, to=waiting, n=self.n(state))
        return {client: reply.scarce for client, reply in replies.items()}

    def n(self, state: State) -> int:
        """n of the paper; with "auto" the smallest number of decidedly scarce classes that a client reports."""
        if self.cfg.classes != "auto":
            return int(self.cfg.classes)
        if "n" not in vars(state):
            replies = self.fed.broadcast(name_scarce_classes, n=1)
            state.n = min((reply.decidedly for reply in replies.values()), default=1)
        return int(state.n)

    def request(self, state: State, client: str) -> dict[str, Any] | None:
        """A client that has not shared yet is asked to, once."""
        if client in state.shared:
            return None
        return {
            "heads": without(state.parts, [DECODER]),
            "classes": self.n(state),
            "quota": self.cfg.quota,
            "sigma": self.cfg.sigma,
            "certainty": self.cfg.least_certainty(),
            "tries": self.cfg.tries,
            "claimed": self.claim,
        }

    def collect(self, state: State, replies: Replies) -> None:
        """Algorithm 2, line 22."""
        new = {client: reply for client, reply in replies.items() if reply.means is not None}
        for client, reply in new.items():
            if len(reply.labels) < self.cfg.quota * self.n(state):
                self.fed.note("Some clients found fewer usable noisy means than the quota within the allowed draws.")
            state.shared = state.shared | {client: {"means": reply.means, "labels": reply.labels}}

    def samples(self, state: State, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Some of the shared means, decoded."""
        means, labels = (torch.cat([kept[name] for kept in state.shared.values()]) for name in ("means", "labels"))
        rows = torch.cat([torch.nonzero(labels == label)[:per_class, 0] for label in labels.unique()])
        return decode(net, means[rows], labels[rows]), labels[rows]


class Calibrated(Sharing):
    """Statistics with calibrated noise, from every client once; the receiver draws what it lacks."""

    def __init__(self, fed: Federation, cfg: Any, latent: int, vae: VaeSpec) -> None:
        self.fed, self.cfg, self.latent, self.vae = fed, cfg, latent, vae
        # The second moment is left out where nobody reads it.
        self.noise = Calibration(cfg.epsilon, cfg.privacy.delta, cfg.clip, moments=cfg.spread is None)

    def orders(self, state: State, chosen: list[str]) -> dict[str, Order]:
        """For each receiver, where to draw the latents of each class."""
        self.gather(state, [client for client in chosen if client not in state.shared])
        orders = {}
        for client in chosen:
            latents = self.latents(state, exclude=client)
            if client not in state.benefited and latents is not None and bool(latents.known.any()):
                orders[client] = {"kind": "latents", **vars(latents)}
        return orders

    def gather(self, state: State, clients: list[str]) -> None:
        """The statistics of clients that have not sent theirs, by the encoder that the decoder was trained with."""
        if not clients:
            return
        replies = self.fed.broadcast(
            share_statistics,
            to=clients,
            model=state.frozen,
            spec=self.cfg.model,
            vae=vars(self.vae),
            calibration=vars(self.noise),
        )
        state.shared = state.shared | {client: {"statistics": r.statistics} for client, r in replies.items()}

    def latents(self, state: State, exclude: str = "") -> LatentModel | None:
        """Per class, the pooled statistics of the clients with the largest noisy counts."""
        others = [kept["statistics"] for client, kept in state.shared.items() if client != exclude]
        if not others:
            return None
        models = []
        for label in range(self.fed.schema.classes):
            ranked = sorted(others, key=lambda rows: -float(rows[label, self.latent]))[: self.cfg.senders]
            models.append(
                latent_model([r[label : label + 1] for r in ranked], self.latent, self.noise, self.cfg.spread)
            )
        mean, spread, known = (torch.cat([getattr(m, name) for m in models]) for name in ("mean", "spread", "known"))
        return LatentModel(mean, spread if self.cfg.spread else self.cfg.widening * spread, known)

    def samples(self, state: State, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Draws from everybody's statistics."""
        latents = self.latents(state)
        assert latents is not None
        wanted = latents.known.numpy() * per_class
        return draw_images(net, latents, wanted, self.cfg.least_certainty(), self.cfg.tries, self.fed.rng("samples"))


def published_claim(quota: int, latent: int, sigma: float, delta: float) -> str:
    """What the published noise is worth, in words."""
    readings = honest_epsilons(quota, latent, sigma, delta)
    told = "; ".join(
        f"reading {name}: " + ", ".join(f"{value:.4f} (m = {m})" for m, value in by_m.items())
        for name, by_m in readings.items()
    )
    return (
        "The published noise on latent means, honestly counted, would give ε per record (add or remove one, "
        f"δ = {delta:g}) for a class of m examples, α = {quota}, l = {latent}, σ = {sigma:g}: {told}; were the encoder "
        "public and nothing filtered. As published there is no finite ε: the filter, the encoder and the class lists "
        "depend on the data"
    )
