"""Settings found by a search with the same budget for every method, evaluated on validation parts only.

Searched are the clients' learning rate and the settings that a method names in `search`. The first trial has the
settings as given, so tuning never chooses worse ones (on validation). Trials are ordinary runs in `tuning/`, and the
search is replayed from them: a tuning that was killed goes on where it was and chooses the same.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import RunSummary, Trial, TuningResult
from fedsynth.evaluation.scores import WORDS
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import Tables
from fedsynth.federation.methods import find_method
from fedsynth.federation.store import write_json
from fedsynth.studies.rows import folder_name

BELOW, ABOVE = 0.1, 3.0  # the learning rate is searched between these multiples of the given one


def search_space(experiment: Experiment) -> dict[str, tuple[float, float]]:
    """What is searched, each between two numbers on a logarithmic scale."""
    rate = experiment.train.lr
    own = find_method(experiment.method_name).search
    return {"train.lr": (BELOW * rate, ABOVE * rate), **{f"method.{key}": ends for key, ends in own.items()}}


def tune(
    folder: Path, table: Mapping[str, Any], trials: int, run: Callable[[Experiment], RunSummary], label: str = ""
) -> TuningResult:
    """The best of `trials` settings for a row; kept in `folder`, and read from there when it was done before."""
    experiment = make_experiment(table)
    label = label or experiment.method_name
    name = folder_name(label)
    file = folder / f"{name}.json"
    if file.is_file():
        return TuningResult.model_validate_json(file.read_text(encoding="utf-8"))
    study, spaces = _study(experiment)
    rows: list[Trial] = []
    for number in range(trials):
        trial = study.ask(spaces) if number else None
        settings = dict(trial.params) if trial else {}
        named = {**with_settings(table, settings), "name": f"{name}-{number:03d}", "runs": str(folder)}
        score = _score(run(make_experiment(named)))
        if trial:
            study.tell(trial, score)
        rows.append(Trial(settings=settings, validation=score))
    best = max(rows, key=lambda row: row.validation)  # the earliest of equals
    found = TuningResult(label=label, chosen=best.settings, validation=best.validation, trials=rows)
    write_json(file, found.as_dict())
    return found


def with_settings(table: Mapping[str, Any], settings: Mapping[str, float]) -> Tables:
    """An experiment's tables with settings such as {"train.lr": 0.1} put in."""
    changed: Tables = json.loads(json.dumps(table))
    for key, value in settings.items():
        section, setting = key.split(".")
        changed.setdefault(section, {})[setting] = value
    return changed


def check_tuning(experiment: Experiment) -> None:
    """Refuse a tuning that cannot be done before anything runs."""
    _optuna()
    if not experiment.data.validation:
        raise ConfigError("--tune evaluates on validation parts, and there are none: set data.validation above 0.")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("--tune needs optuna: pip install 'fedsynth[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _study(experiment: Experiment) -> tuple[Any, dict[str, object]]:
    """A search that asks for the same settings whenever it is told the same scores."""
    optuna = _optuna()
    sampler = optuna.samplers.TPESampler(seed=experiment.seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    ends = search_space(experiment)
    spaces = {key: optuna.distributions.FloatDistribution(low, high, log=True) for key, (low, high) in ends.items()}
    return study, spaces


def _score(summary: RunSummary) -> float:
    """The chosen metric over all clients' validation parts; nothing of a test part is looked at."""
    if summary.validation.pooled is None:
        raise ConfigError("--tune evaluates on validation parts, and no client has one: set data.validation above 0.")
    found = summary.validation.of(summary.metric).pooled
    if found is None:
        raise ConfigError(
            f"--tune goes by {WORDS[summary.metric]}, which no client's validation part defines (all examples of one "
            "class, for instance): raise data.validation, or choose another evaluation.metric."
        )
    return found
