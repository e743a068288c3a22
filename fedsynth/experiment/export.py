"""A run's record for other tools: MLflow or Weights & Biases, from the run folder, after the run.

Nothing leaves this machine unless the tool is set up to send it: where it writes is decided by its own environment
variables (MLFLOW_TRACKING_URI, WANDB_MODE …).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedsynth.errors import ConfigError
from fedsynth.report.artifacts import flatten, numbers_of
from fedsynth.report.reading import RunRecord, read_run

Tool = Literal["mlflow", "wandb"]


def export_run(path: Path, to: Tool, project: str = "fedsynth") -> str:
    """Hand the settings, the metrics of every round and the result over; says where they are."""
    run = read_run(path)
    settings = {key: value for key, value in flatten(run.config).items() if value is not None}
    ends = run.summary.model_dump(include={"test", "clients"}, exclude_unset=True) if run.summary else {}
    result = {f"final/{key}": value for key, value in numbers_of(ends).items()}
    return (_to_mlflow if to == "mlflow" else _to_wandb)(run, project, settings, result)


def _to_mlflow(run: RunRecord, project: str, settings: dict[str, object], result: dict[str, float]) -> str:
    try:
        import mlflow
    except ImportError:
        raise ConfigError("mlflow is not installed: pip install 'fedsynth[mlflow]'.") from None
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=run.name) as begun:
        mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        for row in run.metrics:
            mlflow.log_metrics(numbers_of(row.as_dict()), step=row.round)
        mlflow.log_metrics(result)
        return f"run {begun.info.run_id} of the MLflow experiment {project} at {mlflow.get_tracking_uri()}"


def _to_wandb(run: RunRecord, project: str, settings: dict[str, object], result: dict[str, float]) -> str:
    try:
        import wandb
    except ImportError:
        raise ConfigError("wandb is not installed: pip install 'fedsynth[wandb]'.") from None
    begun = wandb.init(project=project, name=run.name, config=settings, reinit="finish_previous")
    for row in run.metrics:
        begun.log(numbers_of(row.as_dict()), step=row.round)
    begun.summary.update(result)
    where = str(begun.dir)
    begun.finish()
    return f"a Weights & Biases run of {project}, kept in {where}"
