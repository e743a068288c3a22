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
again then. With λ = 0 and nothing synthetic it is FedAvg to the last bit.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedsynth.components.ablations import real_images
from fedsynth.components.loop import LoopConfig, checked_slots, start_weights
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import Setting
from fedsynth.errors import ConfigError
from fedsynth.federation import Federation, Outcome, State, method
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.methods.feddpms.augmenting import train_augmented
from fedsynth.methods.feddpms.autoencoding import (
    DECODER,
    VaeSpec,
    part,
    require_images,
    start_vae,
    train_vae,
    with_prefix,
    without,
)
from fedsynth.methods.feddpms.sharing import Calibrated, Published, Sharing

PICTURED = 50  # examples of each class that a round shows; pictures have the first ten, `quality` judges all


class FedVaeConfig(LoopConfig):
    """Settings of the auto-encoder."""

    protects: ClassVar[bool] = False  # trains in a task of its own
    needs_single: ClassVar[str] = "it trains in a task of its own, outside of the shared loop, and sends models openly"

    latent: int | None = Field(None, ge=1, description="latent dimensions (32 for one channel, 128 for colour)")
    vae_weight: float = Field(0.05, ge=0, description="λ: weight of the auto-encoder's loss")


class FedDpmsConfig(PublishedForm, FedVaeConfig):
    """FedDPMS's settings."""

    search: ClassVar[dict[str, tuple[float, float]]] = {"widening": (0.5, 3.0), "hardness": (0.1, 1.0)}

    published: ClassVar[dict[str, Any]] = {
        "autoencoder": "joint",
        "decoder": "plain",
        "mechanism": "paper",
        "quota": 50,
        "classes": 3,
        "senders": 1,
        "redraw": False,
        "hardness": 1.0,
    }

    autoencoder: Literal["beside", "joint"] = Field(
        "beside", description="beside: reads the classifier's features; joint: one loss for both, as published"
    )
    vae_lr: float = Field(0.001, gt=0, description="learning rate of an auto-encoder that stands beside")
    preliminary: float = Field(0.4, ge=0, le=1, description="share of the rounds that also train the auto-encoder")
    decoder: Literal["conditional", "plain"] = Field(
        "conditional",
        description="conditional: told the class, averaged every round; plain: uploaded once, as published",
    )
    mechanism: Literal["calibrated", "paper"] = Field(
        "calibrated", description="calibrated: class statistics with (ε, δ); paper: filtered noisy means, as published"
    )
    epsilon: float = Field(
        8.0, gt=0, description="ε of the calibrated release, per record, add or remove one, at privacy.delta"
    )
    clip: float = Field(1.0, gt=0, le=1, description="latents are clipped to this share of the longest possible")
    spread: float | None = Field(
        None, gt=0, description="spread of drawn latents; none given: from the released second moment"
    )
    widening: float = Field(
        1.5, gt=0, description="latents are drawn so many times as widely as the released second moment says"
    )
    sigma: float = Field(3.0, gt=0, description="σ of the paper's noise (3 for Fashion-MNIST, 4 for CIFAR10)")
    quota: int | Literal["even"] = Field(
        "even", description="α: synthetic examples of a scarce class, or even: up to an even share of the client's data"
    )
    classes: int | Literal["auto"] = Field(
        "auto", description="n: scarce (and abundant) classes of a client, or auto: those below half of an even share"
    )
    senders: int = Field(3, ge=1, description="clients that may serve a receiver; calibrated: for each class")
    filter: float | Literal["recognised", "none"] = Field(
        "recognised",
        description="use only synthetic examples that the classifier recognises; a number: at least so certainly",
    )
    hardness: float = Field(
        0.5, ge=0, le=1, description="share of the wanted class in a synthetic label; the rest is the model's opinion"
    )
    tries: int = Field(20, ge=1, description="draws for each wanted example, at most")
    redraw: bool = Field(True, description="calibrated: draw new synthetic examples every round")
    synthetic: Literal["decoded", "noise", "real", "none"] = Field(
        "decoded", description="controls: noise or real images with the same labels, or nothing, in their place"
    )

    @field_validator("filter")
    @classmethod
    def _a_probability(cls, value: float | str) -> float | str:
        if isinstance(value, float) and not 0 <= value < 1:
            raise ValueError(f"filter = {value:g} must be a probability: 0 or more and less than 1")
        return value

    @model_validator(mode="after")
    def _numbers_where_the_paper_has_them(self) -> FedDpmsConfig:
        for name in ("quota", "classes"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f'{name} = {value} must be 1 or more (synthetic = "none" turns synthesis off)')
        if self.mechanism == "paper" and self.quota == "even":
            raise ValueError('quota = "even" belongs to mechanism = "calibrated"; give a number')
        releases = self.mechanism == "calibrated" and self.synthetic != "none"
        if releases and self.privacy.budget is not None and self.epsilon > self.privacy.budget:
            raise ValueError(f"epsilon = {self.epsilon:g} is more than privacy.budget = {self.privacy.budget:g} allows")
        return self

    def least_certainty(self) -> float | None:
        """How certain the filter must be; None without a filter."""
        return {"recognised": 0.0, "none": None}[self.filter] if isinstance(self.filter, str) else self.filter


