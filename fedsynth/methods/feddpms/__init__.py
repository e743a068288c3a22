"""FedDPMS (algorithms 1 to 3): clients train a classifier with an auto-encoder, then matched clients help each other.

Preliminary rounds: every client trains classifier, encoder and decoder on ℓ1 + λ(ℓ2 + ℓ3). Secondary rounds: clients
share, once, something about the latents of their classes; who lacks a class decodes images of it and trains on |D_i|
examples drawn from its own and the synthetic ones. Only the classifier's loss counts there.

`form = "published"` is the paper's: all settings have the paper's values unless they are given. The other form works
better and has a guarantee:

* `mechanism = "calibrated"`: instead of filtered noisy means, each class's sum, number and second moment leave once,
  with noise calibrated to (ε, δ), encoded by the broadcast encoder. What is drawn from it and filtered at the receiver
  is post-processing. No class lists leave: the receiver knows what it lacks.
* `decoder = "conditional"`: the decoder is told the class and is averaged every round.
* `autoencoder = "beside"`: it reads the classifier's features without changing them.
* Every class is drawn from the pooled statistics of several senders, at their released spread, up to an even share of
  the receiver's data, and anew every round.

Deviations of the published form: the latent mean passes a sigmoid and is averaged itself, not a draw around it (a draw
is unbounded); all clients start from the same decoder; the search for recognised means is bounded and a shortage is a
note; ties in the matching fall by the seed; the latent heads, which nothing trains in secondary rounds, are not sent
again then. With λ = 0 and nothing synthetic it is FedAvg, bit-identical.
"""

from fedsynth.components.ablations import draw_from_all
from fedsynth.components.additions import INSTEAD, record_additions
from fedsynth.components.loop import Loop, LoopState
from fedsynth.components.samples import Samples
from fedsynth.components.slots import RoundInfo
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, method
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.weights import Weights
from fedsynth.methods.feddpms.clients import Order, Synthesis, train_augmented, train_vae
from fedsynth.methods.feddpms.settings import CONTROLS, FedDpmsConfig, FedVaeConfig
from fedsynth.methods.feddpms.sharing import Calibrated, DpmsState, Published, Sharing
from fedsynth.synthesis.vae_classifier import DECODER, VaeNet, VaeSpec, part, start_vae, with_prefix, without

DRAWN = "Of these and of its own examples a client trains on as many as it has itself, drawn anew every round."
PICTURED = 50  # examples of each class that a round shows; pictures have the first ten, `quality` evaluates all


@method("fedvae", config=FedVaeConfig, fedavg_when={"vae_weight": 0.0})
def fedvae(fed: Federation, cfg: FedVaeConfig) -> Outcome:
    """FedAvg of a classifier that is trained together with a variational auto-encoder."""
    run = FedVae(fed, cfg, conditional=False)
    run.preliminary(cfg.train.rounds)
    return run.loop.outcome()


@method(
    "feddpms",
    config=FedDpmsConfig,
    controls=CONTROLS,
    fedavg_when={"synthetic": "none"},
    search={"widening": (0.5, 3.0), "hardness": (0.1, 1.0)},
)
def feddpms(fed: Federation, cfg: FedDpmsConfig) -> Outcome:
    """Clients share protected latent statistics and decode what they lack."""
    run = FedDpms(fed, cfg)
    first = round(cfg.preliminary * cfg.train.rounds)
    run.preliminary(first, last_uploads_decoder=True)
    run.secondary(first)
    return run.loop.outcome()


class FedVae:
    """The preliminary rounds (algorithm 1, lines 2 to 6)."""

    def __init__(self, fed: Federation, cfg: FedVaeConfig, conditional: bool, lr: float | None = None) -> None:
        fed.schema.require_images()
        if cfg.local_data is not None:
            raise ConfigError("FedDPMS and FedVAE train on data of their own: remove method.local_data.")
        self.fed, self.loop = fed, Loop(fed, cfg)
        self.loop.refuse_local_statistics("FedDPMS and FedVAE share whole models")
        if self.loop.slots.post_aggregation.asks_clients:
            raise ConfigError(
                f'FedDPMS and FedVAE cannot be used with post_aggregation = "{self.loop.slots.post_aggregation.name}" '
                "where it asks the clients: set secure = false."
            )
        size = cfg.latent or (32 if fed.schema.shape[0] == 1 else 128)
        self.vae = VaeSpec(size, conditional, cfg.vae_weight, lr)
        # A, B, C and Z of the paper are empty. Server rules that answer to the objective concern the classifier, as the
        # objective does; the other parts are averaged.
        self.state = self.loop.state = DpmsState(**vars(self.loop.state), **DpmsState.START)
        parts = self.other_parts(self.state)
        self.state.parts = parts if conditional else without(parts, [DECODER])

    def net(self, weights: Weights) -> VaeNet:
        """The classifier with these weights, latent heads and decoder."""
        return start_vae(self.fed.seed, self.loop.cfg.model, self.vae, self.fed.schema, weights)

    def other_parts(self, state: LoopState) -> Weights:
        """Latent heads and decoder as everybody starts with them."""
        return {name: entry for name, entry in self.net(state.model).entries().items() if name not in state.model}

    def preliminary(self, rounds: int, last_uploads_decoder: bool = False) -> None:
        """Train all three parts; a plain decoder stays private until the last of these rounds."""
        for round in self.loop.rounds("preliminary", rounds):
            replies = self.fed.broadcast(
                train_vae,
                to=self.fed.sample(self.loop.cfg.train.fraction),
                model=self.state.model | self.state.parts,
                request=self.loop.request(round, self.state.model, self.state.memory),
                vae=self.vae,
                upload_decoder=self.vae.conditional or (last_uploads_decoder and round.index == rounds),
            )
            self.loop.advance(round, replies)


