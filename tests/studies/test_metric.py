"""Tuning, tables, controls and advice go by the metric that was chosen, and say so."""

from __future__ import annotations

import pytest

from fedsynth.errors import ConfigError
from fedsynth.evaluation.results import Best, DataSummary, RunSummary, Traffic
from fedsynth.evaluation.scores import ClientScores, GlobalScores, MeasureScores
from fedsynth.federation.methods import NOISE, WITHOUT_SYNTHESIS
from fedsynth.report.controls import control_verdicts, verdict_lines
from fedsynth.report.tables import comparison_rows, markdown, short_legend, summary_lines
from fedsynth.studies.recommendation import recommend
from fedsynth.studies.tuning import _score


def summary(method: str, auroc: float | None, accuracy: float, seed: int = 0, metric: str = "auroc") -> RunSummary:
    of = MeasureScores(
        n=0 if auroc is None else 2, mean=auroc, worst=auroc, worst_client="1", variance=1.0, pooled=auroc
    )
    scores = ClientScores(n=2, mean=accuracy, worst=accuracy, variance=0.0, pooled=accuracy, measures={"auroc": of})
    return RunSummary(
        method=method,
        seed=seed,
        metric=metric,
        test=GlobalScores(accuracy=accuracy, class_variance=0.0, measures={"auroc": auroc}),
        clients=scores,
        validation=scores,
        best=Best(round=1, score=0.5),
        rounds=1,
        bytes=Traffic(up=0, down=0),
        client_epochs=1.0,
        seconds=1.0,
        privacy=[],
        data=DataSummary(name="made", clients=2, split="s"),
    )


def test_tables_have_the_metric_in_their_cells_and_legends() -> None:
    runs = [summary("fedavg", 0.8, 0.5), summary("moon", 0.9, 0.4)]
    rows = comparison_rows(runs)
    assert [(row.metric, row.test, row.mean, row.worst) for row in rows] == [
        ("auroc", 0.8, 0.8, 0.8),
        ("auroc", 0.9, 0.9, 0.9),
    ]
    assert rows[1].difference == pytest.approx(0.1)
    assert "global: AUROC of the global model" in short_legend(rows)[0]
    assert "the clients' mean AUROC" in markdown(rows)
    plain = comparison_rows([summary("fedavg", 0.8, 0.5, metric="accuracy")])
    assert plain[0].test == 0.5
    assert "Global: the global model on the global test set" in markdown(plain)


def test_a_run_says_its_metric_beside_its_accuracy() -> None:
    lines = dict(summary_lines(summary("fedavg", 0.8, 0.5)))
    assert lines["global test"].startswith("AUROC 80.00%; accuracy 50.00%")
    assert lines["clients"].startswith("AUROC: mean 80.00%, worst 80.00% (client 1)")
    missing = dict(summary_lines(summary("fedavg", None, 0.5)))
    assert missing["global test"].startswith("AUROC not defined; accuracy 50.00%")


def test_controls_are_held_against_the_metric() -> None:
    runs = [
        summary("feddpms", 0.9, 0.1),
        summary("feddpms", 0.7, 0.2).model_copy(update={"label": "n", "base": "feddpms", "control": NOISE}),
        summary("feddpms", 0.6, 0.3).model_copy(update={"label": "w", "base": "feddpms", "control": WITHOUT_SYNTHESIS}),
    ]
    noise = next(found for found in control_verdicts(runs) if found.control == NOISE)
    assert (noise.gain, noise.control_gain) == (pytest.approx(30), pytest.approx(10))
    assert "points of AUROC on the global test" in verdict_lines([noise])[0]


def test_tuning_goes_by_the_metric_and_refuses_one_that_is_not_defined() -> None:
    assert _score(summary("fedavg", 0.8, 0.5)) == 0.8
    assert _score(summary("fedavg", 0.8, 0.5, metric="accuracy")) == 0.5
    with pytest.raises(ConfigError, match="--tune goes by AUROC, which no client's validation part defines"):
        _score(summary("fedavg", None, 0.5))


def test_advice_without_the_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose another evaluation.metric"):
        recommend({"local": {0: None}, "fedavg": {0: 0.5, 1: None}}, ["local", "fedavg"])
