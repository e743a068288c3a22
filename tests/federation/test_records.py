"""What a method may record for people, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedsynth.errors import FedsynthError
from fedsynth.federation import State
from fedsynth.federation.participation import Participation
from fedsynth.federation.records import LARGEST, Pictures, pictures, read_record
from fedsynth.federation.timeline import KEPT_ROWS, Timeline


def test_the_last_record_of_a_name_counts_and_knows_its_round(federate):
    fed = federate()
    fed.record("weights", {"kind": "table", "columns": ["client"], "rows": [["0"]]})
    for _ in fed.rounds("train", 2, State()):
        fed.record("weights", {"kind": "table", "columns": ["client"], "rows": [[np.float32(1.5)]]})
    kept = fed.participation.records["weights"]
    assert (kept["round"], kept["rows"]) == (2, [[1.5]])
    assert Participation.from_dict(fed.participation.as_dict()).records == fed.participation.records


def test_a_resumed_program_does_not_record_again_what_it_recorded_before(federate):
    def program(fed, rounds):
        fed.record("seen", {"kind": "table", "columns": ["when"], "rows": [["at the start"]]})
        for index in fed.rounds("train", rounds, State()):
            fed.record("seen", {"kind": "table", "columns": ["when"], "rows": [[index]]})

    program(federate("run"), 2)
    again = federate("run")
    program(again, 2)
    assert again.participation.records["seen"] == {"round": 2, "kind": "table", "columns": ["when"], "rows": [[2]]}


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "picture"},
        {"kind": "matrix", "rows": ["a"], "values": [[1.0, 2.0]]},
        {"kind": "matrix", "rows": ["a"], "values": [[float("nan")]]},
        {"kind": "matrix", "rows": ["a"], "values": [[1.0]], "marks": [[0, 1]]},
        {"kind": "table", "columns": ["a", "b"], "rows": [["1"]]},
        {"kind": "groups", "groups": {"a": object()}},
        {"kind": "pictures", "rows": ["a"], "columns": ["b"], "shape": [1, 2, 2], "pixels": "AAAA"},
        {"kind": "pictures", "rows": ["a"], "columns": ["b"], "shape": [1, 1, 3], "pixels": "A A*A"},
        {"kind": "pictures", "rows": [], "columns": ["b"], "shape": [1, 1, 3], "pixels": ""},
        {"kind": "table", "columns": ["a"], "rows": [["x" * LARGEST]]},
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(federate, value):
    with pytest.raises(FedsynthError, match=r'fed\.record\("odd"'):
        federate().record("odd", value)


def test_pictures_come_back_to_a_byte_and_large_ones_are_thinned_out(federate):
    fed, rng = federate(), np.random.default_rng(0)
    small, large = {"a": rng.random((2, 3, 5, 4)), "b": rng.random((2, 3, 5, 4))}, {"a": rng.random((1, 1, 200, 130))}
    fed.record("small", pictures(small, ["x", "y"], "two rows of two"))
    fed.record("large", pictures(large, ["x"], ""))
    kept = {name: read_record(value) for name, value in fed.participation.records.items()}
    assert all(isinstance(record, Pictures) for record in kept.values())
    assert np.abs(kept["small"].images() - np.stack(list(small.values()))).max() <= 0.5 / 255 + 1e-9
    assert kept["large"].shape == (1, 50, 33)


def test_a_timeline_is_bounded():
    timeline = Timeline()
    for round in range(KEPT_ROWS // 1000 + 2):
        timeline.add("train", round, (0.0, 0.0), (1.0, 0.0), map(str, range(1000)), {}, {})
    assert timeline.noted == len(timeline.take()) == KEPT_ROWS
    assert timeline.rows == []
