"""AggEnhance (Ou et al. 2022): the server tunes the aggregate on class interior points of the received models.

Algorithm 2: for every class and every received model an input is optimised (eq. 11), from the middle between the
class's last kept point and uniform noise. Each candidate is scored by the summed probability of its class over the
models that predict it; the best of each class joins a queue of bounded length, and the aggregate is tuned on the queue.
It stands on any method of the shared loop by one setting: `post_aggregation = "interior_points"`.

`form = "published"`: SGD at rate 0.1 without limits, tuning at the local rate. Ours: Adam with pixels kept in range, a
fifth of the local rate. Deviations: the paper's set grows without bound and it does not say how long it is; the first
points start from noise alone.

`secure = true` is the paper's variant for secure aggregation: clients make candidates from their own models and score
everybody's, so the server needs no single model. With `privacy.secure_aggregation` updates and scores are then seen as
sums only. The candidates themselves leave the clients as they are.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.ablations import Controls
from fedsynth.components.additions import INSTEAD, count_labels, record_at_server
from fedsynth.components.local_training import TRAINED
from fedsynth.components.schedule import NEVER, Scheduled
from fedsynth.components.secure_aggregation import SecureRound, masked, secure_mean, secured
from fedsynth.components.server_work import TuningSettings, classify_images, invert_model, tune_at_server
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import AggregationContext, PostAggregation
from fedsynth.federation import Client, Reply, leaves, method, task
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights
from fedsynth.synthesis.inversion import Inversion, choose_by_consensus, consensus, invert

NOTHING_MORE = (
    "Interior points are post-processing of the shared weights: they add no leak beyond them and remove none."
)
SINGLE_MODELS = (
    "Clients sent points that they made from their own models, and probabilities for everybody's: releases beside the "
    "updates, which secure aggregation does not cover."
)
SINGLE_POINTS = (
    "Clients sent points that they made from their own models: a release beside the updates, which secure aggregation "
    "does not cover."
)
PICTURED = 10  # rounds, before the points are shown


class InteriorSettings(PublishedForm, TuningSettings):
    """How points are synthesised and used."""

    published: ClassVar[dict[str, Any]] = {"image_optimizer": "sgd", "clamp": False, "tune_rate": 1.0}

    steps: int = Field(100, ge=0, description="optimisation steps for a point")
    image_lr: float = Field(0.1, gt=0, description="learning rate for the points")
    image_optimizer: Literal["adam", "sgd"] = Field("adam", description="optimiser of the points")
    clamp: bool = Field(True, description="keep pixels between 0 and 1")
    choice: Literal["consensus", "random"] = Field(
        "consensus", description="which model's point is kept for a class (random is for comparison)"
    )
    queue: int = Field(20, ge=1, description="points kept of each class: those of so many rounds")
    tune_epochs: int = Field(10, ge=0, description="epochs of the server on the kept points")
    tune_rate: float = Field(0.2, gt=0, description="learning rate of the server, as a share of the clients'")
    secure: bool = Field(False, description="clients make and score the candidates: the server needs no single model")
    points: Literal["synthetic", "noise"] = Field(
        "synthetic", description="control: noise with the same labels in their place"
    )

    def inversion(self) -> Inversion:
        """The settings as the inversion wants them."""
        low, high = (0.0, 1.0) if self.clamp else (None, None)
        return Inversion(steps=self.steps, lr=self.image_lr, optimizer=self.image_optimizer, low=low, high=high)


CONTROLS: Controls = {
    "without synthesis": {"start_round": NEVER},
    "noise": {"points": "noise"},
    "no filter": {"choice": "random"},
}


@method(
    "agg_enhance", model="agg_cnn", controls=CONTROLS, fedavg_when={"tune_epochs": 0}, search={"tune_rate": (0.02, 1.0)}
)
class InteriorPoints(InteriorSettings, Scheduled, PostAggregation, name="interior_points"):
    """The server tunes the aggregate on class interior points of the received models."""

    @property
    def asks_clients(self) -> bool:
        return self.secure

    def tune(self, context: AggregationContext) -> Weights:
        if self.tune_epochs == 0:
            return context.model
        fed, classes = context.fed, context.fed.schema.classes
        kept = context.memory.get("points")
        start = torch.from_numpy(fed.rng("interior points").random((classes, *fed.schema.shape))).float()
        if kept is not None:
            start = (kept[-classes:] + start) / 2  # algorithm 2, lines 1 to 4
        points = start if self.points == "noise" else self.best_points(context, start)
        if points is None:  # nobody could be reached
            return context.model
        kept = points if kept is None else torch.cat([kept, points])[-self.queue * classes :]
        context.memory["points"] = kept
        labels = torch.arange(classes).repeat(len(kept) // classes)
        record_at_server(fed, INSTEAD.get(self.points, SYNTHETIC), count_labels(labels, classes))
        if len(labels) >= min(self.queue, PICTURED) * classes and not context.memory.get("pictured"):
            fed.show("interior-points", kept, labels)
            context.memory["pictured"] = True
        training = self.tuning(context.training)
        return tune_at_server(fed, context.model, context.spec, kept, labels, training)

    def best_points(self, context: AggregationContext, start: Tensor) -> Tensor | None:
        """Algorithm 2, lines 5 to 21: a candidate of every model for every class, and the best for each class."""
        fed, labels = context.fed, torch.arange(len(start))
        found = self.candidates_of_clients(context, start) if self.secure else self.candidates(context, start)
        if not found:
            return None
        candidates = torch.stack(list(found.values()))
        if self.choice == "random":
            scores = torch.from_numpy(fed.rng("random choice").random(candidates.shape[0] * candidates.shape[1]))
        else:
            scored = self.scores(context, list(found), candidates.flatten(0, 1), labels.repeat(len(found)))
            if scored is None:
                return None
            scores = scored
        return choose_by_consensus(candidates, scores)

    def scores(self, context: AggregationContext, clients: list[str], images: Tensor, labels: Tensor) -> Tensor | None:
        """Every candidate's summed probability of its class, over the models that predict it."""
        if context.secure:
            fields = {"spec": context.spec, "images": images, "labels": labels}
            mean = secure_mean(context.fed, score_masked, clients, context.secure, fields, equal=True)
            return None if mean is None else torch.from_numpy(mean.values)  # of as many as in the sum: the same order
        found = (self.probabilities_of_clients if self.secure else self.probabilities)(context, clients, images)
        return consensus(torch.stack(found), labels) if found else None

    def candidates(self, context: AggregationContext, start: Tensor) -> dict[str, Tensor]:
        """Points of each received model, made at the server."""
        context.fed.note(NOTHING_MORE)
        common = {
            "spec": context.spec,
            "start": start,
            "labels": torch.arange(len(start)),
            "inversion": self.inversion(),
        }
        done = context.fed.compute(invert_model, {c: {"model": w, **common} for c, w in context.received.items()})
        return {client: reply.images for client, reply in done.items()}

    def probabilities(self, context: AggregationContext, clients: list[str], images: Tensor) -> list[Tensor]:
        """What each received model says of all candidates."""
        jobs = {c: {"model": context.received[c], "spec": context.spec, "images": images} for c in clients}
        done = context.fed.compute(classify_images, jobs)
        return [done[client].probabilities for client in clients]

    def candidates_of_clients(self, context: AggregationContext, start: Tensor) -> dict[str, Tensor]:
        """Points that clients make from the models they have just trained."""
        context.fed.note(SINGLE_POINTS if context.secure else SINGLE_MODELS)
        asked: dict[str, Any] = {"spec": context.spec, "start": start, "inversion": self.inversion()}
        replies = context.fed.broadcast(make_candidates, to=list(context.received), **asked)
        return {client: reply.points for client, reply in replies.items()}

    def probabilities_of_clients(self, context: AggregationContext, clients: list[str], images: Tensor) -> list[Tensor]:
        """What clients' models say of all candidates."""
        replies = context.fed.broadcast(score_candidates, to=clients, spec=context.spec, images=images)
        return [reply.probabilities for reply in replies.values()]


