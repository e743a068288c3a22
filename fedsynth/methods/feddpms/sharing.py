"""Server's part of FedDPMS's sharing: what is asked of whom, who is matched with whom, what a receiver is sent.

The state's `shared` holds what each client has released (the paper's A, C and Z), `benefited` who has received (its B),
`frozen` the encoder at the end of the preliminary rounds, `supplied` who has the decoder.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsynth.components.additions import count_labels
from fedsynth.components.loop import LoopState
from fedsynth.federation import Federation, Message, Replies
from fedsynth.learning.weights import Weights
from fedsynth.methods.feddpms.clients import Order, ShareRequest, name_scarce_classes, share_statistics
from fedsynth.methods.feddpms.matching import match
from fedsynth.methods.feddpms.settings import FedDpmsConfig
from fedsynth.synthesis.class_balance import wanted_of_scarce
from fedsynth.synthesis.latent_statistics import (
    COUNT_WEIGHT,
    Calibration,
    LatentModel,
    MeanSearch,
    best_latents,
    decode,
    draw_images,
    published_claim,
    released_numbers,
)
from fedsynth.synthesis.vae_classifier import DECODER, VaeNet, VaeSpec, without


class Shared(Message):
    """What a client has released about its latents: noisy means with their classes, or statistics."""

    means: Tensor | None = None
    labels: Tensor | None = None
    statistics: Tensor | None = None


class DpmsState(LoopState):
    """What FedDPMS carries from round to round beside the loop's own."""

    START: ClassVar[dict[str, Any]] = {
        **{"shared": {}, "benefited": [], "supplied": [], "planned": {}},
        **{"pictured": False, "n": 0},
    }

    shared: dict[str, Shared]
    benefited: list[str]
    supplied: list[str]
    pictured: bool
    frozen: Weights
    n: int
    planned: dict[str, Any]  # samples of each class that receivers draw, by the counts that they have released


