"""What is said about a method and its controls, on made-up summaries."""

from __future__ import annotations

import pytest
from folders import summary

from fedsynth.evaluation.results import DataSummary, RunSummary
from fedsynth.report.controls import NOT_TRANSFER, ControlVerdict, control_verdicts, verdict_lines
from fedsynth.report.tables import comparison_rows


def runs(label: str, *accuracies: float | None) -> list[RunSummary]:
    """The summaries of a row, a seed per accuracy."""
    method = label.split(": ")[0]
    kept = summary(method, 0, 0.0, "same", ["0"], rounds=1, failures=[], classes=2)
    base, control = (method, label.removeprefix(f"{method}: ")) if label != method else ("", "")
    kept |= {"label": label, "base": base, "control": control, "clients": {"n": 0}, "client_epochs": 1, "seconds": 1}
    return [
        RunSummary.model_validate({**kept, "seed": seed, "test": {"accuracy": accuracy, "class_variance": 1.0}})
        for seed, accuracy in enumerate(accuracies)
    ]


def verdicts_of(**rows: tuple[float | None, ...]) -> dict[str, ControlVerdict]:
    """The verdicts on a method "made" with these controls, by control."""
    summaries = [s for name, values in rows.items() for s in runs(LABELS[name], *values)]
    return {verdict.control: verdict for verdict in control_verdicts(summaries)}


LABELS = {
    "made": "made",
    "without": "made: without synthesis",
    "noise": "made: noise",
    "real": "made: real samples",
    "logit": "logit_adjustment",
}


def test_gains_are_paired_by_seed() -> None:
    found = verdicts_of(made=(0.80, 0.60, 0.70), without=(0.78, 0.57, 0.66), noise=(0.79, 0.58, 0.67))
    noise = found["noise"]
    assert noise.n == 3
    assert noise.gain == pytest.approx(3.0)
    assert noise.gain_std == pytest.approx(1.0), "not the spread of the accuracies, which is ten times larger"
    assert noise.control_gain == pytest.approx(1.0)
    assert noise.control_gain_std == pytest.approx(0.0)
    assert noise.difference == pytest.approx(2.0)
    assert noise.difference_std == pytest.approx(1.0)
    assert found["without synthesis"].difference == found["without synthesis"].gain == noise.gain


@pytest.mark.parametrize(
    ("noise", "transfer"),
    [
        ((0.70, 0.70, 0.70), True),  # far below
        ((0.80, 0.80, 0.80), False),  # the same
        ((0.85, 0.85, 0.85), False),  # better than the method
        ((0.77, 0.80, 0.801), False),  # 0.97 points below, standard error 1.02
        ((0.78, 0.79, 0.80), True),  # 1 point below, standard error 0.58
        ((0.70, 0.85, 0.84), False),  # 0.33 points below, standard error 4.8
    ],
)
def test_noise_that_gives_as_much_is_named(noise: tuple[float, ...], transfer: bool) -> None:
    found = verdicts_of(made=(0.8, 0.8, 0.8), without=(0.7, 0.7, 0.7), noise=noise)["noise"]
    assert (found.verdict == NOT_TRANSFER) is not transfer
    [line] = [line for line in verdict_lines([found]) if "noise" in line]
    assert line.endswith("noise gives as much: the gain is not knowledge transfer") is not transfer


def test_one_seed_is_a_single_run_without_spread() -> None:
    found = verdicts_of(made=(0.8,), without=(0.7,), noise=(0.8,))
    assert {verdict.verdict for verdict in found.values()} == {"single run"}
    assert found["noise"].gain_std is None
    lines = verdict_lines(list(found.values()))[1:]
    assert all("single run" in line and "±" not in line and "n = 1" in line for line in lines)
    assert not any("knowledge" in line for line in lines)


def test_a_method_without_a_gain_is_told_so() -> None:
    found = verdicts_of(made=(0.8, 0.8), without=(0.81, 0.79), noise=(0.7, 0.7))
    assert found["without synthesis"].verdict == "no gain beyond the standard error"
    assert verdicts_of(made=(0.8, 0.8), without=(0.7, 0.71), noise=(0.7, 0.7))["without synthesis"].verdict == ""