CONTROLS: dict[str, dict[str, Any]] = {
    "without synthesis": {"synthetic": "none"},
    "noise": {"synthetic": "noise"},
    "no filter": {"filter": "none"},
    "real samples": {"synthetic": "real"},
}


@method("fedvae", config=FedVaeConfig, fedavg_when={"vae_weight": 0.0})
def fedvae(fed: Federation, cfg: FedVaeConfig) -> Outcome:
    """FedAvg of a classifier that is trained together with a variational auto-encoder."""
    run = FedVae(fed, cfg, conditional=False)
    state = run.start()
    run.preliminary(state, cfg.train.rounds)
    return Outcome(state.model)


@method("feddpms", config=FedDpmsConfig, controls=CONTROLS, fedavg_when={"synthetic": "none"})
def feddpms(fed: Federation, cfg: FedDpmsConfig) -> Outcome:
    """Clients share protected latent statistics and decode what they lack."""
    own_rate = cfg.vae_lr if cfg.autoencoder == "beside" else None
    run = FedDpms(fed, cfg, cfg.decoder == "conditional", own_rate)
    state = run.start()
    first = round(cfg.preliminary * cfg.train.rounds)
    run.preliminary(state, first)
    run.secondary(state, first)
    return Outcome(state.model)


class FedVae:
    """The preliminary rounds (algorithm 1, lines 2 to 6)."""

    gives_decoder = False  # nobody needs it where no second phase follows

    def __init__(self, fed: Federation, cfg: FedVaeConfig, conditional: bool, lr: float | None = None) -> None:
        require_images(fed.schema)
        self.fed, self.cfg, self.slots = fed, cfg, checked_slots(fed, cfg)
        if cfg.local_data is not None:
            raise ConfigError("FedDPMS and FedVAE train on data of their own: remove method.local_data.")
        if self.slots.after.asks_clients:
            raise ConfigError(
                f'FedDPMS and FedVAE cannot be used with after = "{self.slots.after.name}" where it asks the clients: '
                "set secure = false."
            )
        size = cfg.latent or (32 if fed.schema.shape[0] == 1 else 128)
        self.vae = VaeSpec(size, conditional, cfg.vae_weight, lr)
        self.trained: set[str] = set()

    def start(self) -> State:
        """The model everybody starts from; A, B, C and Z of the paper are empty."""
        model = start_weights(self.fed.seed, self.cfg.model, self.fed.schema)
        net = start_vae(self.fed.seed, self.cfg.model, self.vae, self.fed.schema, model)
        self.latent = net.latent_size
        parts = {name: entry for name, entry in net.entries().items() if name not in model}
        if not self.vae.conditional:
            parts = without(parts, [DECODER])
        # The objective is the classifier's, so server rules that answer to it are too; the other parts are averaged.
        self.trained = {name for name, _ in net.classifier.named_parameters()}
        return State(model=model, parts=parts, memory={}, shared={}, benefited=[], supplied=[], pictured=False)

    def preliminary(self, state: State, rounds: int) -> None:
        """Train all three parts; a plain decoder stays private until the last of these rounds."""
        for index in self.fed.rounds("preliminary", rounds, state):
            training = self.cfg.train.local(index)
            setting = self.setting(training)
            replies = self.fed.broadcast(
                train_vae,
                to=self.fed.sample(self.cfg.train.fraction),
                model=state.model | state.parts,
                spec=self.cfg.model,
                vae=vars(self.vae),
                training=training,
                rule=self.slots.objective.as_dict(),
                sent=self.slots.aggregator.sent(state.memory, state.model, setting),
                upload_decoder=self.vae.conditional or (self.gives_decoder and index == rounds),
            )
            if replies:
                entries = self.slots.next_model(state.model | state.parts, replies, state.memory, setting)
                state.model = part(entries, "")
                state.parts = {name: entry for name, entry in entries.items() if name not in state.model}
                state.model = self.slots.tuned(self.fed, self.cfg, state, replies, training, index)

    def setting(self, training: LocalTraining) -> Setting:
        """What the server's rules may know."""
        return Setting(self.trained, len(self.fed.clients), training.lr, training.momentum)


