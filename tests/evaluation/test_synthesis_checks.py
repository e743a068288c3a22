"""The quick checks of synthetic samples, on points whose answer is plain."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsynth.evaluation.results import SynthesisCheck
from fedsynth.evaluation.synthesis import Beside, check_synthesis, nearly_identical, recognised_by_neighbours

NAMES = ["a", "b", "c"]


def three_clouds(seed: int, rows: int = 60) -> tuple[Tensor, Tensor]:
    """Points around three far corners, a class each."""
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 1, 2, 2, generator=torch.Generator().manual_seed(seed))
    return x + 5 * y[:, None, None, None], y


def checks(x: Tensor, y: Tensor, **other: object) -> dict[str, SynthesisCheck]:
    beside: dict[str, object] = {"training": three_clouds(1), "held_out": three_clouds(2)}
    found = check_synthesis((x, y), Beside(NAMES, [0, 1, 2], **(beside | other)))  # type: ignore[arg-type]
    return {check.check: check for check in found}


def test_samples_like_the_real_ones_pass_every_check():
    found = checks(*three_clouds(0))
    assert {check.mark for check in found.values()} == {"good"}
    assert found["classes covered"].words == "3 of 3"
    assert found["recognised"].value == 1.0
    assert 0.8 < found["diversity"].value < 1.2


def test_one_class_of_identical_samples_of_nothing_fails():
    x = torch.full((40, 1, 2, 2), 100.0)  # beyond class c, said to be a
    found = checks(x, torch.zeros(40, dtype=torch.int64))
    failed = {name for name, check in found.items() if check.mark == "failed"}
    assert failed == {"classes covered", "diversity", "recognised"}
    assert found["classes covered"].words == "1 of 3, none of: b, c"
    assert "again and again" in found["diversity"].words
    assert found["recognised"].value == 0.0


def test_copies_of_training_records_fail_and_identical_samples_say_nothing_about_copying():
    x, y = three_clouds(1)
    found = checks(x + 1e-4, y)["copies of records"]
    assert (found.mark, found.value) == ("failed", 1.0)
    assert "100% are all but identical" in found.words
    one = x[:1] + 0.9  # all nearer to that record than to any other, once
    assert checks(one.repeat(40, 1, 1, 1), y[:1].repeat(40))["copies of records"].mark == "good"


def test_a_class_that_nobody_has_is_not_asked_for():
    x, y = three_clouds(0)
    only = y < 2
    found = check_synthesis((x[only], y[only]), Beside(NAMES, [0, 1], held_out=three_clouds(2)))
    assert (found[0].mark, found[0].words) == ("good", "2 of 2")


def test_without_records_what_cannot_be_known_is_said_and_collapse_is_still_seen():
    found = checks(*three_clouds(0), training=None, held_out=None)
    assert {name for name, check in found.items() if check.mark == "unknown"} == {
        "diversity",
        "recognised",
        "copies of records",
    }
    x, y = three_clouds(0)
    corner = torch.stack([x[y == label][0] for label in range(3)])[y]
    assert checks(corner, y, training=None, held_out=None)["diversity"].mark == "failed"


def test_a_record_is_not_its_own_neighbour():
    x, y = three_clouds(0)
    assert recognised_by_neighbours(x, y) == 1.0
    assert recognised_by_neighbours(x, torch.randperm(60, generator=torch.Generator().manual_seed(0)) % 3) < 0.6


def test_near_copies_are_told_from_neighbours():
    real, _ = three_clouds(1)
    assert nearly_identical(real, real) == 1.0
    assert nearly_identical(three_clouds(0)[0], real) < 0.05
