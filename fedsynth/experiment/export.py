"""A run's record for other tools: MLflow or Weights & Biases, from the run folder, after the run.

Nothing leaves this machine unless the tool is set up to send it: where it writes is decided by its own environment
variables (MLFLOW_TRACKING_URI, WANDB_MODE …).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedsynth.errors import ConfigError
from fedsynth.report.artifacts import flat
from fedsynth.report.reading import RunRecord, read_run

Tool = Literal["mlflow", "wandb"]


def export_run(path: Path, to: Tool, project: str = "fedsynth") -> str:
    """Hand the settings, the metrics of every round and the result over; says where they are."""
    run = read_run(path)
    settings = {key: value for key, value in flat(run.config).items() if value is not None}
    rounds = [(int(row["round"]), _numbers(row)) for row in run.metrics if "round" in row]
    ends = {part: run.summary.get(part, {}) for part in ("test", "clients")}
    result = {f"final/{key}": value for key, value in _numbers(ends).items()}
    return (_to_mlflow if to == "mlflow" else _to_wandb)(run, project, settings, rounds, result)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in flat(row).items()
        if key not in ("round", "phase") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _to_mlflow(
    run: RunRecord,
    project: str,
    settings: dict[str, Any],
    rounds: list[tuple[int, dict[str, float]]],
    result: dict[str, float],
) -> str:
    try:
        import mlflow
    except ImportError:
        raise ConfigError("mlflow is not installed: pip install 'fedsynth[mlflow]'.") from None
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=run.name) as begun:
        mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        for round, numbers in rounds:
            mlflow.log_metrics(numbers, step=round)
        mlflow.log_metrics(result)
        return f"run {begun.info.run_id} of the MLflow experiment {project} at {mlflow.get_tracking_uri()}"


def _to_wandb(
    run: RunRecord,
    project: str,
    settings: dict[str, Any],
    rounds: list[tuple[int, dict[str, float]]],
    result: dict[str, float],
) -> str:
    try:
        import wandb
    except ImportError:
        raise ConfigError("wandb is not installed: pip install 'fedsynth[wandb]'.") from None
    begun = wandb.init(project=project, name=run.name, config=settings, reinit="finish_previous")
    for round, numbers in rounds:
        begun.log(numbers, step=round)
    begun.summary.update(result)
    where = str(begun.dir)
    begun.finish()
    return f"a Weights & Biases run of {project}, kept in {where}"
