"""The trials of what tasks claim about training: at which records each can least hide what it must hide.

Each runs the task's own code. Where what is released is computed from something else that is protected (a generator,
from its critic; a masked number, from the number), the trial looks at that: an attacker who sees more.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedsynth.components.class_counts import RELEASED
from fedsynth.components.local_training import TrainRequest, train
from fedsynth.components.loop import update_privacy
from fedsynth.components.private_gan import fit_gan_privately
from fedsynth.components.protected_updates import NOISE, ClippedUpdates, DpSgdUpdates, ProtectedUpdates
from fedsynth.components.secure_updates import SecureSum, train_masked
from fedsynth.components.settings import MethodConfig
from fedsynth.data.dataset import Dataset, Schema
from fedsynth.federation import Client
from fedsynth.federation.trials import FAR, Trial, flat_numbers
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import Weights
from fedsynth.methods.gandalf.clients import GanVisit, train_gan_visit
from fedsynth.methods.pfl_gan.client_gans import train_own_gan
from fedsynth.privacy import Event, Guarantee, SampledGaussianEvent
from fedsynth.privacy.config import SMALLEST
from fedsynth.synthesis.gan import GENERATOR, GanSpec, build_gan, load_gan
from fedsynth.synthesis.gan_networks import Critic
from fedsynth.synthesis.gan_training import GanTraining

OTHERS = 3  # records that are the same in both data sets
SURE_OF = 10.0  # a score so far above the others that a network is certain


def labelled(x: np.ndarray, labels: Sequence[int]) -> Dataset:
    """Examples as a client holds them."""
    return Dataset(x.astype(np.float32), np.array(labels, dtype=np.int64))


# -- protected updates ----------------------------------------------------------------------------------------------


@train.trial
def update_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """Of DP-SGD, and of clipped updates."""
    updates = update_privacy(cfg)
    updates = updates.inner if isinstance(updates, SecureSum) else updates
    first = guarantee.events[0]
    if isinstance(updates, DpSgdUpdates) and isinstance(first, SampledGaussianEvent):
        fixed = updates.model_copy(update={"noise": first.noise, "target": None})
        return [dpsgd_trial(fixed, first.noise, schema.classes, sampled=first.rate < 1)]
    return [clipped_trial(updates, schema.classes, guarantee.events)] if isinstance(updates, ClippedUpdates) else []


train_masked.trial(update_trials)


def linear(classes: int, round_: int) -> dict[str, Tensor]:
    """A linear network with as many inputs as classes: first it knows nothing, then it takes each class for the next.

    So a record of class k that has input k alone moves it by as much both times, and into another direction. Of two
    classes there is one direction only: then the second network is right, and the record adds nothing.
    """
    weight = torch.zeros((classes, classes))
    if round_ % 2 == 0:
        weight = SURE_OF * torch.eye(classes).roll(1 if classes > 2 else 0, dims=0)
    return {"head.weight": weight, "head.bias": torch.zeros(classes)}


def trained_update(client: Client, updates: ProtectedUpdates, training: LocalTraining) -> np.ndarray:
    """One request to train."""
    model = linear(client.schema.classes, client.round)
    spec = ModelSpec(name="mlp", hidden=())
    reply = train(client, model, TrainRequest(spec=spec, training=training, updates=updates))
    return flat_numbers(reply.fields()["model"], model) / training.lr


def towards_class(label: int, round_: int, classes: int) -> np.ndarray:
    """Where a record of this class, at its own input alone, moves the linear network of a round."""
    scores = linear(classes, round_)["head.weight"][:, label]
    moved = torch.zeros((classes, classes))
    moved[:, label] = -(FAR * scores).softmax(0)
    moved[label, label] += 1
    direction = torch.cat([torch.zeros(classes), moved.flatten()])  # bias, weight: in the order of their names
    return (direction / direction.norm().clamp_min(1e-9)).numpy()


def far_record(label: int, classes: int, sign: float = 1.0) -> np.ndarray:
    """A record whose gradient is far longer than any clip."""
    x = np.zeros((1, classes))
    x[0, label] = sign * FAR
    return x


def dpsgd_trial(updates: DpSgdUpdates, noise: float, classes: int, sampled: bool) -> Trial:
    """A record with a gradient as long as allowed comes to records with none but for the bias."""
    size = 2 if sampled else 1
    # The rate is so small that the network stays what it was: every step adds the same.
    training = LocalTraining(epochs=1, batch_size=1, lr=1e-9 / (FAR * max(1.0, updates.clip * noise * updates.clip)))

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        rest, of = np.zeros((OTHERS, classes)), [0] * OTHERS
        record = far_record(label, classes) * max(1.0, updates.clip)
        return labelled(rest, of), labelled(np.concatenate([record, rest]), [label, *of])

    rate = "half of the batches" if sampled else "every batch"
    return Trial(
        how=f"DP-SGD without and with a record at the clip, in {rate}",
        schema=Schema((classes,), classes),
        neighbours=neighbours,
        release=lambda client, label: trained_update(client, updates, training),
        declared=size,
        towards=lambda label, round_: towards_class(label, round_, classes),
        events=(SampledGaussianEvent(rate=1 / size, noise=noise, steps=size),),
    )


def clipped_trial(updates: ClippedUpdates, classes: int, events: tuple[Event, ...]) -> Trial:
    """Two opposite updates; with noise at the server, a client that is there or is not."""
    training = LocalTraining(epochs=1, batch_size=1, lr=max(1.0, updates.clip))
    at_server = updates.noise_at == "server"

    def neighbours(label: int) -> tuple[Dataset, Dataset]:
        there = labelled(far_record(label, classes), [label])
        return (there.subset(np.zeros(0, np.int64)) if at_server else labelled(-there.x, [label])), there

    def release(client: Client, label: int) -> np.ndarray:
        moved = trained_update(client, updates, training)
        if not at_server:
            return moved
        total = {"all": torch.from_numpy(moved * training.lr)}
        noise = client.noise_rng(f"{NOISE} of the server")
        return updates.with_server_noise(total, ["all"], 1, noise)["all"].numpy()

    pair = "the sum without and with a client" if at_server else "an update against the opposite one"
    return Trial(
        how=f"{pair}, longer than the clip",
        schema=Schema((classes,), classes),
        neighbours=neighbours,
        release=release,
        towards=lambda label, round_: towards_class(label, round_, classes),
        events=events,
    )


# -- private GANs ---------------------------------------------------------------------------------------------------

SHAPE = (1, 4, 4)
SPEC = GanSpec(channels=2, latent=8)
MANY = 99  # records that stand behind the one in question


def gan_records(label: int, classes: int, others: int) -> tuple[Dataset, Dataset]:
    """Without and with a record, which stands first: whatever is dealt by position moves on by one.

    The others alternate, dark and bright: beside a dark one the generated image shows, beside a bright one it does not.
    """
    rest = np.zeros((others, *SHAPE))
    rest[1::2] = FAR
    of = [(label + 1) % classes] * len(rest)
    return labelled(rest, of), labelled(np.concatenate([np.full((1, *SHAPE), FAR), rest]), [label, *of])


@functools.lru_cache(maxsize=8)
def strong_gan(classes: int, seed: int) -> Weights:
    """Weights of a GAN whose images differ strongly with the latent they are generated from. Change none in place."""
    weights = build_gan(SPEC, SHAPE, classes, seed).weights()
    return {name: 5.0 * entry if name.startswith(GENERATOR) else entry for name, entry in weights.items()}


def critic_of(weights: Weights) -> Weights:
    """The critic's part."""
    return {name: weight for name, weight in weights.items() if name.startswith("critic.")}


