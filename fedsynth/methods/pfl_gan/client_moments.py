"""Who is similar, told by class moments in place of GANs: nothing is trained, and ε covers what is compared.

Every client releases the number, mean and second moment of its classes (`components/moment_release.py`). Two clients
are as far apart as the means of the classes that both have; a set is drawn from each client's own Gaussians.
"""

from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from fedsynth.components.moment_release import MomentRelease, MomentSettings, ReleasedMoments, release_moments_of_each
from fedsynth.components.samples import Samples, as_bytes
from fedsynth.federation import Federation
from fedsynth.learning.similarity import neighbours
from fedsynth.methods.pfl_gan.client_gans import GanConfig, Similarity, find_similar, record_similarity
from fedsynth.synthesis.moments import Basis, draw

NOTHING = 0.02  # of the spread within a class: two means so far apart (squared) are the same for our purposes
DISTANCE = (
    "d_ij: squared distance between the means of the classes that both have, as a multiple of what is expected of two "
    "parts of the same data (1 where they have none in common)"
)


class SharedConfig(GanConfig):
    """What clients release to be compared by."""

    shared: Literal["gan", "moments"] = Field(
        "gan",
        description="what clients release to be compared and drawn from: a GAN's generator, or the moments of their "
        "classes, which nobody trains",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        description="with moments: ε of all that is released of them, per record (add or remove one), at "
        "privacy.delta; none: exact sums leave",
    )

    @model_validator(mode="after")
    def _moments_or_gans(self) -> "SharedConfig":
        if self.shared == "gan" and self.epsilon is not None:
            raise ValueError('epsilon is for shared = "moments"; GANs are protected by privacy.updates = "dp_sgd"')
        if self.shared == "moments" and self.gans_from is not None:
            raise ValueError('gans_from has no meaning for shared = "moments": remove one of the two')
        if self.shared == "moments" and self.privacy.updates == "dp_sgd":
            raise ValueError('privacy.updates = "dp_sgd" trains GANs privately; moments have epsilon for that')
        return self


def find_neighbours(fed: Federation, cfg: SharedConfig) -> Similarity:
    """Who is similar, by what clients share."""
    if cfg.shared == "gan":
        return find_similar(fed, cfg)
    settings, release = MomentSettings(epsilon=cfg.epsilon), MomentRelease(privacy=cfg.privacy, epsilon=cfg.epsilon)
    released, clients = release_moments_of_each(fed, settings, release), list(fed.clients)
    missed = [client for client in clients if client not in released]
    if missed:
        fed.note(f"No class moments came from {', '.join(missed)}: nobody takes samples from there.")
    distances = np.array([[distance(released.get(a), released.get(b)) for b in clients] for a in clients])
    np.fill_diagonal(distances, 0.0)
    sets = {client: draw_set_of(fed, client, released.get(client), cfg.samples_per_class) for client in clients}
    errors = np.full(len(clients), np.nan)
    near = neighbours(distances, cfg.threshold, cfg.clusters)
    similar = Similarity(clients, sets, distances, near, errors)
    record_similarity(fed, similar, DISTANCE)
    return similar


def distance(one: ReleasedMoments | None, other: ReleasedMoments | None) -> float:
    """How far apart two clients are: about 1 for two parts of the same data, however many examples they have."""
    if one is None or other is None:
        return float("inf")
    both = one.model.known & other.model.known
    if not bool(both.any()):
        return 1.0
    apart = (one.model.means - other.model.means).double().square().sum(1)[both]
    expected = (torch.tensor(one.errors) + torch.tensor(other.errors))[both]
    spread = (one.spread + other.spread) / 2
    return float((apart / (expected + NOTHING * spread).clamp_min(1e-12)).mean())


def draw_set_of(fed: Federation, client: str, released: ReleasedMoments | None, per_class: int) -> Samples:
    """Draws from a client's own Gaussians, as many of each class; none where nothing came."""
    images = len(fed.schema.shape) == 3
    if released is None or not bool(released.model.known.any()):
        return Samples.none(fed.schema.shape, torch.uint8 if images else torch.float32)
    labels = np.tile(np.flatnonzero(released.model.known.numpy()), per_class)
    vectors = draw(released.model, labels, fed.rng(f"draws of {client}"))
    drawn = Basis(fed.schema.shape, released.size).examples(vectors)
    return Samples(images=as_bytes(drawn) if images else drawn, labels=torch.from_numpy(labels))
