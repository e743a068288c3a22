"""GANDALF (algorithms 1 to 4): groups of similar clients train GANs by hand-off, clients top up what they lack with
them, then the classifier is trained sequentially in groups with an even mix.

Phase 1: clients release how many examples of each class they have, once; K-means makes groups of similar clients; in
each group a GAN passes from client to client. Phase 2: a client gets the generators whose groups differ most from it
and generates what it lacks to an even mix, times τ; what cannot be generated is topped up by augmented copies, at most
two of each image. Phase 3: see `components/sequential.py`.

Deviations. Labels: the paper's GANs know no classes, and it is silent on where labels come from (the authors' code has
a trained classifier). By default GANs are told the class here, so that H = A·B is solved class by class;
`labeller = "federated"` trains a classifier first and labels with it. H = A·B is solved by non-negative least squares
in place of a pseudo-inverse that is cut off at 0. A label that no client of a group has is never asked of its GAN.
Class counts have calibrated noise, leave once and serve both groupings. Rates, batch and steps of a visit are those
that work on a small machine; `form = "published"` has the paper's (T_g = 3, 5e-5 and 1e-4, batches of 256). The paper's
noise on weights is `privacy.updates = "gaussian"` with `noise = 1e-5`; nothing is proven by it. With "dp_sgd" critic
and classifier are trained by DP-SGD and amounts follow the noisy counts.

Variants: Private FL-GAN has one group, SDA-FL one for each client, FedDPGAN averages one GAN over all clients.
Without synthesis and with a mediator for each client it is FedAvg, bit-identical.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsynth.components.ablations import Controls, draw_from_all
from fedsynth.components.class_counts import class_counts, noise_of_counts
from fedsynth.components.sequential import SequentialLoop
from fedsynth.components.synthetic_data import GeneratedSamples, KeptSamples
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.learning.grouping import balanced_groups
from fedsynth.learning.weights import Weights
from fedsynth.methods.gandalf.clients import Generators, TopUp, surely_there, top_up
from fedsynth.methods.gandalf.handoff import GanTrainer, choose_generators, group_similar
from fedsynth.methods.gandalf.settings import AveragedConfig, EachAloneConfig, GandalfConfig, OneGroupConfig
from fedsynth.synthesis.gan import COLLAPSED, generator_weights, load_generator, make_images, mean_distance

ATTEMPTS = 5  # times that those who did not answer are asked, where everybody is needed once
PICTURED = 50  # images of each class that a GAN shows; pictures have the first ten, `quality` evaluates all


CONTROLS: Controls = {
    "without synthesis": {"synthetic": "none", "static": False},
    "static copies only": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "real samples": {"synthetic": "real"},
}


OFF = {"synthetic": "none", "static": False, "mediators": 10**6}
"""The settings with which it is FedAvg."""


@method("gandalf", config=GandalfConfig, controls=CONTROLS, fedavg_when=OFF)
def gandalf(fed: Federation, cfg: GandalfConfig) -> Outcome:
    """Groups of similar clients train GANs in turn; clients top up the classes they lack with them."""
    return Gandalf(fed, cfg).run()


@method("private_fl_gan", config=OneGroupConfig, controls=CONTROLS, fedavg_when=OFF)
def private_fl_gan(fed: Federation, cfg: OneGroupConfig) -> Outcome:
    """One GAN passes through all clients; else GANDALF."""
    return Gandalf(fed, cfg).run()


@method("sda_fl", config=EachAloneConfig, controls=CONTROLS, fedavg_when=OFF)
def sda_fl(fed: Federation, cfg: EachAloneConfig) -> Outcome:
    """Every client trains a GAN of its own; else GANDALF."""
    return Gandalf(fed, cfg).run()


@method("feddpgan", config=AveragedConfig, controls=CONTROLS, fedavg_when=OFF)
def feddpgan(fed: Federation, cfg: AveragedConfig) -> Outcome:
    """One GAN is averaged over all clients; else GANDALF."""
    return Gandalf(fed, cfg).run()


class Gandalf:
    """The three phases."""

    def __init__(self, fed: Federation, cfg: GandalfConfig) -> None:
        self.fed, self.cfg, self.spec = fed, cfg, cfg.gan_spec()
        if cfg.local_data is not None:
            raise ConfigError("GANDALF trains on data of its own making: remove method.local_data.")
        # Mistakes are found before anything leaves a client.
        self.loop = SequentialLoop(fed, cfg, local_data=GeneratedSamples() if cfg.private else KeptSamples())
        if cfg.private and cfg.static:
            fed.note("No augmented copies were made: with dp_sgd every record must count once.")

    def run(self) -> Outcome:
        """Train GANs, top up, train."""
        fed, cfg = self.fed, self.cfg
        self.counts: dict[str, np.ndarray] = fed.once(
            "count classes",
            lambda: class_counts(fed, cfg.counts_epsilon, cfg.privacy.delta, cfg.private, ATTEMPTS),
        )
        table = np.stack([self.counts.get(client, np.zeros(fed.schema.classes)) for client in fed.clients])
        even = [[fed.clients[row] for row in group] for group in balanced_groups(table, cfg.mediators)]
        if cfg.tau and (cfg.synthetic != "none" or cfg.static):
            fed.schema.require_images()
            self.augment(even)
        return self.loop.run(even)

    # -- phase 2 ------------------------------------------------------------------------------------------------

    def augment(self, even: list[list[str]]) -> None:
        """Train what is needed, then have every client top up what it lacks."""
        groups: list[list[str]] = []
        gans: list[Weights] = []
        labeller: Weights = {}
        if self.cfg.synthetic != "none" and self.counts:
            wanted = len(self.counts) if self.cfg.groups == "all" else self.cfg.groups
            groups = self.fed.once("groups", lambda: group_similar(self.fed, self.counts, wanted))
            gans = [generator_weights(gan) for gan in GanTrainer(self.fed, self.cfg, groups, self.counts).train()]
            if self.cfg.labeller == "federated":
                short = self.cfg.train.model_copy(update={"rounds": self.cfg.labeller_rounds})
                loop = SequentialLoop(self.fed, self.cfg.model_copy(update={"train": short}))
                labeller = loop.prepare_model(even, "labeller", self.cfg.labeller_rounds)
        self.fed.once("top up", lambda: self.top_up(groups, gans, labeller))

    def top_up(self, groups: list[list[str]], gans: list[Weights], labeller: Weights) -> list[str]:
        """Send every client its generators; the clients that could not be reached."""
        cfg, fed = self.cfg, self.fed
        mixes = [np.sum([self.counts[client] for client in group], axis=0) for group in groups]
        known = [self.learnt(group) for group in groups]
        how = TopUp(
            tau=cfg.tau,
            static=cfg.static_augmentation() if cfg.static and not cfg.private else None,
            synthetic=cfg.synthetic,
            noisy=cfg.private,
            labeller=labeller,
            spec=cfg.model,
            real=draw_from_all(fed) if cfg.synthetic == "real" else None,
        )
        requests = {c: {"generators": self.generators(c, gans, mixes, known), "how": how} for c in fed.clients}
        missed = list(fed.scatter(top_up, requests, attempts=ATTEMPTS).failures)
        if missed:
            fed.note(f"Could not be reached to generate images: {', '.join(missed)}.")
        self.show(groups, gans, known)
        return missed

    def learnt(self, group: list[str]) -> np.ndarray:
        """The classes that a group's GAN has learnt, by the counts that its clients have released."""
        sigma = noise_of_counts(self.cfg.counts_epsilon, self.cfg.privacy.delta)
        counts = [self.counts[client] for client in group]
        if self.cfg.private:  # each learns the classes that its own counts are sure of, and no others
            return np.asarray(np.any([surely_there(own, sigma, 1) for own in counts], axis=0))
        return surely_there(np.sum(counts, axis=0), sigma, len(group))

    def generators(
        self, client: str, gans: list[Weights], mixes: list[np.ndarray], known: list[np.ndarray]
    ) -> Generators:
        """The generators whose groups differ most from the client (all, where it has released no counts)."""
        chosen = list(range(len(gans)))
        if self.cfg.generators is not None and client in self.counts and gans:
            chosen = choose_generators(self.counts[client], mixes, self.cfg.generators)
        return Generators(
            spec=self.spec,
            weights=[gans[g] for g in chosen],
            known=[known[g].tolist() for g in chosen],
            mixes=[np.clip(mixes[g], 0, None).tolist() for g in chosen],
        )

    def show(self, groups: list[list[str]], gans: list[Weights], known: list[np.ndarray]) -> None:
        """Pictures of what each GAN makes, and a table that tells whether its images differ from one another."""
        rows: list[list[str | float | int | None]] = []
        for number, (weights, group, there) in enumerate(zip(gans, groups, known, strict=True), 1):
            images, labels = self.samples(weights, there, number)
            self.fed.show(f"gan-{number}", images, labels)
            apart = [mean_distance(images[labels == c]) for c in labels.unique().tolist()]
            least, mean = (min(apart), sum(apart) / len(apart)) if apart else (None, None)
            rows.append([f"GAN {number}", len(group), int(there.sum()), mean, least])
            if least is not None and mean is not None and least < COLLAPSED * mean:
                self.fed.note(
                    f"GAN {number} generates nearly the same image of a class again and again: look at its picture."
                )
        if rows:
            columns = ["", "clients", "classes", "distance of two images of a class", "of the class with the least"]
            self.fed.record("GANs", {"kind": "table", "columns": columns, "rows": rows})
            named = {f"GAN {number}": group for number, group in enumerate(groups, 1)}
            self.fed.record("groups that train a GAN", {"kind": "groups", "groups": named})

    def samples(self, weights: Weights, there: np.ndarray, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A few images of each class that a GAN knows; of a GAN that knows no classes, a few of any."""
        generator = load_generator(self.spec, self.fed.schema.shape, self.fed.schema.classes, weights)
        rng = self.fed.rng(f"picture {number}")
        if self.spec.conditional:
            labels = torch.from_numpy(np.flatnonzero(there)).repeat_interleave(PICTURED)
            return make_images(generator, self.spec, labels, rng), labels
        return make_images(generator, self.spec, None, rng, count=PICTURED), torch.zeros(PICTURED, dtype=torch.int64)