def test_other_controls_and_logit_adjustment_inform_without_a_verdict() -> None:
    found = verdicts_of(made=(0.8, 0.8), without=(0.7, 0.7), real=(0.9, 0.92), logit=(0.85, 0.85))
    assert list(found) == ["without synthesis", "real samples", "logit_adjustment"]
    assert found["real samples"].difference == pytest.approx(-11.0)
    assert found["logit_adjustment"].control_gain == pytest.approx(15.0)
    assert found["real samples"].verdict == found["logit_adjustment"].verdict == ""


def test_every_line_has_the_gains_of_the_method_and_of_the_control() -> None:
    verdicts = verdicts_of(made=(0.80, 0.60), without=(0.78, 0.57), noise=(0.79, 0.58))
    legend, first, second = verdict_lines(list(verdicts.values()))
    assert "global test" in legend
    assert first == "made gains +2.50 ± 0.71 over its run without synthesis (n = 2)"
    assert second == (
        "made +2.50 ± 0.71, noise +1.00 ± 0.00 over the run without synthesis; difference +1.50 ± 0.71 (n = 2);"
        " noise gives less"
    )


def test_controls_without_a_run_to_gain_over_are_compared_directly() -> None:
    found = verdicts_of(made=(0.8, 0.8), noise=(0.8, 0.81))["noise"]
    assert (found.gain, found.control_gain) == (None, None)
    assert verdict_lines([found])[1].startswith("made − noise: -0.50 ± 0.71 (n = 2); noise gives as much")


def test_seeds_without_a_global_model_are_left_out() -> None:
    found = verdicts_of(made=(0.8, 0.6, 0.7), without=(0.7, 0.5, 0.6), noise=(None, 0.5, 0.6))
    assert found["noise"].n == 2
    assert found["without synthesis"].n == 3
    nothing = verdicts_of(made=(None,), without=(None,), noise=(None,))["noise"]
    assert nothing.n == 0
    assert "no accuracy on the global test" in verdict_lines([nothing])[1]


def test_without_controls_there_is_nothing_to_say() -> None:
    assert control_verdicts([*runs("fedavg", 0.5, 0.6), *runs("logit_adjustment", 0.5, 0.6)]) == []
    assert verdict_lines([]) == []


def test_a_table_has_a_row_per_label() -> None:
    rows = comparison_rows([*runs("made", 0.8, 0.6), *runs("made: noise", 0.5, 0.3), *runs("fedavg", 0.1, 0.1)])
    assert [row.method for row in rows] == ["made", "made: noise", "fedavg"]
    assert [row.test for row in rows] == pytest.approx([0.7, 0.4, 0.1])
    plain = runs("fedavg", 0.1)[0].model_copy(update={"label": ""})
    assert comparison_rows([plain])[0].method == "fedavg"


def test_the_share_made_worse_than_alone_is_taken_client_by_client_on_the_same_split():
    def run(label: str, seed: int, split: str, **accuracy: float) -> RunSummary:
        data = DataSummary(name="digits", clients=len(accuracy), split=split)
        return runs(label, 0.5)[0].model_copy(update={"seed": seed, "data": data, "per_client": accuracy})

    rows = comparison_rows(
        [
            run("new", 0, "x", a=0.5, b=0.9, c=0.7, d=0.1),
            run("new", 1, "y", a=0.9, b=0.9),
            run("local", 0, "x", a=0.6, b=0.8, c=0.7, e=0.1),
            run("local", 1, "y", a=0.8, b=0.8),
            run("stranger", 0, "z", a=0.0),
        ]
    )
    by_name = {row.method: row for row in rows}
    assert by_name["new"].worse == pytest.approx((1 / 3 + 0) / 2)
    assert by_name["local"].worse is None
    assert by_name["stranger"].worse is None
