"""Will it help us? From class histograms alone: rebuild the skew on public data, try the candidates, recommend one.

Every candidate runs with several seeds on the same splits, side by side on the cores; `recommendation.py` reads them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import Tables
from fedsynth.experiment.runner import check_setting, load_data
from fedsynth.federation.methods import find_method
from fedsynth.federation.store import write_json
from fedsynth.studies import CANDIDATES
from fedsynth.studies.histograms import Histograms, count_supply, read_histograms, request_histograms, scale_counts
from fedsynth.studies.recommendation import ALWAYS, Advice, make_advice
from fedsynth.studies.work import QUIETLY, Work

QUICK: dict[str, Tables] = {"gandalf": {"gan_steps": 300}}
"""Settings that make a candidate small enough to be tried."""
FAST = {"optimizer": "adam", "lr": 0.003}  # learns in the few steps of a trial, unless the experiment says how
OWN_TEST = 0.25  # of a client's examples: more than usual, since they are few
UPDATE_PRIVACY = ("updates", "clip", "noise", "noise_at", "target")  # of [privacy]; nothing of a client alone needs it


class Question(BaseModel, frozen=True, extra="forbid"):
    """What is asked; a folder holds the answer to one."""

    tables: Tables  # of an experiment: whose clients are asked, and how the candidates train
    histograms: Path | None = None  # in place of asking
    epsilon: float | None = None
    data: str = "digits"
    examples: int = 150
    rounds: int = 10
    methods: tuple[str, ...] = CANDIDATES
    seeds: int = 5


def answer(question: Question, name: str = "advise", work: Work = QUIETLY) -> Advice:
    """Answer the question in a folder of this name; what is there already is gone on with."""
    if question.seeds < 2:
        raise ConfigError("Advice needs at least 2 seeds: one run says nothing about its own uncertainty.")
    given = make_experiment({**question.tables, "method": {"name": "fedavg"}})
    path = given.runs / name
    skew = _find_histograms(question, given, path)
    planned, skipped = _plan(question, given, skew, path)
    work.do([(str(e.name), e) for runs in planned.values() for e in runs.values()])
    tried = (
        f"Tried on {question.data} with the skew of the histograms, at most {question.examples} examples a client, "
        f"{question.rounds} rounds, {question.seeds} seeds: which method is better carries over more than the numbers."
    )
    advice = make_advice(planned, skew, [tried, *skipped], path)
    write_json(path / "advice.json", advice.as_dict())
    return advice


def _find_histograms(question: Question, given: Experiment, path: Path) -> Histograms:
    """The histograms: asked once and kept, so that going on costs no privacy again."""
    file = path / "histograms.json"
    if file.is_file():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["question"] != question.model_dump(mode="json"):
            raise ConfigError(f'"{path}" holds the answer to another question: choose another --name.')
        return Histograms.model_validate(kept)
    if question.histograms is not None:
        skew = read_histograms(question.histograms, question.epsilon, given.privacy.delta)
    else:
        skew = request_histograms(given, question.epsilon)
    if np.count_nonzero(skew.counts.sum(axis=0)) < 2:
        raise ConfigError("There is nothing to tell apart: all examples are of one class.")
    path.mkdir(parents=True, exist_ok=True)
    write_json(file, {"question": question.model_dump(mode="json"), **skew.model_dump()})
    return skew


def _plan(
    question: Question, given: Experiment, skew: Histograms, path: Path
) -> tuple[dict[str, dict[int, Experiment]], list[str]]:
    """The runs by method and seed, and why a method cannot be tried."""
    section, counts = _rebuild_skew(question, skew, given.seed)
    planned: dict[str, dict[int, Experiment]] = {}
    skipped = []
    for method in dict.fromkeys((*ALWAYS, *question.methods)):
        find_method(method)
        tables = _make_tables(question, method, section, counts)
        try:
            planned[method] = {
                seed: make_experiment({**tables, "seed": seed, "runs": str(path), "name": f"{method}-s{seed}"})
                for seed in range(given.seed, given.seed + question.seeds)
            }
        except ConfigError as error:
            if method in ALWAYS:
                raise
            skipped.append(f"{method} was not tried: {error}")
    first = planned["fedavg"][given.seed]
    check_setting(first, load_data(first))
    return planned, skipped


def _rebuild_skew(question: Question, skew: Histograms, seed: int) -> tuple[Tables, np.ndarray]:
    """The public data, with as many classes as ours, and our skew scaled down to it."""
    ours = skew.counts[:, skew.counts.sum(axis=0) > 0]  # classes that nobody has cannot be learnt
    classes = ours.shape[1]
    section: Tables = {"name": question.data, "test": OWN_TEST}
    data = _load_public(section, seed)
    if data.schema.classes < classes:
        raise ConfigError(
            f'The histograms have {classes} classes and "{question.data}" has {data.schema.classes}: '
            "choose another --data."
        )
    if data.schema.classes > classes:
        section["classes"] = list(range(classes))
        data = _load_public(section, seed)
    return section, scale_counts(ours, count_supply(data), question.examples)


def _chosen_metric(given: Mapping[str, Any]) -> Tables:
    """By what the candidates are compared, where the experiment says it."""
    section = given.get("evaluation", {})
    return {"metric": section["metric"]} if "metric" in section else {}


def _load_public(section: Mapping[str, Any], seed: int) -> FederatedData:
    return load_federated(DataConfig.model_validate(dict(section)), {"name": "iid", "num_clients": 1}, seed)


def _make_tables(question: Question, method: str, section: Tables, counts: np.ndarray) -> Tables:
    given = question.tables
    training = given.get("train", {})
    own = given.get("method", {}) if given.get("method", {}).get("name") == method else {}
    tables = {
        "model": {"name": find_method("fedavg").model},
        **given,
        "data": section,
        "partition": {"name": "counts", "counts": counts.tolist()},
        "train": {**({} if FAST.keys() & training.keys() else FAST), **training, "rounds": question.rounds},
        "method": {**QUICK.get(method, {}), **given.get("methods", {}).get(method, {}), **own, "name": method},
        "evaluation": {"every": 0, **_chosen_metric(given)},
    }
    if method == "local":
        tables["privacy"] = {k: value for k, value in given.get("privacy", {}).items() if k not in UPDATE_PRIVACY}
    tables.pop("data_seed", None)
    return tables
