"""Who was missing, as the summary says it, where the sites of a network told what they hold and where they did not."""

from __future__ import annotations

import json
from pathlib import Path

from folders import put, write_run

from fedsynth.components.class_counts import count_classes
from fedsynth.data.federated import DescribedData
from fedsynth.federation.participation import Participation
from fedsynth.federation.port import Failure
from fedsynth.federation.timeline import COLUMNS
from fedsynth.report.coverage import missed_clients, missed_words
from fedsynth.report.page import write_report

ABOUT = {"shape": [4], "classes": ["cat", "dog"], "fingerprint": "f"}
SITES = DescribedData({"a": ABOUT, "b": ABOUT})


def failing(*tasks: tuple[str, int]) -> Participation:
    """Site "b" did not answer these tasks in these rounds."""
    participation = Participation()
    for task, round in tasks:
        participation.failure(Failure("b", "not sent", "away"), task, round)
    return participation


def test_shares_are_told_where_all_sites_told_what_they_hold() -> None:
    (missed,) = missed_clients(failing(("train", 2)), SITES.with_counts({"a": [1, 5], "b": [3, 0]}), counted=True)
    assert missed.as_dict() == {"client": "b", "rounds": [2], "classes": {"cat": 0.75}}
    assert missed_words(missed).endswith("in round 2; it holds 75 % of class cat.")


def test_no_share_is_told_of_what_only_some_hold() -> None:
    for data in (SITES, SITES.with_counts({"b": [3, 0]})):
        (missed,) = missed_clients(failing(("train", 2)), data)
        assert missed.classes is None
        assert "the sites did not tell what they hold" in missed_words(missed)


def test_who_did_not_tell_its_counts_for_the_report_misses_nothing_by_that() -> None:
    known = SITES.with_counts({"a": [1, 5]})
    assert missed_clients(failing((count_classes.name, 0)), known, counted=True) == []
    twice = failing((count_classes.name, 0), (count_classes.name, 0))  # the second time the method asked
    assert missed_clients(twice, known, counted=True)[0].rounds == [0]
    assert missed_clients(failing((count_classes.name, 0)), SITES)[0].rounds == [0]


def test_a_manifest_holds_what_the_sites_told_and_no_more() -> None:
    assert "counts" not in SITES.manifest()
    assert SITES.with_counts({"b": [3, 0]}).manifest()["counts"] == {"per_client": {"b": {"train": [3, 0]}}}
    whole = SITES.with_counts({"a": [1, 5], "b": [3, 0]}).manifest()
    assert whole["examples"] == {"train": 9}
    assert whole["fingerprint"] == SITES.manifest()["fingerprint"]


def test_a_run_that_has_asked_for_counts_alone_has_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    put(run / "config.json", config | {"evaluation": {"class_counts": True}})
    manifest = json.loads((run / "manifest.json").read_text())
    put(run / "manifest.json", manifest | {"sites": {"0": ABOUT}, "counts": {}})
    lines = [",".join(COLUMNS), f"0,{count_classes.name},0,0,1,0,0,answered"]
    (run / "timeline.csv").write_text("\n".join(lines) + "\n")
    file, page = write_report([run])
    assert page.problems == []
    assert "The method has asked nobody yet." in file.read_text()
