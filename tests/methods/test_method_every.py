"""Every registered method, on every kind of network: the same bits on the wire, and nothing leaves undeclared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Finished, same_bits

from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.evaluation.views import client_tallies
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.federation.tasks import find_task
from fedsynth.learning.models import ModelSpec

RunMethod = Callable[..., Finished]

UPDATE = {"train": {"model", "examples", "loss", "steps", "extra"}}
HANDED_ON = {"count_classes": {"counts"}, "train_gan_visit": {"gan", "moments", "losses"}, "top_up": set()}
GANDALF = ["gandalf", "private_fl_gan", "sda_fl", "feddpgan"]
LEAVES: dict[str, dict[str, set[str]]] = {
    "fedmix": UPDATE | {"average_images": {"images", "labels"}, "keep_averages": set()},
    "local": {"train_alone": {"loss"}},
    **dict.fromkeys(GANDALF, UPDATE | HANDED_ON),
    "astraea": UPDATE | {"count_classes": {"counts"}, "balance_classes": set()},
    "data_sharing": UPDATE | {"count_classes": {"counts"}, "contribute": {"images", "labels"}, "keep_shared": set()},
    "static_augmentation": UPDATE | {"augment_minorities": set()},
    "ccvr": UPDATE | {"release_sum": {"total"}},
    "fedpft": {"release_sum": {"total"}},
    "fedftg": UPDATE | {"count_classes": {"counts"}},
    "moments": UPDATE | {"release_sum": {"total"}, "keep_moments": set()},
}
"""What leaves the clients, by task; FedAvg's update where nothing is said."""

FIRST = "body.members.0."  # of an ensemble, whose first network has the names of every client's
EXTRA = ("scaffold", "qffl", "fedgen")
"""Methods whose local objective adds something to the update."""

BASELINES = [
    *(
        "apfl",
        "astraea",
        "ccvr",
        "class_bias",
        "centralised",
        "data_sharing",
        "dense",
        "ditto",
        "fedper",
        "ensemble",
        "fedrep",
        "fedavg",
        "fedbn",
        "feddyn",
        "fedftg",
        "fedgen",
        "fedmix",
        "fednova",
        "fedopt",
        "fedprox",
    ),
    *(
        "finetune",
        "krum",
        "local",
        "logit_adjustment",
        "median",
        "moments",
        "moon",
        "pfedme",
        "qffl",
        "scaffold",
        "static_augmentation",
    ),
    "trimmed_mean",
]
SENDS_IMAGES = ["fedmix", "data_sharing"]
ZERO_SHOT = ["fed_zda", "fed_zdac", "fed_zdas"]  # need BatchNorm
SYNTHETIC = ["agg_enhance", *ZERO_SHOT, *GANDALF]
QUICK: dict[str, dict[str, Any]] = {
    "fedgen": {"generator_steps": 3, "noise": 3, "hidden": 5},
    "dense": {"distil_epochs": 2, "generator_steps": 2, "tune_batch_size": 4, "latent": 3, "channels": 2},
    "fedftg": {"iterations": 2, "tune_batch_size": 4, "latent": 3, "channels": 2},
    "agg_enhance": {"steps": 3, "tune_epochs": 1},
    **{name: {"steps": 3, "per_class": 2} for name in ZERO_SHOT},
    **{
        key: {"gan_steps": 2, "visit_steps": 2, "gan_channels": 2, "gan_latent": 3, "labeller_rounds": 1}
        for key in GANDALF
    },
}


@pytest.fixture(scope="module")
def few() -> FederatedData:
    """Digits of three classes at five clients, some with very few."""
    config = DataConfig(name="digits", limit=90, classes=(0, 1, 2))
    return load_federated(config, {"name": "dirichlet", "num_clients": 5, "alpha": 0.8, "min_size": 5}, seed=1)


def test_all_baselines_are_registered() -> None:
    assert {*BASELINES, *SYNTHETIC} <= {method.name for method in all_methods()}
    assert all(method.summary.endswith(".") for method in all_methods())


