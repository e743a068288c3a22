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
from folders import put, write_run

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
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["full", "large", "odd", "comparison"])
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
