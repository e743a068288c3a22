"""One round's interior points (algorithm 2): candidates of every received model, scored by all, the best of a class."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsynth.components.secure_aggregation import secure_mean
from fedsynth.components.server_work import classify_images, invert_model
from fedsynth.components.slots import AggregationContext
from fedsynth.methods.agg_enhance.clients import make_candidates, score_candidates, score_masked
from fedsynth.methods.agg_enhance.settings import InteriorSettings
from fedsynth.synthesis.inversion import choose_by_consensus, consensus

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


@dataclass(frozen=True)
class Points:
    """Points with their classes, and what the aggregate is to learn of each: a probability for every class."""

    images: Tensor
    labels: Tensor
    targets: Tensor

    @classmethod
    def of_classes(cls, images: Tensor, classes: int) -> "Points":
        """Points of all classes in turn, each taken for its class without doubt."""
        labels = torch.arange(len(images)) % classes
        return cls(images, labels, F.one_hot(labels, classes).float())

    def rows(self, rows: Tensor) -> "Points":
        """Some of them."""
        return Points(self.images[rows], self.labels[rows], self.targets[rows])


@dataclass(frozen=True)
class Opinion:
    """What models say of candidates on average: of their own class where they predict it, and of every class."""

    scores: Tensor
    probabilities: Tensor | None = None


@dataclass(frozen=True)
class Search:
    """The search for a round's points, at the server or, with `secure`, at the clients."""

    context: AggregationContext
    settings: InteriorSettings

    def points(self, start: Tensor) -> Points | None:
        """The best point of each class, from starting points of all classes in turn; None where nobody answered."""
        fed, classes = self.context.fed, self.context.fed.schema.classes
        found = self.candidates_of_clients(start) if self.settings.secure else self.candidates(start)
        if not found:
            return None
        candidates = torch.stack(list(found.values())).unflatten(1, (-1, classes)).flatten(0, 1)
        opinion, chosen = None, fed.rng("random choice").random(candidates.shape[0] * classes)
        by_consensus = self.settings.choice == "consensus"
        if by_consensus or self.settings.labels == "soft" or self.settings.min_consensus:
            opinion = self.opinion(list(found), candidates.flatten(0, 1))
            if opinion is None:
                return None
        scores = opinion.scores if opinion and by_consensus else torch.from_numpy(chosen)
        points = Points.of_classes(choose_by_consensus(candidates, scores), classes)
        return points if opinion is None else self.judged(points, scores, opinion)

    def judged(self, points: Points, scores: Tensor, opinion: Opinion) -> Points:
        """The points with the labels that the models give them, without those of which too few are convinced."""
        classes = len(points.labels)
        best = scores.view(-1, classes).argmax(0) * classes + torch.arange(classes)
        agreed = opinion.scores[best]
        self.context.fed.measure("consensus", float(agreed.mean()))
        if self.settings.labels == "soft" and opinion.probabilities is not None:
            points = Points(points.images, points.labels, opinion.probabilities[best])
        return points.rows(torch.nonzero(agreed >= self.settings.min_consensus)[:, 0])

    def opinion(self, clients: list[str], images: Tensor) -> Opinion | None:
        """What the models say of all candidates."""
        labels = torch.arange(len(images)) % self.context.fed.schema.classes
        if self.context.secure:
            fields = {"spec": self.context.spec, "images": images, "labels": labels}
            mean = secure_mean(self.context.fed, score_masked, clients, self.context.secure, fields, equal=True)
            return None if mean is None else Opinion(torch.from_numpy(mean.values))
        ask = self.probabilities_of_clients if self.settings.secure else self.probabilities
        said = ask(clients, images)
        if not said:
            return None
        together = torch.stack(said)
        return Opinion(consensus(together, labels) / len(said), together.mean(0))

    def candidates(self, start: Tensor) -> dict[str, Tensor]:
        """Points of each received model, made at the server."""
        context, classes = self.context, self.context.fed.schema.classes
        context.fed.note(NOTHING_MORE)
        labels = torch.arange(len(start)) % classes
        common = {"spec": context.spec, "start": start, "labels": labels, "inversion": self.settings.inversion()}
        done = context.fed.compute(invert_model, {c: {"model": w, **common} for c, w in context.received.items()})
        return {client: reply.images for client, reply in done.items()}

    def probabilities(self, clients: list[str], images: Tensor) -> list[Tensor]:
        """What each received model says of all candidates."""
        context = self.context
        jobs = {c: {"model": context.received[c], "spec": context.spec, "images": images} for c in clients}
        done = context.fed.compute(classify_images, jobs)
        return [done[client].probabilities for client in clients]

    def candidates_of_clients(self, start: Tensor) -> dict[str, Tensor]:
        """Points that clients make from the models they have just trained."""
        context = self.context
        context.fed.note(SINGLE_POINTS if context.secure else SINGLE_MODELS)
        asked: dict[str, Any] = {"spec": context.spec, "start": start, "inversion": self.settings.inversion()}
        replies = context.fed.broadcast(make_candidates, to=list(context.received), **asked)
        return {client: reply.points for client, reply in replies.items()}

    def probabilities_of_clients(self, clients: list[str], images: Tensor) -> list[Tensor]:
        """What clients' models say of all candidates."""
        replies = self.context.fed.broadcast(score_candidates, to=clients, spec=self.context.spec, images=images)
        return [reply.probabilities for reply in replies.values()]
