"""A run's record for other tools: MLflow or Weights & Biases, from the run folder, after the run.

Nothing leaves this machine unless the tool is set up to send it: where it writes is decided by its own environment
variables (MLFLOW_TRACKING_URI, WANDB_MODE …).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsynth.errors import ConfigError

if TYPE_CHECKING:
    from fedsynth.report.reading import RunRecord

Tool = Literal["mlflow", "wandb"]


@dataclass(frozen=True)
class Export:
    """What other tools are told of a run."""

    name: str
    settings: dict[str, object]
    rounds: list[tuple[int, dict[str, float]]]
    result: dict[str, float]


def export_run(path: Path, to: Tool, project: str = "fedsynth") -> str:
    """Hand the settings, the metrics of every round and the result over; says where they are."""
    from fedsynth.report.reading import read_run

    export = _read_export(read_run(path))
    try:
        return _to_mlflow(export, project) if to == "mlflow" else _to_wandb(export, project)
    except ImportError as error:
        if error.name != to:
            raise
        raise ConfigError(f"{to} is not installed: pip install 'fedsynth[{to}]'.") from None


def _read_export(run: RunRecord) -> Export:
    from fedsynth.report.artifacts import flatten, numbers_of

    settings = {key: value for key, value in flatten(run.config).items() if value is not None}
    rounds = [(row.round, numbers_of(row.as_dict())) for row in run.metrics]
    ends = run.summary.model_dump(include={"test", "clients"}, exclude_unset=True) if run.summary else {}
    return Export(run.name, settings, rounds, {f"final/{key}": value for key, value in numbers_of(ends).items()})


def _to_mlflow(export: Export, project: str) -> str:
    import mlflow

    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=export.name) as begun:
        mlflow.log_params({key: str(value)[:500] for key, value in export.settings.items()})
        for round, numbers in export.rounds:
            mlflow.log_metrics(numbers, step=round)
        mlflow.log_metrics(export.result)
        return f"run {begun.info.run_id} of the MLflow experiment {project} at {mlflow.get_tracking_uri()}"


def _to_wandb(export: Export, project: str) -> str:
    import wandb

    begun = wandb.init(project=project, name=export.name, config=export.settings, reinit="finish_previous")
    for round, numbers in export.rounds:
        begun.log(numbers, step=round)
    begun.summary.update(export.result)
    where = str(begun.dir)
    begun.finish()
    return f"a Weights & Biases run of {project}, kept in {where}"
