"""The harness of the studies keeps what earlier runs found."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import harness

    yield harness
    sys.modules.pop("harness")


def test_a_row_whose_runs_are_gone_stays_and_more_seeds_win(harness, tmp_path):
    target = tmp_path / "table.csv"
    parts = [harness.Part("part", dict, {"first": {}, "second": {}})]

    def line(row, late, n):
        return {"part": "part", "row": row, "late": late, "n": n}

    harness.save(parts, [line("second", 2.0, 3), line("dropped from the plan", 9.0, 3)], target)
    harness.save(parts, [line("first", 1.0, 1), line("second", 5.0, 1)], target)
    harness.save(parts, [line("first", 4.0, 1)], target)
    found = [(of["row"], float(of["late"]), int(of["n"])) for of in harness.read_table(target)]
    assert found == [("first", 4.0, 1), ("second", 2.0, 3)]


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study

    monkeypatch.setattr(study, "RESULTS", tmp_path)
    yield study
    sys.modules.pop("study")


def test_margins_are_paired_by_seed_and_evaluated_by_their_interval(study, tmp_path):
    (tmp_path / "combinations.csv").write_text(
        f'part,row,seeds\nevaluated,"{study.COMBINATION}",80 82 84\nevaluated,GANDALF,79 81 83.1\n'
        "evaluated,feddyn,70 82 83\n"
        "tried,interior points,1 1 1\n"
    )
    lines = {line["method"]: line for line in study.margins()}
    assert set(lines) == {"GANDALF", "feddyn"}, "what has not run in this setting is left out"
    assert lines["GANDALF"]["the combination is better by"] == "+0.97 ± 0.14"
    assert lines["GANDALF"]["more than its interval"] == "yes"
    assert lines["feddyn"]["each seed"] == "+10.00 +0.00 +1.00"
    assert lines["feddyn"]["more than its interval"] == "no"


@pytest.mark.parametrize(
    ("seeds", "verdict"),
    [
        ("81 83 85", "reproduced"),
        ("80.2 82.2 84.3", "weaker"),
        ("89 81 84", "weaker: within its interval"),
        ("81 – –", "there, in a single run"),
        ("79 81 83", "absent, and the opposite holds"),
        ("", "has not run"),
    ],
)
def test_verdicts(study, tmp_path, seeds, verdict):
    claim = study.Claim("paper", "effect", 2.0, "table", "part", "ours", "theirs", "seeds", "", 1)
    (tmp_path / "table.csv").write_text(f"part,row,seeds\npart,ours,{seeds}\npart,theirs,80 82 84\n")
    assert study.verdict(claim)["verdict"] == verdict


@pytest.fixture
def convergence(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import convergence

    yield convergence
    sys.modules.pop("convergence")


CURVE = [0.1, 0.6, 0.2, 0.5, 0.5, 0.5, 0.55, 0.6]


def test_a_lucky_round_crosses_first_and_a_mean_later(convergence):
    assert convergence.first_crossing(CURVE, 0.5) == 2
    assert convergence.steady_crossing(CURVE, 0.5) == 8  # (.5 + .5 + .5 + .55 + .6) / 5
    assert convergence.steady_crossing(CURVE, 0.45) == 6
    assert convergence.first_crossing(CURVE, 0.9) is None
    assert convergence.steady_crossing(CURVE, 0.9) is None
    assert convergence.steady_crossing(CURVE[:4], 0.1) is None


def test_change_from_round_to_round(convergence):
    assert convergence.mean_change([0.1, 0.3, 0.2]) == pytest.approx(0.15)
    assert convergence.mean_change([0.4]) == 0


@pytest.fixture
def burn_in(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import burn_in

    yield burn_in
    sys.modules.pop("burn_in")


SHORT = {
    "data": {"name": "digits", "limit": 200},
    "partition": {"name": "dirichlet", "num_clients": 4, "alpha": 0.5},
    "model": {"name": "zda_cnn", "channels": [4, 4]},
    "train": {"rounds": 4, "local_epochs": 1, "batch_size": 16, "fraction": 0.5},
    "evaluation": {"test_curve": True},
}
ROWS = {
    "fedavg": {"name": "fedavg", "local_data": "own"},
    "ZDAC": {"name": "fed_zdac", "start_round": 3, "steps": 2, "per_class": 1},
    "ZDAS": {"name": "fed_zdas", "start_round": 3, "steps": 2, "per_class": 1, "source": "ensemble", "store": 2},
}


def test_rows_that_go_on_from_shared_rounds_have_the_bits_of_runs_of_their_own(harness, burn_in, tmp_path):
    """Weights and every line of the metrics but its seconds; the shared row, too, which stopped on its way."""
    forked = {"first": ("fedavg",), "shared": "fedavg", "burn_in": 2, "forked": ("ZDAC", "ZDAS")}
    part, alone = harness.Part("part", lambda: SHORT, ROWS, **forked), harness.Part("part", lambda: SHORT, ROWS)
    for row in ROWS:
        (run,) = [run for run in harness.planned([part], row) if run.seed == 0]
        table, kept, rounds = run.job(tmp_path / "shared")
        assert (kept is not None, rounds) == (True, 2 if row == "fedavg" else 0)
        harness.complete(table, kept, rounds)
        harness.complete(alone.experiment(row, 0, tmp_path / "alone"))
        one, other = (tmp_path / where / part.folder(row, 0) for where in ("shared", "alone"))
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        curves = [harness.curve_of(part.experiment(row, 0, tmp_path / where)) for where in ("shared", "alone")]
        for lines in curves:
            assert [line["round"] for line in lines] == [1, 2, 3, 4]
            for line in lines:
                del line["seconds"]
        assert curves[0] == curves[1]
    steps = (tmp_path / "shared" / "part-fedavg-s0-after-2" / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == 2


def test_only_the_method_may_differ_from_the_shared_rounds(harness, burn_in, tmp_path):
    from fedsynth.errors import ConfigError

    forked = {"first": ("fedavg",), "shared": "fedavg", "burn_in": 1, "forked": ("ZDAC",)}
    sections = {"ZDAC": {"train": {**SHORT["train"], "lr": 0.3}}}
    part = harness.Part("part", lambda: SHORT, ROWS, sections=sections, **forked)
    for row in ("fedavg", "ZDAC"):
        (run,) = [run for run in harness.planned([part], row) if run.seed == 0]
        if row == "fedavg":
            burn_in.keep_after(run.job(tmp_path)[0], 1, run.job(tmp_path)[1])
            continue
        with pytest.raises(ConfigError, match="in more than its method: train"):
            harness.complete(*run.job(tmp_path))
        assert not (tmp_path / part.folder(row, 0)).exists()
    with pytest.raises(ValueError, match="must be in `first`"):
        harness.Part("part", lambda: SHORT, ROWS, forked=("ZDAC",))