class FedDpms(FedVae):
    """The secondary rounds (algorithm 2)."""

    gives_decoder = True
    cfg: FedDpmsConfig

    def secondary(self, state: State, first: int) -> None:
        """Match, synthesise, train, share."""
        if not part(state.parts, DECODER):  # no preliminary round: the decoder that everybody starts with
            net = start_vae(self.fed.seed, self.cfg.model, self.vae, self.fed.schema, state.model)
            state.parts = {name: entry for name, entry in net.entries().items() if name not in state.model}
        state.frozen = state.model | without(state.parts, [DECODER])
        sharing = self.sharing()
        real = self.real_samples()
        for index in self.fed.rounds("secondary", self.cfg.train.rounds - first, state):
            training = self.cfg.train.local(first + index)
            setting = self.setting(training)
            chosen = self.fed.sample(self.cfg.train.fraction)
            orders = {c: order | {"real": real} for c, order in sharing.orders(state, chosen).items()}
            common = {
                "model": state.model,
                "spec": self.cfg.model,
                "vae": vars(self.vae),
                "training": training,
                "rule": self.slots.objective.as_dict(),
                "sent": self.slots.aggregator.sent(state.memory, state.model, setting),
                "making": self.making(),
            }
            own = {c: {"order": orders.get(c), "share": sharing.request(state, c)} for c in chosen}
            # The decoder goes to a client once (eq. 7 to 9), with the first order or request to share.
            fresh = [c for c in chosen if c not in state.supplied and any(own[c].values())]
            decoder = with_prefix(state.parts, DECODER)
            replies = self.fed.scatter(
                train_augmented,
                {c: common | own[c] | {"decoder": decoder if c in fresh else {}} for c in chosen},
            )
            state.supplied = [*state.supplied, *(c for c in fresh if c in replies)]
            sharing.collect(state, replies)
            state.benefited = [*state.benefited, *(client for client in orders if client in replies)]
            if replies:
                state.model = self.slots.next_model(state.model, replies, state.memory, setting)
                state.model = self.slots.tuned(self.fed, self.cfg, state, replies, training, first + index)
            self.picture(sharing, state, last=first + index == self.cfg.train.rounds)

    def sharing(self) -> Sharing:
        """How latents get from one client to another."""
        if self.cfg.synthetic == "none":
            return Sharing()
        if self.cfg.mechanism == "paper":
            return Published(self.fed, self.cfg, self.latent)
        return Calibrated(self.fed, self.cfg, self.latent, self.vae)

    def making(self) -> dict[str, Any]:
        """What a receiver needs to know of the settings."""
        return {
            "synthetic": self.cfg.synthetic,
            "certainty": self.cfg.least_certainty(),
            "tries": self.cfg.tries,
            "quota": self.cfg.quota,
            "classes": self.cfg.classes,
            "hardness": self.cfg.hardness,
            "redraw": self.cfg.redraw and self.cfg.mechanism == "calibrated",
        }

    def real_samples(self) -> dict[str, Any]:
        """Real images of every class, for the control that shows what perfect synthesis would give."""
        if self.cfg.synthetic != "real":
            return {}
        return dict(self.fed.once("real samples", lambda: real_images(self.fed)))

    def picture(self, sharing: Sharing, state: State, last: bool) -> None:
        """Show what receivers draw: when the first of them does, and in the last round."""
        if state.shared and state.benefited and (last or not state.pictured):
            net = start_vae(
                self.fed.seed, self.cfg.model, self.vae, self.fed.schema, state.frozen | state.parts | state.model
            )
            self.fed.show("synthetic", *sharing.samples(state, net, PICTURED))
            state.pictured = True
