"""GANDALF (algorithms 1 to 4): groups of similar clients train GANs by hand-off, clients top up what they lack with
them, then the classifier is trained sequentially in groups with an even mix.

Phase 1: clients release how many examples of each class they have, once; K-means makes groups of similar clients; in
each group a GAN passes from client to client. Phase 2: a client gets the generators whose groups differ most from it
and generates what it lacks to an even mix, times τ; what cannot be generated is topped up by augmented copies, at most
two of each image. Phase 3: see `components/sequential.py`.

Deviations. Labels: the paper's GANs know no classes, and it is silent on where labels come from (the authors' code has
a trained classifier). By default GANs are told the class here, so that H = A·B is solved class by class;
`labeller = "federated"` trains a classifier first and labels with it. H = A·B is solved by non-negative least squares
in place of a pseudo-inverse that is cut off at 0 (`solver`). A label that no client of a group has is never asked of
its GAN.
Class counts have calibrated noise, leave once and serve both groupings. Rates, batch and steps of a visit are those
that work on a small machine, and Adam's moments travel with the weights; `form = "published"` has what the paper says:
T_g = 3, moments that stay, 5e-5 and 1e-4, batches of 256, the pseudo-inverse. The paper's noise on weights is
`privacy.updates = "gaussian"` with `noise = 1e-5`; nothing is proven by it. With "dp_sgd" critic and classifier are
trained by DP-SGD and amounts follow the noisy counts.

Variants: Private FL-GAN has one group, SDA-FL one for each client, FedDPGAN averages one GAN over all clients.
Without synthesis and with a mediator for each client it is FedAvg, bit-identical.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedsynth.components.ablations import Controls, draw_from_all
from fedsynth.components.additions import COPIES, INSTEAD, record_additions
from fedsynth.components.class_counts import class_counts, noise_of_counts
from fedsynth.components.sequential import SequentialLoop
from fedsynth.components.synthetic_store import GeneratedSamples, KeptSamples
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.grouping import balanced_groups, choose_generators
from fedsynth.learning.weights import Weights
from fedsynth.methods.gandalf.clients import Generators, TopUp, planned_images, surely_there, top_up
from fedsynth.methods.gandalf.handoff import GanTrainer, group_similar
from fedsynth.methods.gandalf.settings import AveragedConfig, EachAloneConfig, GandalfConfig, OneGroupConfig
from fedsynth.synthesis.gan import COLLAPSED, draw_some, generator_weights, load_generator, mean_distance

ATTEMPTS = 5  # times that those who did not answer are asked, where everybody is needed once
PICTURED = 50  # images of each class that a GAN shows; pictures have the first ten, `quality` evaluates all


CONTROLS: Controls = {
    "without synthesis": {"synthetic": "none", "static": False},
    "without synthesis, exact counts": {"synthetic": "none", "static": False, "counts_epsilon": None},
    "static copies only": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "real samples": {"synthetic": "real"},
}


OFF = {"synthetic": "none", "static": False, "mediators": 10**6}
"""The settings with which it is FedAvg."""

SEARCH = {"tau": (0.2, 1.0), "generator_lr": (5e-4, 5e-3)}


@method("gandalf", config=GandalfConfig, controls=CONTROLS, fedavg_when=OFF, search=SEARCH)
def gandalf(fed: Federation, cfg: GandalfConfig) -> Outcome:
    """Groups of similar clients train GANs in turn; clients top up the classes they lack with them."""
    return Gandalf(fed, cfg).run()


@method("private_fl_gan", config=OneGroupConfig, controls=CONTROLS, fedavg_when=OFF, search=SEARCH)
def private_fl_gan(fed: Federation, cfg: OneGroupConfig) -> Outcome:
    """One GAN passes through all clients; else GANDALF."""
    return Gandalf(fed, cfg).run()


@method("sda_fl", config=EachAloneConfig, controls=CONTROLS, fedavg_when=OFF, search=SEARCH)
def sda_fl(fed: Federation, cfg: EachAloneConfig) -> Outcome:
    """Every client trains a GAN of its own; else GANDALF."""
    return Gandalf(fed, cfg).run()


@method("feddpgan", config=AveragedConfig, controls=CONTROLS, fedavg_when=OFF, search=SEARCH)
def feddpgan(fed: Federation, cfg: AveragedConfig) -> Outcome:
    """One GAN is averaged over all clients; else GANDALF."""
    return Gandalf(fed, cfg).run()


@dataclass(frozen=True)
class GroupGan:
    """What a group of similar clients has trained: its generator, the classes it has learnt, what the group has."""

    clients: list[str]
    generator: Weights
    known: np.ndarray
    mix: np.ndarray


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
        counting = partial(class_counts, fed, cfg.counts_epsilon, cfg.privacy.delta, cfg.private, ATTEMPTS)
        self.counts = fed.once("count classes", counting)
        table = np.stack([self.counts.get(client, np.zeros(fed.schema.classes)) for client in fed.clients])
        even = [[fed.clients[row] for row in group] for group in balanced_groups(table, cfg.mediators)]
        if cfg.tau and (cfg.synthetic != "none" or cfg.static):
            fed.schema.require_images()
            gans = self.train_gans() if cfg.synthetic != "none" and self.counts else []
            labeller = self.train_labeller(even) if gans and cfg.labeller == "federated" else {}
            fed.once("top up", lambda: self.top_up(gans, labeller))
        return self.loop.run(even)

    def train_gans(self) -> list[GroupGan]:
        """Phase 1: a GAN for each group of similar clients, and the classes that it has learnt."""
        wanted = len(self.counts) if self.cfg.groups == "all" else self.cfg.groups
        groups = self.fed.once("groups", lambda: group_similar(self.fed, self.counts, wanted))
        weights = GanTrainer(self.fed, self.cfg, groups, self.counts).train()
        sigma, gans = noise_of_counts(self.cfg.counts_epsilon, self.cfg.privacy.delta), []
        for group, gan in zip(groups, weights, strict=True):
            counts = [self.counts[client] for client in group]
            mix = np.sum(counts, axis=0)
            known = surely_there(mix, sigma, len(group))
            if self.cfg.private:  # each learns the classes that its own counts are sure of, and no others
                known = np.asarray(np.any([surely_there(own, sigma, 1) for own in counts], axis=0))
            gans.append(GroupGan(group, generator_weights(gan), known, mix))
        return gans

    def train_labeller(self, groups: list[list[str]]) -> Weights:
        """A classifier that labels what GANs without classes generate."""
        short = self.cfg.train.model_copy(update={"rounds": self.cfg.labeller_rounds})
        loop = SequentialLoop(self.fed, self.cfg.model_copy(update={"train": short}))
        return loop.prepare_model(groups, "labeller", self.cfg.labeller_rounds)

    def top_up(self, gans: list[GroupGan], labeller: Weights) -> list[str]:
        """Phase 2: send every client its generators; the clients that could not be reached."""
        cfg, fed = self.cfg, self.fed
        how = TopUp(
            tau=cfg.tau,
            static=cfg.static_augmentation() if cfg.static and not cfg.private else None,
            synthetic=cfg.synthetic,
            solver=cfg.solver,
            noisy=cfg.private,
            labeller=labeller,
            spec=cfg.model,
            real=draw_from_all(fed) if cfg.synthetic == "real" else None,
        )
        requests = {client: {"generators": self.generators(client, gans), "how": how} for client in fed.clients}
        missed = list(fed.scatter(top_up, requests, attempts=ATTEMPTS).failures)
        self.record(gans, {client: self.generators(client, gans) for client in fed.clients if client not in missed})
        if missed:
            fed.note(f"Could not be reached to generate images: {', '.join(missed)}.")
        if gans:
            self.show(gans)
        return missed

    def record(self, gans: list[GroupGan], sent: dict[str, Generators]) -> None:
        """What clients add, as far as it follows from the counts that they have released."""
        cfg, counts, planned = self.cfg, self.counts, None
        if gans and self.spec.conditional:
            planned = {c: planned_images(counts[c], given, cfg.tau) for c, given in sent.items() if c in counts}
        what = INSTEAD.get(cfg.synthetic, SYNTHETIC) if gans else COPIES
        if gans and cfg.static and not cfg.private:
            what += f" and, where they lack, {COPIES}"
        noise = noise_of_counts(cfg.counts_epsilon, cfg.privacy.delta)
        record_additions(self.fed, what, planned=planned, held=counts, noise=noise)

    def generators(self, client: str, gans: list[GroupGan]) -> Generators:
        """The generators whose groups differ most from the client (all, where it has released no counts)."""
        if self.cfg.generators is not None and client in self.counts and gans:
            chosen = choose_generators(self.counts[client], [gan.mix for gan in gans], self.cfg.generators)
            gans = [gans[number] for number in chosen]
        return Generators(
            spec=self.spec,
            weights=[gan.generator for gan in gans],
            known=[gan.known.tolist() for gan in gans],
            mixes=[np.clip(gan.mix, 0, None).tolist() for gan in gans],
        )

    def show(self, gans: list[GroupGan]) -> None:
        """Pictures of what each GAN makes, and a table that tells whether its images differ from one another."""
        rows: list[list[str | float | int | None]] = []
        for number, gan in enumerate(gans, 1):
            generator = load_generator(self.spec, self.fed.schema.shape, self.fed.schema.classes, gan.generator)
            known, rng = np.flatnonzero(gan.known), self.fed.rng(f"picture {number}")
            images, labels = draw_some(generator, self.spec, known, PICTURED, rng)
            self.fed.show(f"gan-{number}", images, labels)
            apart = [mean_distance(images[labels == label]) for label in labels.unique().tolist()]
            least, mean = (min(apart), sum(apart) / len(apart)) if apart else (None, None)
            rows.append([f"GAN {number}", len(gan.clients), len(known), mean, least])
            if least is not None and mean is not None and least < COLLAPSED * mean:
                self.fed.note(
                    f"GAN {number} generates nearly the same image of a class again and again: look at its picture."
                )
        columns = ["", "clients", "classes", "distance of two images of a class", "of the class with the least"]
        self.fed.record("GANs", {"kind": "table", "columns": columns, "rows": rows})
        named = {f"GAN {number}": gan.clients for number, gan in enumerate(gans, 1)}
        self.fed.record("groups that train a GAN", {"kind": "groups", "groups": named})
