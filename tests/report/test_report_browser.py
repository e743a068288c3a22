"""Reports in a real Chromium: on a phone and on a desk, light and dark, by keyboard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium, faults_of, opened
from folders import add_additions, put, write_comparison, write_run

from fedsynth.federation.records import pictures
from fedsynth.report.page import write_report

NOTHING_WRONG = {
    "wider than the screen": 0,
    "texts over each other": [],
    "texts outside of their picture": [],
    "blocks over each other": [],
    "texts that are too faint": [],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    """A run with all that a report can show, a large one, an unfinished one with long names, and a comparison."""
    folder = tmp_path_factory.mktemp("reports")
    full = write_run(folder / "full", clients=10, rounds=8, pictures=3)
    names = [str(k) for k in range(10)]
    similar = np.random.default_rng(0).random((10, 10)).tolist()
    put(
        full / "records.json",
        {
            "similarity": {"kind": "matrix", "rows": names, "values": similar, "marks": [[0, 1], [3, 4]]},
            "groups": {"kind": "groups", "groups": {"A": names[:4], "B": names[4:]}},
            "weights": {"kind": "table", "columns": ["client", "weight"], "rows": [[n, 0.1] for n in names]},
            "pictures": pictures(
                {row: np.random.default_rng(1).random((10, 1, 8, 8)) for row in "ab"}, names, "Drawn."
            ),
        },
    )
    large = write_run(folder / "large", clients=100, rounds=100, pictures=100)
    odd = write_run(folder / f"odd-{'long' * 20}", clients=30, rounds=2, classes=40)
    manifest = json.loads((odd / "manifest.json").read_text())
    manifest["classes"] = [f"a class with a very long name {k}" for k in range(40)]
    put(odd / "manifest.json", manifest)
    (odd / "metrics.jsonl").write_text("{")
    runs = [
        write_run(folder / f"{method}-{seed}", seed=seed, method=method, accuracy=0.6 + 0.02 * place + 0.01 * seed)
        for place, method in enumerate(["fedavg", "feddpms", "a_method_with_a_long_name", "gandalf"])
        for seed in range(2)
    ]
    found = {name: write_report([path])[0] for name, path in (("full", full), ("large", large), ("odd", odd))}
    found["comparison"] = write_report(runs, folder / "comparison.html")[0]
    found["strip"] = write_report([with_strip(folder / "strip")])[0]
    found["strips"] = write_report([write_comparison(folder / "strips", failed=True)])[0]
    return found


def with_strip(path: Path) -> Path:
    """A run of many clients with long names and classes with long names, whose synthesis failed."""
    write_run(path, clients=40, rounds=2, classes=12, pictures=1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["classes"] = [f"ankle boot, kind {k}" for k in range(12)]
    manifest["counts"]["per_client"] = {f"hospital {n}": v for n, v in manifest["counts"]["per_client"].items()}
    put(path / "manifest.json", manifest)
    return add_additions(path, failed=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["full", "large", "odd", "comparison", "strip", "strips"])
def test_nothing_overlaps_overflows_or_is_complained_about(browser, reports, name, width, dark):
    with opened(browser, reports[name], width, dark) as (page, complaints):
        assert faults_of(page) == NOTHING_WRONG
        page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert faults_of(page) == NOTHING_WRONG, "with everything unfolded"
        headings = page.locator("main > section > h2").all_inner_texts()
        contents = page.locator("nav a").all_inner_texts()
        assert [heading for heading in headings if heading != "What is not there"] == contents
        assert len(contents) >= 10
        assert complaints == []


def test_a_large_report_opens_in_two_seconds(browser, reports):
    started = time.perf_counter()
    with opened(browser, reports["large"]) as (page, _):
        page.locator("footer").wait_for()
        taken = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
        assert taken < 2000
    assert time.perf_counter() - started < 20


def test_a_report_can_be_used_by_keyboard(browser, reports):
    with opened(browser, reports["full"]) as (page, _):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#main"
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.evaluate("part => part.open")
        names = page.evaluate("[...document.querySelectorAll('svg[role=img]')].map(it => it.getAttribute('role'))")
        assert set(names) == {"img"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["strip", "strips"])
def test_the_strip_comes_first_and_says_in_words_what_it_shows(browser, reports, name, dark):
    with opened(browser, reports[name], 390, dark) as (page, complaints):
        assert page.locator("main > section").first.get_attribute("id") == "strip"
        titles = page.locator("#strip svg[role=img] > title").all_text_contents()
        assert titles[:3] == ["1 What clients have", "2 With what was added", "3 The samples"]
        about = page.locator("#strip svg[role=img] > desc").all_text_contents()
        assert all(len(words) > 40 for words in about)
        assert page.locator("#strip .notice").first.is_visible()
        top, first = (page.locator(f"#strip {part}").first.bounding_box()["y"] for part in (".notice", "figure"))
        assert top < first
        assert complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_picture_of_the_strip_stands_alone(browser, reports, dark):
    with opened(browser, reports["strips"].with_name("strip.svg"), 780, dark) as (page, complaints):
        assert page.locator("svg[role=img]").count() == 5
        ground = page.evaluate("getComputedStyle(document.querySelector('.ground')).fill")
        assert (ground == "rgb(255, 255, 255)") is not dark
        assert page.evaluate("document.querySelectorAll('.part.added').length") > 20
        assert complaints == []
