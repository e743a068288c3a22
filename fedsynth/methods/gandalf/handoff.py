"""Phase 1 of GANDALF: groups of similar clients, and a GAN for each that passes from client to client (algorithm 1)."""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from fedsynth.components.class_counts import noise_of_counts
from fedsynth.components.loop import update_privacy
from fedsynth.federation import Federation, State
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.grouping import shares, similar_groups
from fedsynth.learning.weights import Weights
from fedsynth.methods.gandalf.clients import GanVisit, train_gan_visit
from fedsynth.methods.gandalf.settings import GandalfConfig
from fedsynth.seeding import derive
from fedsynth.synthesis.gan import build_gan


def group_similar(fed: Federation, counts: Mapping[str, np.ndarray], groups: int) -> list[list[str]]:
    """Groups of clients with similar classes (algorithm 2); who released no counts is in none."""
    clients = list(counts)
    if groups > len(clients):
        fed.note(f"{groups} groups were asked for, but there are {len(clients)} clients: one group for each.")
    mixes = shares(np.stack([counts[client] for client in clients]))
    return [[clients[row] for row in group] for group in similar_groups(mixes, groups, fed.rng("groups"))]


class GanTrainer:
    """Trains one GAN for each group, until the limit of steps or until the losses are flat."""

    def __init__(
        self, fed: Federation, cfg: GandalfConfig, groups: list[list[str]], counts: Mapping[str, np.ndarray]
    ) -> None:
        self.fed, self.cfg, self.groups, self.counts = fed, cfg, groups, counts
        updates = update_privacy(cfg)
        if cfg.gan_epsilon is not None:
            updates = updates.model_copy(update={"target": cfg.gan_epsilon, "noise": None})
        self.visits = math.ceil(cfg.gan_steps / cfg.visit_steps)  # of one GAN
        self.longest = 1 if cfg.averaged else max(map(len, groups))  # visits of a step of the phase
        self.steps = math.ceil(self.visits / self.longest)
        self.visit = GanVisit(
            spec=cfg.gan_spec(),
            training=cfg.gan_training(),
            steps=cfg.visit_steps,
            keep_moments=cfg.moments and not cfg.private and not cfg.averaged,
            sigma=noise_of_counts(cfg.counts_epsilon, cfg.privacy.delta),
            updates=updates,
        )

    def train(self) -> list[Weights]:
        """The weights of the GANs, in the order of the groups."""
        cfg, schema = self.cfg, self.fed.schema
        seeds = [derive(self.fed.seed, "gan", str(number)) for number in range(len(self.groups))]
        fresh = [build_gan(cfg.gan_spec(), schema.shape, schema.classes, seed) for seed in seeds]
        state = State(gans=[gan.weights() for gan in fresh], moments=[{} for _ in fresh], completed={}, losses=[])
        for index in self.fed.steps("GANs", self.steps, state):
            losses = self.average(state) if cfg.averaged else self.hand_on(state, self.stops(index))
            state.losses = [*state.losses, losses]
            state.finished = flat(state.losses, cfg.flat)
        return list(state.gans)

    def stops(self, index: int) -> int:
        """Visits of a GAN in a step of the phase."""
        return min(self.longest, self.visits - (index - 1) * self.longest)

    def planned(self, group: list[str]) -> GanVisit:
        """The visit of a client of a group, with how often it will come at most."""
        if self.cfg.gan_epsilon is None:
            return self.visit
        width = 1 if self.cfg.averaged else len(group)
        visits = sum(math.ceil(self.stops(index) / width) for index in range(1, self.steps + 1))
        return self.visit.model_copy(update={"visits": visits})

    def hand_on(self, state: State, stops: int) -> list[float]:
        """The GANs pass through so many clients of their groups, side by side; the losses of the last visits."""
        travelling = zip(state.gans, state.moments, self.groups, strict=True)
        start = [{"gan": g, "moments": m, "visit": self.planned(group)} for g, m, group in travelling]
        planned = self.cfg.gan_epsilon is not None
        routes = [self.cfg.route(group, stops, state.completed, planned) for group in self.groups]
        carried = self.fed.relay(train_gan_visit, start, routes)
        state.gans = [bag.fields["gan"] for bag in carried]
        state.moments = [bag.fields["moments"] for bag in carried]
        state.completed = dict(Counter(state.completed) + Counter(c for bag in carried for c in bag.visited))
        return [loss for bag in carried if bag.visited for loss in bag.reports[bag.visited[-1]]["losses"]]

    def average(self, state: State) -> list[float]:
        """All clients train the GAN by themselves, and it is averaged (FedDPGAN)."""
        group = self.groups[0]
        fields = {"gan": state.gans[0], "moments": {}, "visit": self.planned(group)}
        replies = self.fed.broadcast(train_gan_visit, to=group, **fields)
        if not replies:
            return []
        sizes = {client: max(1.0, float(np.clip(self.counts[client], 0, None).sum())) for client in replies}
        state.gans = [weighted_mean((reply.gan, sizes[client]) for client, reply in replies.items())]
        each = [reply.losses for reply in replies.values() if reply.losses]
        return [float(value) for value in np.mean(each, axis=0)] if each else []


def flat(losses: list[list[float]], tolerance: float) -> bool:
    """Whether no loss changed by more than this share in the last step."""
    if not tolerance or len(losses) < 2 or not losses[-1] or len(losses[-1]) != len(losses[-2]):
        return False
    before, now = np.array(losses[-2]), np.array(losses[-1])
    return bool((np.abs(now - before) <= tolerance * np.maximum(np.abs(before), 1e-12)).all())
