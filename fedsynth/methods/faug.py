"""FAug with federated distillation (Jeong et al. 2018), "FAug-FD" in PFL-GAN's table 1: one model per client.

FAug: every client sends a few of its real examples to the server, as seeds; the server trains a conditional GAN on all
seeds together and sends its generator back; every client tops up the classes it has few of. Federated distillation:
in every round clients send their mean scores for each class, and learn towards the mean of what the others sent.

Deviations. The paper has clients send seeds of the classes they lack most, and some of others to hide which; here a
client sends `seeds` of each class that it has, which says no more. The paper's server oversamples the seeds by a web
search: here augmented copies, at most two of each, take their place. A client tops up to its largest class.
The distillation term is the squared distance of softmaxed scores (the paper: a cross-entropy with the same minimum).
With weight 0 and no seeds it is `local`, bit-identical. Real images leave clients, unprotected.
"""

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedsynth.components.ablations import draw_real_samples
from fedsynth.components.additions import record_additions
from fedsynth.components.personal_training import LOCAL, train_further
from fedsynth.components.samples import Samples, as_bytes
from fedsynth.components.settings import MethodConfig
from fedsynth.components.synthetic_store import keep_samples, train_examples
from fedsynth.federation import Client, Done, Federation, Message, Outcome, Reply, State, leaves, method, task
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import PLAIN, CrossEntropy
from fedsynth.methods.pfl_gan.client_gans import ClientGan, GanConfig, GanRequest
from fedsynth.methods.pfl_gan.refining import refine_gan
from fedsynth.synthesis.class_balance import shortage_to_largest
from fedsynth.synthesis.gan import GanSpec, load_generator, make_images
from fedsynth.synthesis.static import Static, fill_classes


class FaugConfig(MethodConfig):
    """FAug's settings."""

    seeds: int = Field(5, ge=0, description="real examples of each class that a client sends to the server; 0: none")
    gan_steps: int = Field(1000, ge=0, description="generator steps of the server's GAN")
    gan_channels: int = Field(16, ge=1, description="channels of its finest layer")
    distillation: float = Field(0.1, ge=0, description="weight of the distillation term; 0: clients train apart")


class ClassScores(Message):
    """A client's mean scores of each class, and how many examples of it the client has."""

    scores: Tensor
    counts: Tensor


class FaugState(State):
    """What clients have sent of their scores."""

    scores: dict[str, ClassScores]


class Scores(Reply):
    """What a client's model says of its classes."""

    loss: float = leaves("mean training loss")
    scores: Tensor = leaves("the model's mean softmaxed scores over the training examples of each class")
    counts: Tensor = leaves("number of training examples of each class")


@task
def replenish(client: Client, gan: ClientGan, spec: GanSpec) -> Done:
    """Top up every class that the generator knows to the client's largest."""
    counts = client.class_counts()
    known = np.isin(np.arange(len(counts)), gan.classes)
    lacking = torch.from_numpy(np.where(known, shortage_to_largest(counts), 0))
    labels = torch.repeat_interleave(torch.arange(len(counts)), lacking)
    if len(labels):
        net = load_generator(spec, client.schema.shape, client.schema.classes, gan.generator)
        images = make_images(net, spec, labels, client.rng("replenish"))
        keep_samples(client, Samples(images=images, labels=labels))
    return client.release(Done())


@task
def train_distilled(
    client: Client, spec: ModelSpec, training: LocalTraining, weight: float, targets: Tensor, known: Tensor
) -> Scores:
    """Train the client's own model, towards the others' mean scores where they are known; then send its own."""
    x, y = train_examples(client, *client.data.train.tensors())
    objective = Distilled(weight, targets, known) if weight and bool(known.any()) else PLAIN
    loss = train_further(client, spec, training, x, y, objective)
    scores, counts = mean_scores(client, spec)
    return client.release(Scores(loss=loss, scores=scores, counts=counts))


