"""The names in what `fedsynth run --json` prints, and in the files beside it: programs of others read them."""

from __future__ import annotations

import csv
import json
from typing import Any

MEASURES = ("balanced_accuracy", "f1", "auroc", "auprc", "ece", "brier")
SCORES = (
    "n mean variance worst worst_client best worst_tenth best_tenth deciles pooled measures sensitivity specificity"
)
LEDGER = (
    "kind release task field what evaluation times mechanism unit adjacency epsilon delta against proven covered"
    " not_covered claimed"
)
KEYS = {
    "": (
        "method seed metric problem test clients validation views best rounds bytes client_epochs server_seconds"
        " seconds simulated_seconds failures failed missed notes privacy secret_noise norm_buffers data run_dir"
        " synthesis"
    ),
    "test": (
        "accuracy loss class_variance worst_class class_accuracy examples measures specificity confusion reliability"
    ),
    "test.measures": " ".join(MEASURES),
    "test.reliability[]": "examples confidence accuracy",
    "clients": f"view {SCORES}",
    "validation": f"view {SCORES}",
    "views": "global/validation global/test",
    "views.global/validation": SCORES,
    "views.global/test": SCORES,
    **{
        f"{place}.measures{key}": text
        for place in ("clients", "validation", "views.global/validation", "views.global/test")
        for key, text in (
            ("", " ".join(MEASURES)),
            *((f".{name}", "n mean variance worst worst_client pooled") for name in MEASURES),
        )
    },
    "best": "round score",
    "bytes": "up down evaluation by_task",
    "bytes.evaluation": "up down",
    "bytes.by_task": "fedavg.train views.score",
    "bytes.by_task.fedavg.train": "up down",
    "bytes.by_task.views.score": "up down",
    "failures[]": "client kind message task round",
    "missed[]": "client rounds classes",
    "privacy[]": f"{LEDGER} clients",
    "data": "name clients split",
}
METRICS = {
    "": ("round phase seconds bytes_up bytes_down client_epochs failed simulated_seconds validation test"),
    "validation": "accuracy loss n mean variance worst",
    "test": "accuracy loss class_variance",
}


def names(value: Any, place: str = "") -> dict[str, set[str]]:
    """The keys of every object in a JSON value, by where it stands; what a client or class is called is left aside."""
    if isinstance(value, list):
        found: dict[str, set[str]] = {}
        for item in value:
            found |= names(item, f"{place}[]")
        return found
    if not isinstance(value, dict) or place == "missed[].classes":
        return {}
    result = {place: set(value)}
    for key, inner in value.items():
        result |= names(inner, f"{place}.{key}".removeprefix("."))
    return result


def expected(keys: dict[str, str]) -> dict[str, set[str]]:
    return {place: set(text.split()) for place, text in keys.items()}


def test_json_and_the_files_of_a_run_keep_their_names(fedsynth, tiny, tmp_path):
    words = ["faults.dropout=0.5", "faults.delay=1", "evaluation.test_curve=true", "name=mine"]
    printed = fedsynth("run", *tiny, *words, "--json", "--quiet", cwd=tmp_path).json
    assert names(printed) == expected(KEYS)
    folder = tmp_path / "runs" / "mine"
    assert json.loads((folder / "summary.json").read_text()) == printed
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [names(line) for line in lines] == [expected(METRICS)] * len(lines)
    with (folder / "ledger.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["client", *LEDGER.split()]
    with (folder / "metrics.csv").open(newline="") as file:
        columns = [key for key in METRICS[""].split() if key not in ("validation", "test")]
        inner = [f"{part}/{key}" for part in ("validation", "test") for key in METRICS[part].split()]
        assert next(csv.reader(file)) == columns + inner


def test_a_run_without_a_global_model_says_why_in_place_of_its_accuracy(fedsynth, tiny, tmp_path):
    printed = fedsynth("run", *tiny, "method.name=local", "evaluation.final_clients=0", "--json", cwd=tmp_path).json
    assert printed["test"].keys() == {"accuracy", "class_variance", "reason"}
    assert printed["clients"] == printed["validation"] == {"view": "personal", "n": 0}
