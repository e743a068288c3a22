"""The three views of a result: the global model on the pooled test set, the global model at each client, and each
client's own model. Validation parts serve selection; test parts are read by the final evaluation alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsynth.data.dataset import Dataset, Schema
from fedsynth.evaluation.fairness import score_answers, score_client, score_clients
from fedsynth.evaluation.measures import ASKED, Measured, measure
from fedsynth.evaluation.scores import AskedMeasure, ClientScores, Evaluation, GlobalScores, Metric
from fedsynth.federation import Client, Federation, Outcome, Reply, leaves, task
from fedsynth.federation.payload import Fields
from fedsynth.federation.personal import personal_model
from fedsynth.learning.answers import class_scores
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.training import Tally, tally_answers
from fedsynth.learning.weights import Weights
from fedsynth.seeding import generator

Part = Literal["validation", "test"]

NO_TEST_SET = "the server has no test set; the clients evaluate the model on their own test parts"


class Scores(Reply):
    """How a client's models do on its own data."""

    scores: dict[str, Tally] = leaves("right answers and examples per class, and the loss, on its own data")
    measures: dict[str, Measured] = leaves(
        "AUROC, AUPRC, ECE, Brier score and how often each class was answered, on its own data", default={}
    )


@task
def score(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    parts: list[Part],
    personal: str = "",
    settings: Fields | None = None,
    evaluate_global: bool = True,
    measures: tuple[AskedMeasure, ...] = (),
) -> Scores:
    """Count right answers of the global model, and of the client's own if the method has such; measure what is asked.

    What was answered about a single example stays here.
    """
    models: dict[str, Weights] = {"global": model} if evaluate_global else {}
    if personal:
        models["personal"] = personal_model(personal, client, model, spec, settings or {})
    tallies, measured = {}, {}
    for view, weights in models.items():
        net = instantiate(spec, client.schema.shape, client.schema.classes, weights).to(client.device)
        for part in parts:
            x, y = getattr(client.data, part).tensors()
            scores = class_scores(net, x, client.schema.classes)
            tallies[f"{view}/{part}"] = tally_answers(scores, y, client.schema.classes)
            if measures:
                measured[f"{view}/{part}"] = measure(scores, y, client.schema.classes, measures)
    return client.release(Scores(scores=tallies, measures=measured))


@dataclass(frozen=True)
class Found:
    """What the clients found in one view and part: the tally of each, and what it was asked to measure."""

    tallies: dict[str, Tally]
    measured: dict[str, Measured]

    def scores(self) -> ClientScores:
        """Over the clients."""
        return score_clients(self.tallies, self.measured)


def asked_for(metric: Metric) -> tuple[AskedMeasure, ...]:
    """What clients must be asked for where this metric is needed and no other: nothing where the tallies have it."""
    return tuple(name for name in ASKED if name == metric)


def client_tallies(
    fed: Federation, outcome: Outcome, spec: ModelSpec, parts: Sequence[Part], to: Sequence[str] | None = None
) -> dict[str, dict[str, Tally]]:
    """For each view and part ("personal/test"), the tally of every client that answered; `to` may be nobody."""
    found = evaluate_clients(fed, outcome, spec, parts, to)
    return {key: of.tallies for key, of in found.items()}


def evaluate_clients(
    fed: Federation,
    outcome: Outcome,
    spec: ModelSpec,
    parts: Sequence[Part],
    to: Sequence[str] | None = None,
    measures: Sequence[AskedMeasure] = (),
) -> dict[str, Found]:
    """For each view and part ("personal/test"), what the clients found; `to` may be nobody."""
    if to is not None and not to:
        return {}
    replies = fed.broadcast(
        score,
        to=to,
        model=outcome.model or {},
        spec=spec,
        parts=list(parts),
        personal=outcome.personal,
        settings=outcome.personal_settings,
        evaluate_global=outcome.model is not None and not outcome.no_global,
        measures=list(measures),
    )
    result: dict[str, Found] = {}
    for client, reply in replies.items():
        for key, tally in reply.scores.items():
            result.setdefault(key, Found({}, {})).tallies[client] = tally
            if key in reply.measures:
                result[key].measured[client] = reply.measures[key]
    return result


def evaluators(fed: Federation, count: int) -> list[str]:
    """The clients that evaluate a model: all, or the same sample of `count` (or none) whenever it is asked for."""
    if len(fed.clients) <= count:
        return list(fed.clients)
    rows = generator(fed.seed, "judges").choice(len(fed.clients), count, replace=False)
    return [fed.clients[row] for row in sorted(rows)]


def answers_pooled(
    weights: Weights, spec: ModelSpec, schema: Schema, test: Dataset, device: str
) -> tuple[Tensor, Tensor]:
    """The scores of the global model on the global test set, at the server, and the labels."""
    net = instantiate(spec, schema.shape, schema.classes, weights).to(device)
    scores = []
    for start in range(0, max(1, len(test)), 5000):  # images in bounded memory, whatever the size of the test set
        x, _ = Dataset(test.x[start : start + 5000], test.y[start : start + 5000]).tensors()
        scores.append(class_scores(net, x, schema.classes))
    return torch.cat(scores), torch.from_numpy(test.y.astype(np.int64))


def final_evaluation(
    fed: Federation,
    outcome: Outcome,
    spec: ModelSpec,
    test: Dataset | None,
    test_sources: dict[str, np.ndarray],
    device: str,
    clients: int,
) -> Evaluation:
    """Everything a result shows: the global test, both client views, and every client's numbers."""
    found = evaluate_clients(fed, outcome, spec, ["validation", "test"], evaluators(fed, clients), ASKED)
    view = "personal" if outcome.personal else "global"
    views = {key: of.scores() for key, of in found.items()}
    own, validation = (
        views.get(f"{view}/{part}", ClientScores(n=0)).model_copy(update={"view": view})
        for part in ("test", "validation")
    )
    return Evaluation(
        test=_global_view(fed, outcome, spec, test, test_sources, device),
        clients=own,
        validation=validation,
        views=views,
        per_client={
            key: {
                client: score_client(tally, of.measured.get(client))
                for client, tally in of.tallies.items()
                if tally.total.sum() > 0
            }
            for key, of in found.items()
        },
    )


def _global_view(
    fed: Federation,
    outcome: Outcome,
    spec: ModelSpec,
    test: Dataset | None,
    sources: dict[str, np.ndarray],
    device: str,
) -> GlobalScores:
    if outcome.model is None or outcome.no_global:
        return GlobalScores(accuracy=None, class_variance=None, reason=outcome.no_global)
    if test is None:
        return GlobalScores(accuracy=None, class_variance=None, reason=NO_TEST_SET)
    scores, y = answers_pooled(outcome.model, spec, fed.schema, test, device)
    whole = score_answers(scores, y)
    if len(sources) < 2:
        return whole
    rows = {name: torch.from_numpy(of) for name, of in sources.items()}
    return whole.model_copy(update={"sources": {name: score_answers(scores[of], y[of]) for name, of in rows.items()}})