class Sharing:
    """How latents get from one client to another. This one shares nothing: the schedule without synthesis."""

    def orders(self, state: DpmsState, chosen: list[str]) -> dict[str, Order]:
        """What each of the chosen that has not benefited yet is given to synthesise from."""
        return {}

    def planned(self, state: DpmsState, client: str, order: Order) -> np.ndarray:
        """How many samples of each class a receiver makes of its order, as far as the server can know."""
        raise NotImplementedError

    def held(self, state: DpmsState) -> tuple[dict[str, np.ndarray] | None, float]:
        """Class counts that clients have released, and σ of the noise on each."""
        return None, 0.0

    def request(self, state: DpmsState, client: str) -> ShareRequest | None:
        """What a client is asked to share after its training; None when nothing."""
        return None

    def collect(self, state: DpmsState, replies: Replies) -> None:
        """Keep what was shared after the training."""

    def samples(self, state: DpmsState, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Some images that receivers may make, for people to look at: post-processing of what was shared."""
        return torch.zeros((0, 1, 1, 1)), torch.zeros(0, dtype=torch.int64)


class Published(Sharing):
    """Algorithms 2 and 3: filtered noisy means, exact lists of scarce and abundant classes."""

    def __init__(self, fed: Federation, cfg: FedDpmsConfig, latent: int) -> None:
        self.fed, self.cfg, self.latent = fed, cfg, latent
        assert isinstance(cfg.quota, int)  # the settings see to it
        self.search = MeanSearch(quota=cfg.quota, sigma=cfg.sigma, certainty=cfg.least_certainty(), tries=cfg.tries)
        self.claim = published_claim(self.search, latent, cfg.privacy.delta)

    def orders(self, state: DpmsState, chosen: list[str]) -> dict[str, Order]:
        """The means of the matched senders (algorithm 3)."""
        waiting = [client for client in chosen if client not in state.benefited]
        if not state.shared or not waiting:
            return {}
        lists = self.scarce(state, waiting)
        abundant = {client: sorted(set(kept.labels.tolist())) for client, kept in state.shared.items()}  # type: ignore[union-attr]
        orders = {}
        for client, scarce in lists.items():
            rng = self.fed.rng(f"match {client}")
            found = [state.shared[sender] for sender in match(client, scarce, abundant, self.cfg.senders, rng)]
            means, labels = joined_means(found)
            if len(labels):
                orders[client] = Order(means=means, labels=labels)
        return orders

    def planned(self, state: DpmsState, client: str, order: Order) -> np.ndarray:
        assert order.labels is not None
        return count_labels(order.labels, self.fed.schema.classes)

    def scarce(self, state: DpmsState, waiting: list[str]) -> dict[str, list[int]]:
        """The lists of those who can be reached."""
        replies = self.fed.broadcast(name_scarce_classes, to=waiting, n=self.n(state))
        return {client: reply.scarce for client, reply in replies.items()}

    def n(self, state: DpmsState) -> int:
        """n of the paper; with "auto" the smallest number of decidedly scarce classes that a client reports."""
        if self.cfg.classes != "auto":
            return int(self.cfg.classes)
        if not state.n:
            replies = self.fed.broadcast(name_scarce_classes, n=1)
            state.n = min((reply.decidedly for reply in replies.values()), default=1)
        return state.n

    def request(self, state: DpmsState, client: str) -> ShareRequest | None:
        """A client that has not shared yet is asked to, once."""
        if client in state.shared:
            return None
        heads = without(state.parts, [DECODER])
        return ShareRequest(heads=heads, classes=self.n(state), search=self.search, claimed=self.claim)

    def collect(self, state: DpmsState, replies: Replies) -> None:
        """Algorithm 2, line 22."""
        new = {client: reply for client, reply in replies.items() if reply.means is not None}
        for client, reply in new.items():
            if len(reply.labels) < self.search.quota * self.n(state):
                self.fed.note("Some clients found fewer usable noisy means than the quota within the allowed draws.")
            state.shared = state.shared | {client: Shared(means=reply.means, labels=reply.labels)}

    def samples(self, state: DpmsState, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Some of the shared means, decoded."""
        means, labels = joined_means(list(state.shared.values()))
        rows = torch.cat([torch.nonzero(labels == label)[:per_class, 0] for label in labels.unique()])
        return decode(net, means[rows], labels[rows]), labels[rows]


class Calibrated(Sharing):
    """Statistics with calibrated noise, from every client once; the receiver draws what it lacks."""

    def __init__(self, fed: Federation, cfg: FedDpmsConfig, latent: int, vae: VaeSpec) -> None:
        self.fed, self.cfg, self.latent, self.vae = fed, cfg, latent, vae
        # The second moment is left out where nobody reads it.
        self.noise = Calibration(cfg.epsilon, cfg.privacy.delta, cfg.clip, moments=cfg.spread is None)

    def orders(self, state: DpmsState, chosen: list[str]) -> dict[str, Order]:
        """For each receiver, where to draw the latents of each class."""
        self.gather(state, [client for client in chosen if client not in state.shared])
        orders = {}
        for client in chosen:
            latents = self.latents(state, exclude=client)
            if client not in state.benefited and latents is not None and bool(latents.known.any()):
                orders[client] = Order(latents=latents)
        return orders

    def planned(self, state: DpmsState, client: str, order: Order) -> np.ndarray:
        assert order.latents is not None
        counts = self.counts(state, client)
        wanted = wanted_of_scarce(counts, self.cfg.classes, self.cfg.quota)
        return np.asarray(np.where(order.latents.known.numpy(), wanted, 0))

    def held(self, state: DpmsState) -> tuple[dict[str, np.ndarray] | None, float]:
        return {client: self.counts(state, client) for client in state.shared}, self.noise.noise / COUNT_WEIGHT

    def counts(self, state: DpmsState, client: str) -> np.ndarray:
        """A client's class counts, as they follow from its noisy statistics."""
        statistics = state.shared[client].statistics
        assert statistics is not None
        return np.clip(released_numbers(statistics, self.latent).numpy(), 0, None)

    def gather(self, state: DpmsState, clients: list[str]) -> None:
        """The statistics of clients that have not sent theirs, by the encoder that the decoder was trained with."""
        if not clients:
            return
        replies = self.fed.broadcast(
            share_statistics, to=clients, model=state.frozen, spec=self.cfg.model, vae=self.vae, calibration=self.noise
        )
        state.shared = state.shared | {client: Shared(statistics=r.statistics) for client, r in replies.items()}

    def latents(self, state: DpmsState, exclude: str = "") -> LatentModel | None:
        """Per class, the pooled statistics of the clients with the largest noisy counts."""
        shared = [kept.statistics for client, kept in state.shared.items() if client != exclude]
        others = [statistics for statistics in shared if statistics is not None]
        if not others:
            return None
        found = best_latents(others, self.latent, self.noise, self.cfg.senders, self.cfg.spread)
        return found if self.cfg.spread else found.model_copy(update={"spread": self.cfg.widening * found.spread})

    def samples(self, state: DpmsState, net: VaeNet, per_class: int) -> tuple[Tensor, Tensor]:
        """Draws from everybody's statistics."""
        latents = self.latents(state)
        assert latents is not None
        wanted = latents.known.numpy() * per_class
        return draw_images(net, latents, wanted, self.cfg.least_certainty(), self.cfg.tries, self.fed.rng("samples"))


def joined_means(shared: list[Shared]) -> tuple[Tensor, Tensor]:
    """All noisy means of several senders, and their classes."""
    means = [kept.means for kept in shared if kept.means is not None]
    labels = [kept.labels for kept in shared if kept.labels is not None]
    return (torch.cat(means), torch.cat(labels)) if means else (torch.zeros((0, 1)), torch.zeros(0, dtype=torch.int64))
