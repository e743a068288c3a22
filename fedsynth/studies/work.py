"""The runs and searches of a comparison, carried out: what is done is kept, the rest goes side by side on the cores."""

import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsynth.engines.local import choose_workers
from fedsynth.engines.pool import Pool
from fedsynth.errors import FedsynthError, UserError
from fedsynth.evaluation.results import RunSummary, TuningResult
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.runner import choose_device, run_experiment
from fedsynth.report.csv_files import read_rows
from fedsynth.studies.rows import folder_name
from fedsynth.studies.tuning import tune


@dataclass(frozen=True)
class Work:
    """How to go about it: `jobs` pieces side by side; None takes a run per core where that can be done."""

    progress: bool | None = False
    say: Callable[[str], None] = lambda text: None
    jobs: int | None = None

    def do(self, runs: Sequence[tuple[str, Experiment]]) -> None:
        """Carry out the runs that are not complete."""
        left = [(name, experiment) for name, experiment in runs if not _file(experiment).is_file()]
        jobs = min(self._jobs([experiment for _, experiment in left]), len(left))
        if jobs > 1:
            side_by_side([(name, partial(complete, on_one_core(e), False)) for name, e in left], jobs, self.say)
            return
        for number, (name, experiment) in enumerate(left, 1):
            self.say(f"[{number}/{len(left)}] {name}")
            complete(experiment, self.progress)

    def tune(self, folder: Path, tables: Mapping[str, Mapping[str, Any]], trials: int) -> dict[str, TuningResult]:
        """What the search chose for every row; the searches go side by side, the trials of one in their order."""
        left = {name: table for name, table in tables.items() if not (folder / f"{folder_name(name)}.json").is_file()}
        jobs = min(self._jobs([make_experiment(table) for table in left.values()]), len(left))
        if jobs > 1:
            pieces = [(f"tuning of {n}", partial(tune, folder, t, trials, _on_its_own, n)) for n, t in left.items()]
            side_by_side(pieces, jobs, self.say)
        return {n: tune(folder, t, trials, lambda e: complete(e, self.progress), n) for n, t in tables.items()}

    def _jobs(self, experiments: Sequence[Experiment]) -> int:
        if not experiments:
            return 1
        engine = experiments[0].engine
        cores, _ = choose_workers(None, choose_device(engine.device))
        if self.jobs is not None:
            return self.jobs if cores else 1  # where processes cannot be forked, one after the other
        return max(1, cores) if engine.workers is None and engine.name == "local" else 1


QUIETLY = Work()


def complete(experiment: Experiment, progress: bool | None) -> RunSummary:
    """The summary of a run: read if it is complete, otherwise made by resuming or by starting it."""
    path = experiment.runs / str(experiment.name)
    if _file(experiment).is_file():
        return summary_of(experiment)
    if (path / "manifest.json").is_file():
        return run_experiment(experiment, resume=path, progress=progress).summary
    if path.exists():  # killed while the folder was being made: nothing in it is worth keeping
        shutil.rmtree(path)
    return run_experiment(experiment, progress=progress).summary


def on_one_core(experiment: Experiment) -> Experiment:
    """The same experiment, its clients one after the other in one process."""
    return experiment.model_copy(update={"engine": experiment.engine.model_copy(update={"workers": 1})})


def _on_its_own(experiment: Experiment) -> RunSummary:
    return complete(on_one_core(experiment), False)


def summary_of(experiment: Experiment) -> RunSummary:
    """The summary of a complete run."""
    return RunSummary.model_validate_json(_file(experiment).read_text(encoding="utf-8"))


def summary_with_clients(experiment: Experiment, label: str = "") -> RunSummary:
    """The summary of a complete run, with a label and the chosen metric of every client on its own test part."""
    summary = summary_of(experiment)
    own = own_scores(_file(experiment).parent, summary)
    return summary.model_copy(update={"label": label, "per_client": own})


def own_scores(path: Path, summary: RunSummary) -> dict[str, float]:
    """The chosen metric of every client on its own test part, from the clients.csv of a run."""
    column = f"{summary.clients.view}/test/{summary.metric}"
    with (path / "clients.csv").open(newline="", encoding="utf-8") as file:
        return {row["client"]: float(row[column]) for row in read_rows(file) if row.get(column)}


def _file(experiment: Experiment) -> Path:
    return experiment.runs / str(experiment.name) / "summary.json"


def side_by_side(pieces: Sequence[tuple[str, Callable[[], object]]], jobs: int, say: Callable[[str], None]) -> None:
    """Do named pieces of work, each in a process of its own; the first failure ends the others and is raised."""
    pool = Pool[int](lambda place: pieces[place][1](), jobs, fresh=True)
    try:
        for done, ended in enumerate(pool.carry_out(deque(range(len(pieces)))), 1):
            name = pieces[ended.job][0]
            if ended.how == "died":
                raise FedsynthError(f"{name}: its process ended without a word ({ended.why}).")
            if ended.how != "done":
                raise (UserError if ended.mistake else FedsynthError)(f"{name}: {ended.why}")
            say(f"[{done}/{len(pieces)}] {name}")
    finally:
        pool.close()
