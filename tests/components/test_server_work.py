"""What the server and the clients keep between rounds goes through checkpoints: a stopped run goes on with its bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from federations import SMALL, same_bits

from fedsynth.components.settings import TrainConfig
from fedsynth.federation import Federation
from fedsynth.federation.methods import find_method
from fedsynth.federation.port import Answers, Engine


class PowerCutError(Exception):
    """The run stops here."""


class Cut:
    """An engine that stops at its n-th request of one task."""

    clock = 0.0

    def __init__(self, inner: Engine, task: str, times: int) -> None:
        self.inner, self.task, self.left = inner, task, times

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        self.left -= task == self.task
        if self.left == 0:
            raise PowerCutError
        return self.inner.ask(task, requests, deadline)

    def close(self) -> None:
        self.inner.close()


POINTS: dict[str, Any] = {"steps": 2, "tune_epochs": 1, "queue": 2}
IMAGES: dict[str, Any] = {"steps": 2, "per_class": 1, "start_round": 1}
RUNS: list[tuple[str, dict[str, Any], str]] = [
    ("agg_enhance", POINTS, "server_work.invert_model"),
    ("agg_enhance", POINTS, "server_work.tune_model"),
    ("agg_enhance", POINTS | {"secure": True}, "agg_enhance.clients.score_candidates"),
    ("fedopt", {"post_aggregation": {"name": "interior_points", **POINTS}}, "server_work.classify_images"),
    ("feddpms", {"post_aggregation": {"name": "interior_points", **POINTS}}, "server_work.tune_model"),
    ("class_bias", {}, "class_bias.equalise_head"),
    ("fedprox", {"post_aggregation": {"name": "class_bias", "inputs": "points"}}, "server_work.invert_model"),
    ("fed_zdac", IMAGES, "local_training.train"),
    ("fed_zda", IMAGES, "server_work.tune_model"),
    ("fed_zdas", IMAGES | {"source": "ensemble", "store": 2, "consensus": 0.05}, "server_work.tune_model"),
    ("static_augmentation", {}, "local_training.train"),
    ("data_sharing", {}, "local_training.train"),
    ("astraea", {"mediators": 4}, "local_training.train"),
]


def finish(fed: Federation, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    found = find_method(method)
    train = TrainConfig(rounds=4, local_epochs=1, batch_size=64, fraction=0.4)
    outcome = found.program(fed, found.config(train=train, model=SMALL["zda_cnn"], **settings))
    assert outcome.model is not None
    return outcome.model


@pytest.mark.parametrize(("method", "settings", "task"), RUNS, ids=[f"{m}-{t}" for m, _, t in RUNS])
def test_a_stopped_run_ends_with_the_same_bits(method, settings, task, federate):
    whole = federate("whole")
    expected = finish(whole, method, settings)
    with pytest.raises(PowerCutError):
        finish(federate("run", engine=Cut(federate("run").engine, task, 3)), method, settings)
    again = federate("run")
    assert again.round == 2
    assert same_bits(finish(again, method, settings), expected)
    records = [fed.participation.as_dict() for fed in (whole, again)]
    for record in records:
        del record["client_seconds"], record["server_seconds"], record["timeline"]
    assert records[0] == records[1]
