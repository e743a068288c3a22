"""FedMix (Yoon et al. 2021, algorithm 3): mixup with averaged images of other clients, to first order.

Once, before training, every client sends averages of M of its images and labels; the server gathers them and hands
the collection to all. Locally, for a batch and one averaged pair (x̄, ȳ):
ℓ = (1−λ) ℓ(f((1−λ)x), y) + λ ℓ(f((1−λ)x), ȳ) + λ ⟨∂ of the first term / ∂x, x̄⟩.

Deviations: the collection is capped (`limit` pairs, drawn at random), so that it fits clients of any federation. Images
that are left over join the group before them and M is at least 2, so that no average is a single image; a client with
one image sends none. The averages are real images blended, released without protection: the record of releases says so.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedsynth.components.loop import Loop, LoopConfig, federated_loop
from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.errors import UserError
from fedsynth.federation import Client, Done, Federation, Outcome, Reply, leaves, method, task
from fedsynth.learning.objectives import MeanMixup
from fedsynth.learning.training import CrossEntropy, Objective


class Averages(Reply):
    """Blended images and labels."""

    images: Tensor = leaves("averages of a few images each", raw=True)
    labels: Tensor = leaves("averages of their one-hot labels", raw=True)


@task
def average_images(client: Client, mean_of: int) -> Averages:
    """Average the client's images in random groups of `mean_of`; what is left over joins the last group."""
    if mean_of < 2:  # asked here too: the settings are the server's, which may not keep to them
        raise UserError(f"mean_of = {mean_of} is refused: an average of one image is that image; ask for 2 or more.")
    x, y = client.data.train.tensors()
    order = torch.from_numpy(client.rng("average").permutation(len(y)))
    one_hot = F.one_hot(y, client.schema.classes).float()
    groups = group_rows(order, mean_of)
    images = torch.stack([x[rows].mean(0) for rows in groups]) if groups else x[:0]
    labels = torch.stack([one_hot[rows].mean(0) for rows in groups]) if groups else one_hot[:0]
    return client.release(Averages(images=images, labels=labels))


def group_rows(order: Tensor, size: int) -> list[Tensor]:
    """Groups of `size` rows, the last with what is left over; one smaller group of few rows, and none of a single."""
    groups = list(order.split(size))
    if len(groups) > 1 and len(groups[-1]) < size:
        groups[-2:] = [torch.cat(groups[-2:])]
    return groups if len(order) > 1 else []


@task
def keep_averages(client: Client, images: Tensor, labels: Tensor) -> Done:
    """Keep everybody's averages for the rounds to come."""
    client.state["averages"] = {"images": images, "labels": labels}
    return client.release(Done())


class MixupObjective(LocalObjective, name="mean_mixup"):
    """Mix with the kept averages; a client that missed them trains as in FedAvg."""

    ratio: float = Field(0.05, ge=0, lt=1, description="mixup ratio λ")

    def begin(self, local: LocalContext) -> Objective:
        kept = local.client.state.get("averages")
        if kept is None or len(kept["images"]) == 0 or self.ratio == 0:
            return CrossEntropy()
        return MeanMixup(kept["images"], kept["labels"], self.ratio, local.client.rng("mixup"))


class FedMixConfig(LoopConfig):
    """FedMix's settings; 0.05 is FedDPMS's choice for the comparison."""

    ratio: float = Field(0.05, ge=0, lt=1, description="mixup ratio λ")
    mean_of: int = Field(10, ge=2, description="images in one average (M_k)")
    limit: int = Field(1000, ge=1, description="averages kept by every client")


@method("fedmix", config=FedMixConfig, fedavg_when={"ratio": 0.0}, search={"ratio": (0.01, 0.5)})
def fedmix(fed: Federation, cfg: FedMixConfig) -> Outcome:
    """Mixup with averaged images that clients exchange once."""
    objective = MixupObjective(ratio=cfg.ratio)
    Loop(fed, cfg, objective=objective)  # mistakes are found before anything leaves a client
    fed.once("exchange averages", lambda: exchange(fed, cfg))
    return federated_loop(fed, cfg, objective=objective)


def exchange(fed: Federation, cfg: FedMixConfig) -> int:
    """Gather the clients' averages and hand a bounded collection of them to everybody; how many those are."""
    replies = fed.broadcast(average_images, mean_of=cfg.mean_of)
    if not replies:
        fed.note("Nobody could be reached to exchange averages: clients train as in FedAvg.")
        return 0
    images = torch.cat([reply.images for reply in replies.values()])
    labels = torch.cat([reply.labels for reply in replies.values()])
    if len(images) == 0:
        fed.note("No client has two images to average: clients train as in FedAvg.")
        return 0
    rows = torch.from_numpy(fed.rng("averages").permutation(len(images))[: cfg.limit])
    fed.broadcast(keep_averages, images=images[rows], labels=labels[rows])
    return len(rows)