class Distilled(CrossEntropy):
    """Cross-entropy + weight · ‖softmax(scores) − the others' mean scores of that class‖²."""

    def __init__(self, weight: float, targets: Tensor, known: Tensor) -> None:
        self.weight, self.targets, self.known = weight, targets, known.to(torch.float32)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scores = model(x)
        apart = (scores.softmax(1) - self.targets.to(scores)[y]).square().sum(1)
        return F.cross_entropy(scores, y) + self.weight * (apart * self.known.to(scores)[y]).mean()


def mean_scores(client: Client, spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """The mean softmaxed scores over the client's own examples of each class, and how many those are."""
    classes = client.schema.classes
    net = client.build(spec, client.state[LOCAL]).eval()
    x, y = client.data.train.tensors()
    with torch.inference_mode():
        each = torch.cat([net(batch).softmax(1) for batch in x.split(512)])
    counts = torch.bincount(y, minlength=classes)
    sums = torch.zeros((classes, classes)).index_add_(0, y, each)
    return sums / counts.clamp(min=1)[:, None], counts


@method("faug", config=FaugConfig, model="pfl_cnn", search={"distillation": (0.01, 1.0)})
def faug(fed: Federation, cfg: FaugConfig) -> Outcome:
    """A GAN of everybody's seed images tops up rare classes, and clients distil each other's mean scores."""
    if cfg.seeds:
        fed.schema.require_images()
        fed.once("augment", lambda: augment(fed, cfg))
    classes = fed.schema.classes
    state = FaugState(model=None, personal="alone", scores={})
    for index in fed.rounds("train", cfg.train.rounds, state):
        common = {"spec": cfg.model, "training": cfg.train.local(index), "weight": cfg.distillation}
        requests = {}
        for client in fed.clients:
            targets, known = others_mean(state.scores, client, classes)
            requests[client] = {**common, "targets": targets, "known": known}
        replies = fed.scatter(train_distilled, requests)
        state.scores = state.scores | {c: ClassScores(scores=r.scores, counts=r.counts) for c, r in replies.items()}
    return Outcome(None, personal="alone", no_global="every client has a model of its own")


def augment(fed: Federation, cfg: FaugConfig) -> int:
    """Gather seeds, train the GAN, have everybody top up; how many sent seeds."""
    fed.note("Real images left the clients as seeds of the server's GAN.")
    record_additions(fed, about="How many of which class, every client decides by itself.")
    replies = fed.broadcast(draw_real_samples, per_class=cfg.seeds, purpose="seeds")
    if not replies:
        fed.note("Nobody could be reached for seeds: no images were generated.")
        return 0
    images = torch.cat([reply.images for reply in replies.values()])
    labels = torch.cat([reply.labels for reply in replies.values()])
    twice = 2 * np.bincount(labels.numpy(), minlength=fed.schema.classes)
    copies, of = fill_classes(images, labels, twice, fed.rng("copies"), Static())
    images, labels = torch.cat([images, copies]), torch.cat([labels, of])
    gan = GanConfig(gan_channels=cfg.gan_channels)
    request = GanRequest(spec=gan.gan_spec(), training=gan.gan_training(), steps=cfg.gan_steps)
    job = {"samples": Samples(images=as_bytes(images.clamp(0, 1)), labels=labels), "request": request, "name": "seeds"}
    weights = fed.compute(refine_gan, {"seeds": job})["seeds"].weights
    found = ClientGan(generator=weights, classes=sorted(set(labels.tolist())))
    fed.broadcast(replenish, gan=found, spec=request.spec)
    return len(replies)


def others_mean(scores: dict[str, ClassScores], client: str, classes: int) -> tuple[Tensor, Tensor]:
    """The mean scores of each class over all other clients that have it, unweighted; and which classes they have."""
    others = [own for other, own in scores.items() if other != client]
    if not others:
        return torch.zeros((classes, classes)), torch.zeros(classes, dtype=torch.bool)
    has = torch.stack([own.counts > 0 for own in others]).to(torch.float32)
    each = torch.stack([own.scores for own in others])
    number = has.sum(0)
    return (each * has[:, :, None]).sum(0) / number.clamp(min=1)[:, None], number > 0