def model_for(method: str) -> ModelSpec:
    """A small model that the method takes."""
    return SMALL["zda_cnn" if method in ZERO_SHOT else "mlp"]


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((m, s) for m in [*BASELINES, "agg_enhance"] for s in SMALL),
        *((m, "zda_cnn") for m in ZERO_SHOT),
        *((m, "mlp") for m in GANDALF),
    ],
)
def test_runs_with_the_same_bits_in_process_and_on_the_wire(
    method: str, model: str, few: FederatedData, run_method: RunMethod
) -> None:
    spec = SMALL[model]
    common = {"model": spec, "settings": QUICK.get(method), "batch_size": 8}
    here, wire = (run_method(method, few, engine=engine, **common) for engine in ("local", "wire"))
    if method == "local":
        assert here.outcome.model is None
    else:
        assert same_bits(here.model, wire.model)
        assert all(torch.isfinite(entry).all() for entry in here.model.values())
    ends_with = find_method(method).config(model=spec).classifier
    scores = [client_tallies(one.fed, one.outcome, ends_with, ["validation", "test"]) for one in (here, wire)]
    assert list(flat_scores(scores[0])) == list(flat_scores(scores[1]))
    leaves_what_it_declares(method, here, spec)
    if method not in SENDS_IMAGES:
        no_image_leaves(here)


def flat_scores(tallies: dict[str, dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for view, by_client in sorted(tallies.items()):
        for client, tally in sorted(by_client.items()):
            yield view, client, tally.correct.tolist(), tally.total.tolist(), tally.loss


def crossing(finished: Finished) -> list[Ask]:
    """The requests that went to clients; the others are the server's own work."""
    return [ask for ask in finished.asks if not any(client.startswith("@") for client in ask.requests)]


def added(method: str, model: dict[str, torch.Tensor]) -> set[str]:
    """What the local objective adds to the update: SCAFFOLD's the change of a control variate for every weight."""
    if method == "scaffold":
        return {name for name in model if "running_" not in name and "num_batches" not in name}
    return {"qffl": {"loss_before"}, "fedgen": {"label counts"}}.get(method, set())


def leaves_what_it_declares(method: str, finished: Finished, spec: ModelSpec) -> None:
    """The replies' bytes hold the declared fields and nothing else; the ledger names what was not empty."""
    declared = LEAVES.get(method, UPDATE)
    asks = [ask for ask in crossing(finished) if ask.name != "score"]
    assert {ask.name for ask in asks} == set(declared)
    for ask in asks:
        assert set(find_task(ask.task).leaves()) == declared[ask.name]
        for answer in ask.answers.values():
            assert set(answer) == {"ok", "fields", "state", "guarantees", "epochs", "seconds"}
            assert set(answer["fields"]) == declared[ask.name]
            if ask.name == "train":
                assert set(answer["fields"]["extra"]) == added(method, finished.model)
                assert set(answer["fields"]["model"]) <= {name.removeprefix(FIRST) for name in finished.model}
    tasks = {ask.name: ask.task for ask in asks}
    times = {task: sum(len(ask.requests) for ask in asks if ask.name == task) for task in declared}
    record = finished.fed.participation.ledger.rows(1e-5)
    counts: Counter[str] = Counter()
    for row in record:
        if row.kind == "release" and not row.evaluation:
            counts[row.release] += row.times * len(row.clients)
    assert counts == {
        f"{tasks[task]}.{field}": times[task]
        for task, fields in declared.items()
        for field in fields
        if (field != "extra" or method in EXTRA) and (field != "moments" or method != "feddpgan")
    }
    assert all(row.what for row in record)


def no_image_leaves(finished: Finished) -> None:
    """No tensor in any reply has the shape of an image (SMALL's models have no 8×8 weights)."""
    for ask in crossing(finished):
        for answer in ask.answers.values():
            for shape in shapes(answer["fields"]):
                assert tuple(shape[-2:]) != (8, 8)


def shapes(value: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(value, dict):
        for item in value.values():
            yield from shapes(item)
    elif isinstance(value, torch.Tensor | np.ndarray):
        yield tuple(value.shape)


@pytest.mark.parametrize("method", [*BASELINES, *SYNTHETIC])
def test_partial_participation_asks_only_those_sampled(method: str, few: FederatedData, run_method: RunMethod) -> None:
    settings = {"byzantine": 0} if method == "krum" else QUICK.get(method)
    finished = run_method(method, few, model=model_for(method), settings=settings, fraction=0.6)
    trained: dict[int, set[str]] = {}
    for ask in finished.asks:
        if ask.name == "train" and method != "centralised":
            trained.setdefault(ask.round, set()).update(ask.requests)
        elif ask.name == "train":
            assert set(ask.requests) == {"*"}
        elif ask.name == "train_alone":  # costs nobody a message: everybody trains
            assert set(ask.requests) == set(few.clients)
        elif ask.name == "invert_model":
            assert len(ask.requests) == 3
    assert all(len(clients) == 3 for clients in trained.values())
