"""How much can a method take? Runs it with growing shares of failing, late or malicious clients, and of wrong labels.

Every kind of trouble has one setting that grows; all runs have the same data, split and seeds. Runs go side by side on
the cores, and a folder that exists is gone on with.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError, nearest
from fedsynth.evaluation.results import StressRow
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import override
from fedsynth.experiment.runner import check_setting, load_data
from fedsynth.report.csv_files import write_csv
from fedsynth.report.plots import plot_stress
from fedsynth.studies import SHARES, TROUBLES
from fedsynth.studies.work import QUIETLY, Work, summary_of


@dataclass(frozen=True)
class Strained:
    """The rows of a stress test, one for each method, trouble and share, and where everything is kept."""

    rows: list[StressRow]
    path: Path


def stress_methods(
    tables: Mapping[str, Any],
    methods: Sequence[str],
    troubles: Sequence[str] = tuple(TROUBLES),
    shares: Sequence[float] = SHARES,
    seeds: int = 1,
    name: str = "stress",
    work: Work = QUIETLY,
) -> Strained:
    """Run every method under every trouble and share; a table and a picture."""
    for trouble in troubles:
        if trouble not in TROUBLES:
            raise ConfigError(f'There is no trouble called "{trouble}".{nearest(trouble, TROUBLES)}')
    if any(not 0 <= share <= 1 for share in shares):
        raise ConfigError(f"Shares must lie between 0 and 1, not {list(shares)}.")
    given = make_experiment({**tables, "method": {"name": methods[0]}})
    path = given.runs / name
    numbers = range(given.seed, given.seed + seeds)
    runs = {key: _experiment(tables, path, *key) for key in product(methods, troubles, shares, numbers)}
    first = next(iter(runs.values()))
    check_setting(first, load_data(first))
    path.mkdir(parents=True, exist_ok=True)
    distinct = {str(experiment.name): experiment for experiment in runs.values()}  # no trouble is the same for all
    work.do(list(distinct.items()))
    rows = [
        _row(*key, scores=[_accuracy(runs[*key, seed]) for seed in numbers])
        for key in product(methods, troubles, shares)
    ]
    write_csv(path / "stress.csv", [row.as_dict() for row in rows])
    plot_stress(path / "stress.png", rows)
    return Strained(rows, path)


def _experiment(
    tables: Mapping[str, Any], path: Path, method: str, trouble: str, share: float, seed: int
) -> Experiment:
    own = tables.get("method", {}) if tables.get("method", {}).get("name") == method else {}
    what = f"{trouble}-{share:g}" if share else "untroubled"
    common = {"method": {**own, "name": method}, "seed": seed, "runs": str(path), "name": f"{method}-{what}-s{seed}"}
    return make_experiment(override({**tables, **common}, [f"{TROUBLES[trouble]}={share}"] if share else []))


def _accuracy(experiment: Experiment) -> float:
    """On the global test set; for a method with personal models alone, the mean over the clients."""
    summary = summary_of(experiment)
    found = summary.clients.mean if summary.test.accuracy is None else summary.test.accuracy
    return math.nan if found is None else found


def _row(method: str, trouble: str, share: float, scores: Sequence[float]) -> StressRow:
    spread = statistics.stdev(scores) if len(scores) > 1 else None
    mean = statistics.mean(scores)
    return StressRow(method=method, trouble=trouble, share=share, accuracy=mean, std=spread, n=len(scores))