class Candidates(Reply):
    """Candidates for interior points."""

    points: Tensor = leaves("an input for each class, made from the client's own model")


class Scores(Reply):
    """What a client's own model says of everybody's candidates."""

    probabilities: Tensor = leaves("its own model's probabilities for everybody's candidates")


@task
def make_candidates(client: Client, spec: ModelSpec, start: Tensor, inversion: Inversion) -> Candidates:
    """A point for every class from the model that this client has just trained."""
    net = client.build(spec, client.state[TRAINED])
    return client.release(Candidates(points=invert(net, start, torch.arange(len(start)), inversion)))


@task
def score_candidates(client: Client, spec: ModelSpec, images: Tensor) -> Scores:
    """The probabilities that this client's model gives."""
    net = client.build(spec, client.state[TRAINED]).eval()
    with torch.no_grad():
        return client.release(Scores(probabilities=net(images).softmax(1)))


class MaskedScores(Reply):
    """A client's part of the scores of everybody's candidates."""

    masked: Tensor = leaves(
        "its own model's part of the scores of everybody's candidates, masked: readable as a sum only"
    )


@task
def score_masked(client: Client, secure: SecureRound, spec: ModelSpec, images: Tensor, labels: Tensor) -> MaskedScores:
    """Score as the published method does, and release this client's part as a part of a sum only."""
    said = score_candidates.run(client, {"spec": spec, "images": images})
    assert isinstance(said, Scores)
    part = consensus(said.probabilities.unsqueeze(0), labels).double().numpy()
    hidden = masked(client, secure, part, weight=1)
    return client.release(MaskedScores(masked=hidden), masked=secured(None, len(secure.peers)))
