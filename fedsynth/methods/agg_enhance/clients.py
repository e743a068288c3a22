"""What clients do for interior points where the server sees no single model: they make candidates and score them."""

import torch
from torch import Tensor

from fedsynth.components.local_training import TRAINED
from fedsynth.components.secure_aggregation import SecureRound, masked, secured
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.learning.models import ModelSpec
from fedsynth.synthesis.inversion import Inversion, consensus, invert


class Candidates(Reply):
    """Candidates for interior points."""

    points: Tensor = leaves("inputs for each class, made from the client's own model")


class Scores(Reply):
    """What a client's own model says of everybody's candidates."""

    probabilities: Tensor = leaves("its own model's probabilities for everybody's candidates")


@task
def make_candidates(client: Client, spec: ModelSpec, start: Tensor, inversion: Inversion) -> Candidates:
    """Points of every class, in turn, from the model that this client has just trained."""
    net = client.build(spec, client.state[TRAINED])
    labels = torch.arange(len(start)) % client.schema.classes
    return client.release(Candidates(points=invert(net, start, labels, inversion)))


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