class FedDpms(FedVae):
    """The secondary rounds (algorithm 2)."""

    def __init__(self, fed: Federation, cfg: FedDpmsConfig) -> None:
        super().__init__(fed, cfg, cfg.decoder == "conditional", cfg.vae_lr if cfg.autoencoder == "beside" else None)
        self.cfg = cfg

    def secondary(self, first: int) -> None:
        """Match, synthesise, train, share."""
        state = self.state
        if not part(state.parts, DECODER):  # no preliminary round: the decoder that everybody starts with
            state.parts = self.other_parts(state)
        state.frozen = state.model | without(state.parts, [DECODER])
        sharing, synthesis = self.sharing(), self.synthesis()
        for round in self.loop.rounds("secondary", self.cfg.train.rounds - first, first):
            self.exchange(round, sharing, synthesis)
            if state.shared and state.benefited and (round.index == self.cfg.train.rounds or not state.pictured):
                net = self.net(state.frozen | state.parts | state.model)
                self.fed.show("synthetic", *sharing.samples(state, net, PICTURED))
                state.pictured = True

    def exchange(self, round: RoundInfo, sharing: Sharing, synthesis: Synthesis) -> None:
        """One round: who has something to synthesise from gets it, who has not shared yet is asked to."""
        state, chosen = self.state, self.fed.sample(self.cfg.train.fraction)
        orders = sharing.orders(state, chosen)
        shares = {client: sharing.request(state, client) for client in chosen}
        # The decoder goes to a client once (eq. 7 to 9), with the first order or request to share.
        fresh = [c for c in chosen if c not in state.supplied and (c in orders or shares[c] is not None)]
        decoder = with_prefix(state.parts, DECODER)
        request = self.loop.request(round, state.model, state.memory)
        common = {"model": state.model, "request": request, "vae": self.vae, "synthesis": synthesis}
        own = {
            c: {"order": orders.get(c), "share": shares[c], "decoder": decoder if c in fresh else {}} for c in chosen
        }
        replies = self.fed.scatter(train_augmented, {client: common | own[client] for client in chosen})
        state.supplied = [*state.supplied, *(client for client in fresh if client in replies)]
        sharing.collect(state, replies)
        state.benefited = [*state.benefited, *(client for client in orders if client in replies)]
        self.record(sharing, {client: order for client, order in orders.items() if client in replies})
        if replies:
            state.model = self.loop.combine(round, state.model, replies, state.memory)

    def record(self, sharing: Sharing, orders: dict[str, Order]) -> None:
        """What the receivers make of their orders, before the filter."""
        if self.cfg.synthetic == "none":
            return
        state = self.state
        state.planned = state.planned | {c: sharing.planned(state, c, order) for c, order in orders.items()}
        held, noise = sharing.held(state)
        what = INSTEAD.get(self.cfg.synthetic, SYNTHETIC)
        record_additions(self.fed, what, planned=state.planned, held=held, noise=noise, about=DRAWN)

    def sharing(self) -> Sharing:
        """How latents get from one client to another."""
        if self.cfg.synthetic == "none":
            return Sharing()
        size = self.net(self.state.model).latent_size
        if self.cfg.mechanism == "paper":
            return Published(self.fed, self.cfg, size)
        return Calibrated(self.fed, self.cfg, size, self.vae)

    def synthesis(self) -> Synthesis:
        """What a receiver needs to know of the settings; real images for the control that shows the upper bound."""
        real = None
        if self.cfg.synthetic == "real":
            real = self.fed.once("real samples", lambda: draw_from_all(self.fed), Samples)
        return Synthesis(
            synthetic=self.cfg.synthetic,
            certainty=self.cfg.least_certainty(),
            tries=self.cfg.tries,
            quota=self.cfg.quota,
            classes=self.cfg.classes,
            hardness=self.cfg.hardness,
            redraw=self.cfg.redraw and self.cfg.mechanism == "calibrated",
            real=real,
        )
