"""A run's record for other tools: MLflow or Weights & Biases, from the run folder, after the run.

Nothing leaves this machine unless the tool is set up to send it: where it writes is decided by its own environment
variables (MLFLOW_TRACKING_URI, WANDB_MODE …).
"""

from pathlib import Path
from typing import Literal

from fedsynth.errors import ConfigError

Settings = dict[str, object]
Numbers = dict[str, float]
Rounds = list[tuple[int, Numbers]]
Tool = Literal["mlflow", "wandb"]


def export_run(path: Path, to: Tool, project: str = "fedsynth") -> str:
    """Hand the settings, the metrics of every round and the result over; says where they are."""
    from fedsynth.report.artifacts import flatten, numbers_of
    from fedsynth.report.reading import read_run

    run = read_run(path)
    settings = {key: value for key, value in flatten(run.config).items() if value is not None}
    rounds = [(row.round, numbers_of(row.as_dict())) for row in run.metrics]
    ends = run.summary.model_dump(include={"test", "clients"}, exclude_unset=True) if run.summary else {}
    result = {f"final/{key}": value for key, value in numbers_of(ends).items()}
    try:
        return (_to_mlflow if to == "mlflow" else _to_wandb)(run.name, project, settings, rounds, result)
    except ImportError as error:
        if error.name != to:
            raise
        raise ConfigError(f"{to} is not installed: pip install 'fedsynth[{to}]'.") from None


def _to_mlflow(name: str, project: str, settings: Settings, rounds: Rounds, result: Numbers) -> str:
    import mlflow

    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=name) as begun:
        mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        for round, numbers in rounds:
            mlflow.log_metrics(numbers, step=round)
        mlflow.log_metrics(result)
        return f"run {begun.info.run_id} of the MLflow experiment {project} at {mlflow.get_tracking_uri()}"


def _to_wandb(name: str, project: str, settings: Settings, rounds: Rounds, result: Numbers) -> str:
    import wandb

    begun = wandb.init(project=project, name=name, config=settings, reinit="finish_previous")
    for round, numbers in rounds:
        begun.log(numbers, step=round)
    begun.summary.update(result)
    where = str(begun.dir)
    begun.finish()
    return f"a Weights & Biases run of {project}, kept in {where}"
