"""The three views of a result: the global model on the pooled test set, the global model at each client, and each
client's own model. Validation parts serve selection; test parts are read by the final evaluation alone.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from fedsynth.data.dataset import Dataset, Schema
from fedsynth.evaluation.fairness import score_classes, score_clients
from fedsynth.evaluation.results import ClientScore, ClientScores, Evaluation, GlobalScores
from fedsynth.federation import Client, Federation, Outcome, Reply, leaves, task
from fedsynth.federation.payload import Fields
from fedsynth.federation.personal import personal_model
from fedsynth.learning.models import ModelSpec, instantiate
from fedsynth.learning.training import Tally, evaluate
from fedsynth.learning.weights import Weights
from fedsynth.seeding import generator

Part = Literal["validation", "test"]

NO_TEST_SET = "the server has no test set; the clients evaluate the model on their own test parts"


class Scores(Reply):
    """How a client's models do on its own data."""

    scores: dict[str, Tally] = leaves("right answers and examples per class, and the loss, on its own data")


@task
def score(
    client: Client,
    model: Weights,
    spec: ModelSpec,
    parts: list[Part],
    personal: str = "",
    settings: Fields | None = None,
    evaluate_global: bool = True,
) -> Scores:
    """Count right answers of the global model, and of the client's own if the method has such."""
    models: dict[str, Weights] = {"global": model} if evaluate_global else {}
    if personal:
        models["personal"] = personal_model(personal, client, model, spec, settings or {})
    scores = {}
    for view, weights in models.items():
        net = instantiate(spec, client.schema.shape, client.schema.classes, weights).to(client.device)
        for part in parts:
            x, y = getattr(client.data, part).tensors()
            scores[f"{view}/{part}"] = evaluate(net, x, y, client.schema.classes)
    return client.release(Scores(scores=scores))


def client_tallies(
    fed: Federation, outcome: Outcome, spec: ModelSpec, parts: Sequence[Part], to: Sequence[str] | None = None
) -> dict[str, dict[str, Tally]]:
    """For each view and part ("personal/test"), the tally of every client that answered; `to` may be nobody."""
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
    )
    result: dict[str, dict[str, Tally]] = {}
    for client, reply in replies.items():
        for key, tally in reply.scores.items():
            result.setdefault(key, {})[client] = tally
    return result


def evaluators(fed: Federation, count: int) -> list[str]:
    """The clients that evaluate a model: all, or the same sample of `count` (or none) whenever it is asked for."""
    if len(fed.clients) <= count:
        return list(fed.clients)
    rows = generator(fed.seed, "judges").choice(len(fed.clients), count, replace=False)
    return [fed.clients[row] for row in sorted(rows)]


def evaluate_pooled(weights: Weights, spec: ModelSpec, schema: Schema, test: Dataset, device: str) -> Tally:
    """The global model on the global test set, at the server."""
    net = instantiate(spec, schema.shape, schema.classes, weights).to(device)
    tally = Tally(np.zeros(schema.classes, int), np.zeros(schema.classes, int), 0.0)
    for start in range(0, len(test), 5000):  # bounded memory, whatever the size of the test set
        part = Dataset(test.x[start : start + 5000], test.y[start : start + 5000])
        tally = tally + evaluate(net, *part.tensors(), schema.classes)
    return tally


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
    tallies = client_tallies(fed, outcome, spec, ["validation", "test"], to=evaluators(fed, clients))
    view = "personal" if outcome.personal else "global"
    views = {key: score_clients(by_client) for key, by_client in tallies.items()}
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
            key: {client: _client_score(tally) for client, tally in by_client.items() if tally.total.sum() > 0}
            for key, by_client in tallies.items()
        },
    )


def _client_score(tally: Tally) -> ClientScore:
    examples = int(tally.total.sum())
    return ClientScore(accuracy=tally.accuracy, balanced_accuracy=tally.balanced_accuracy, examples=examples)


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
    with torch.no_grad():
        scores = score_classes(evaluate_pooled(outcome.model, spec, fed.schema, test, device))
        if len(sources) < 2:
            return scores
        by_source = {
            name: score_classes(evaluate_pooled(outcome.model, spec, fed.schema, test.subset(rows), device))
            for name, rows in sources.items()
        }
    return scores.model_copy(update={"sources": by_source})
