"""Data sharing (Zhao et al. 2018; a baseline of GANDALF, section 5.3.1): a part of the real data goes to everybody.

Clients contribute to a set G that is uniform over the classes and has `share` · |D| examples; each client gets a random
`part` of G and trains on it and on its own. Real examples leave the clients, for all to see: this is an upper bound on
what sharing can give, not a method for data that must stay where it is.

How the server learns what to ask for: every client reports its class counts, and the server orders of each class from
each client in proportion to what it has. Nobody sends more than was ordered, and who has none of a class is not asked
for it. A class with too few examples for its share gives all it has, and G is uneven then; a note says so.

Deviations: no model is trained on G before the first round, as Zhao et al. do and GANDALF does not mention. A client's
part of G may hold examples of its own; they count twice there.
"""

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsynth.components.additions import INSTEAD, count_labels, record_additions
from fedsynth.components.class_counts import class_counts
from fedsynth.components.loop import Loop, LoopConfig, federated_loop
from fedsynth.components.samples import Samples
from fedsynth.components.synthetic_store import KeptSamples, keep_samples
from fedsynth.federation import Client, Done, Federation, Outcome, Reply, leaves, method, task
from fedsynth.synthesis.class_balance import split_exactly

EXPOSED = "Real training examples with their labels left the clients and went to other clients; nothing protects them."


class Contribution(Reply):
    """What a client gives to the shared set."""

    images: Tensor = leaves("real images (examples) of its training data, as they are", raw=True)
    labels: Tensor = leaves("the labels of these real images", raw=True)


@task
def contribute(client: Client, wanted: np.ndarray) -> Contribution:
    """Random training examples of the client, of each class as many as were ordered."""
    data, rng = client.data.train, client.rng("contribute")
    rows = [rng.permutation(np.flatnonzero(data.y == label))[:n] for label, n in enumerate(wanted)]
    given = data.subset(np.concatenate(rows))  # stored bytes stay bytes
    return client.release(Contribution(images=torch.from_numpy(given.x), labels=torch.from_numpy(given.y)))


@task
def keep_shared(client: Client, samples: Samples) -> Done:
    """Keep a part of the shared set for the rounds to come."""
    keep_samples(client, samples, exact=True, public=True)
    return client.release(Done())


class DataSharingConfig(LoopConfig):
    """Settings of data sharing; the defaults are GANDALF's."""

    share: float = Field(0.2, ge=0, le=1, description="size of the shared set, as a share of all data; 0 is FedAvg")
    part: float = Field(0.2, ge=0, le=1, description="share of the shared set that each client gets; 0 is FedAvg")


@method("data_sharing", config=DataSharingConfig, fedavg_when={"share": 0.0}, search={"part": (0.05, 1.0)})
def data_sharing(fed: Federation, cfg: DataSharingConfig) -> Outcome:
    """Clients give real examples to a shared set and train on a part of it beside their own."""
    Loop(fed, cfg, local_data=KeptSamples())  # mistakes are found before anything leaves a client
    if cfg.share and cfg.part:
        fed.note(EXPOSED)
        fed.once("share data", lambda: exchange(fed, cfg))
    return federated_loop(fed, cfg, local_data=KeptSamples())


def exchange(fed: Federation, cfg: DataSharingConfig) -> np.ndarray:
    """Gather the shared set and hand everybody a random part of it; its size by class."""
    held = class_counts(fed)
    orders = ordered(held, cfg.share)
    sizes = sum(orders.values(), np.zeros(fed.schema.classes, dtype=np.int64))
    if not sizes.sum():
        fed.note("Nothing was shared: the shared set would have less than one example of each class.")
        return sizes
    if np.ptp(sizes):
        fed.note("The shared set is not uniform: some classes have too few examples for their share of it.")
    givers = {client: {"wanted": wanted} for client, wanted in orders.items() if wanted.any()}
    replies = fed.scatter(contribute, givers)
    if not replies:  # nobody could be reached
        return sizes
    shared = Samples.joined([Samples(**reply.fields()) for reply in replies.values()])
    count = round(cfg.part * len(shared))
    rows = {c: torch.from_numpy(fed.rng(f"part of {c}").permutation(len(shared))[:count]) for c in fed.clients}
    if count:
        given = {client: shared.rows(part) for client, part in rows.items()}
        taken = fed.scatter(keep_shared, {client: {"samples": part} for client, part in given.items()})
        planned = {c: count_labels(given[c].labels, fed.schema.classes) for c in taken}
        record_additions(fed, INSTEAD["real"], planned=planned, held=held)
    return sizes


def ordered(counts: dict[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """How many examples of each class each client is to give: equally many of all classes, in proportion to what the
    clients have."""
    if not counts:
        return {}
    table = np.stack(list(counts.values()))
    each = int(share * table.sum() / table.shape[1])
    columns = [split_exactly(min(each, int(held.sum())), held) for held in table.T]
    return dict(zip(counts, np.stack(columns, axis=1), strict=True))