def gan_trials(
    guarantee: Guarantee, schema: Schema, visit: Callable[[Client, int, DpSgdUpdates], np.ndarray]
) -> list[Trial]:
    """A step of the private critic, on a record alone (which shows it best) and before others (which it may move).

    With a tiny clip Adam hands on what it gets, and does not even its size out.
    """
    if not isinstance(guarantee.events[0], SampledGaussianEvent):
        return []
    noise = guarantee.events[0].noise
    updates = DpSgdUpdates(clip=SMALLEST, noise=noise, target=None, delta=0.5, trainings=1)

    def towards(label: int, round_: int) -> np.ndarray:
        """The real image alone: it is so bright that nothing else counts."""
        critic = load_gan(SPEC, SHAPE, schema.classes, strong_gan(schema.classes, round_)).critic
        assert isinstance(critic, Critic)
        critic(torch.full((1, *SHAPE), FAR), torch.tensor([label])).sum().backward()
        parts = {name: p.grad for name, p in critic.named_parameters() if p.grad is not None}
        flat = torch.cat([parts[name].flatten().double() for name in sorted(parts)])
        return (flat / flat.norm()).numpy()

    def trial(others: int, where: str) -> Trial:
        return Trial(
            how=f"a step of the private critic without and with a record {where}",
            schema=Schema(SHAPE, schema.classes),
            neighbours=lambda label: gan_records(label, schema.classes, others),
            release=lambda client, label: visit(client, label, updates),
            declared=MANY,
            towards=towards,
            events=(SampledGaussianEvent(rate=1.0, noise=noise, steps=1),),
        )

    return [trial(0, "that is alone"), trial(MANY, "that others stand behind")]


def gan_steps(private: int) -> GanTraining:
    """So few and such steps that what is released is one noisy sum."""
    return GanTraining(batch_size=private, critic_steps=1, critic_lr=1.0, penalty=0.0)


@train_gan_visit.trial
def visit_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """Visits with a GAN that is another one every time."""

    def visit(client: Client, label: int, updates: DpSgdUpdates) -> np.ndarray:
        start = strong_gan(schema.classes, client.round)
        client.state.keep_public(RELEASED, np.full(schema.classes, 1000, np.int64))
        how = GanVisit(spec=SPEC, training=gan_steps(MANY), steps=1, keep_moments=False, sigma=1.0, updates=updates)
        reply = train_gan_visit(client, start, {}, how)
        return flat_numbers(reply.fields()["gan"], critic_of(start))

    return gan_trials(guarantee, schema, visit)


@train_own_gan.trial
def own_gan_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """The critic, which stays at the client: the generator that is released learns from it."""

    def visit(client: Client, label: int, updates: DpSgdUpdates) -> np.ndarray:
        start = strong_gan(schema.classes, client.round)
        gan = load_gan(SPEC, SHAPE, schema.classes, start)
        known = torch.ones(schema.classes, dtype=torch.bool)
        fit_gan_privately(client, gan, known, gan_steps(MANY), 1, updates)
        return flat_numbers(gan.weights(), critic_of(start))

    return gan_trials(guarantee, schema, visit)
