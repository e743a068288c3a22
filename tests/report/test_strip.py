"""The repair strip: its numbers are those of the split and of what clients keep, and a failed synthesis comes first."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import add_additions, put, write_comparison, write_run
from safetensors.numpy import load_file

import fedsynth
from fedsynth.components.synthetic_store import KEPT
from fedsynth.data.dataset import Dataset
from fedsynth.experiment.runner import RunResult, load_data
from fedsynth.federation.payload import decode
from fedsynth.report import strip_blocks
from fedsynth.report.blocks import Gallery
from fedsynth.report.page import STRIP, make_page, write_report
from fedsynth.report.reading import read_run
from fedsynth.report.strip import Strip, sentence, strip_of

GAN = {"name": "gandalf", "gan_steps": 6, "gan_channels": 2, "gan_latent": 4, "gan_batch_size": 8, "static": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> RunResult:
    """A run of GANDALF with hasty GANs on a few skewed digits."""
    return fedsynth.run(
        GAN,  # type: ignore[arg-type]
        runs=tmp_path_factory.mktemp("runs"),
        name="gans",
        data={"name": "digits", "limit": 300},
        partition={"name": "dirichlet", "num_clients": 4, "alpha": 0.2},
        model={"name": "mlp", "hidden": [8]},
        train={"rounds": 1, "local_epochs": 1},
        engine={"workers": 1},
        progress=False,
    )


def strip(path: Path) -> Strip:
    found = strip_of(read_run(path))
    assert found is not None
    return found


def kept_labels(path: Path, client: str) -> np.ndarray:
    """The labels of the samples that a client keeps, from the newest version of its state on disk."""
    newest = max((path / "state" / client).glob("*.safetensors"))
    return decode(newest.read_bytes())["values"].get(KEPT, {}).get("labels", np.zeros(0, int))


def test_the_counts_are_those_of_the_split_and_of_what_clients_keep(done):
    found, data = strip(done.path), load_data(done.experiment)
    assert found.clients == list(data.clients)
    held, added = data.counts(), [np.bincount(kept_labels(done.path, c), minlength=10) for c in data.clients]
    assert found.held == held.tolist()
    assert found.added == [row.tolist() for row in added]
    assert np.sum(added) > 0
    assert found.missing(after=False) == pytest.approx((held == 0).sum(1).mean())
    assert found.missing(after=True) == pytest.approx(((held == 0) & (np.array(added) == 0)).sum(1).mean())
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert found.missing(after=False) == pytest.approx(manifest["skew"]["missing_classes_mean"])


def test_the_sentence_says_both_numbers_and_how_many_samples(done):
    found = strip(done.path)
    before, after = (f"{found.missing(when):.1f}".removesuffix(".0") for when in (False, True))
    total = sum(map(sum, found.added))
    assert sentence(found) == (
        f"{before} of 10 classes missing → {after} (mean over 4 clients), by {total:,} synthetic samples."
    )


def test_the_real_means_are_those_of_the_training_examples(done):
    kept = load_file(done.path / "samples" / "real-class-means.safetensors")
    pooled: Dataset = load_data(done.experiment).pooled("train")
    for image, label in zip(kept["images"], kept["labels"], strict=True):
        expected = pooled.x[pooled.y == label].astype(float) / (255 if pooled.x.dtype == np.uint8 else 1)
        assert image == pytest.approx(expected.mean(0), abs=1e-6)
    assert sorted(kept["labels"].tolist()) == sorted(set(pooled.y.tolist()))


def test_the_strip_opens_the_report_and_is_a_picture_of_its_own(done):
    page = make_page([done.path])
    assert page.sections[0].id == STRIP
    text = page.html()
    assert text.index('id="strip"') < text.index('id="result"')
    assert "<script" not in text
    [picture] = [done.path / "strip.svg"]
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for title in ("1 What clients have", "2 With what was added", "3 The samples"):
        assert title in titles
    assert "4 What it is worth" not in titles, "a single run does not know"
    assert sentence(strip(done.path)) in root.attrib["aria-label"]


def test_every_part_of_a_bar_is_as_long_as_its_count(done):
    found = strip(done.path)
    [gallery] = [b for b in strip_blocks.run_strip(read_run(done.path)).blocks if isinstance(b, Gallery)]
    first, second = (figure.svg for figure in gallery.figures[:2])
    for drawn, rows in ((first, found.held), (second, [*zip(found.held, found.added, strict=True)])):
        parts = re.findall(r'<rect class="c(\d) part( added)?".*?width="([\d.]+)".*?<title>(\d+) ', drawn)
        counts = [int(count) for *_, count in parts]
        assert sum(counts) == sum(np.ravel([np.ravel(row) for row in rows]))
        widths = [float(width) for _, _, width, _ in parts]
        for row in rows:
            share = [count for pair in zip(*np.atleast_2d(row), strict=True) for count in pair if count]
            taken, widths = widths[: len(share)], widths[len(share) :]
            assert taken == pytest.approx([sum(taken) * count / sum(share) for count in share], abs=0.02)


def test_a_resumed_run_records_the_same_and_checks_the_same(done, tmp_path):
    copy = shutil.copytree(done.path, tmp_path / "copy")
    for name in ("summary.json", "records.json", "report.html", "strip.svg"):
        (copy / name).unlink()
    again = fedsynth.resume(copy, progress=False)
    assert (copy / "records.json").read_text() == (done.path / "records.json").read_text()
    assert again.summary.synthesis == done.summary.synthesis
    assert (copy / "strip.svg").exists()


def test_a_run_that_adds_nothing_has_no_strip(tmp_path):
    page = make_page([write_run(tmp_path / "plain")])
    assert page.sections[0].id == "result"
    write_report([tmp_path / "plain"])
    assert not (tmp_path / "plain" / "strip.svg").exists()


def words_of(path: Path) -> list[str]:
    """What the strip of a run says in words."""
    blocks = strip_blocks.run_strip(read_run(path)).blocks
    return [text for block in blocks for text in getattr(block, "texts", [])]


def test_a_failed_synthesis_is_said_before_the_pictures_and_a_good_one_after(tmp_path):
    good, bad = (
        add_additions(write_run(tmp_path / name, pictures=1), failed=name == "bad") for name in ("good", "bad")
    )
    assert words_of(bad)[0].startswith("✗ FAILED recognised: ")
    assert words_of(good)[0].startswith("4.8 of 10 classes missing → 0 (mean over 4 clients), by 459")
    assert words_of(good)[1].startswith("✓ ")


def test_over_a_network_the_counts_that_were_released_stand_in_and_it_says_so(tmp_path):
    path = add_additions(write_run(tmp_path / "net", clients=2, classes=3), failed=False)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["counts"] = {"per_client": {}}
    put(path / "manifest.json", {**manifest, "sites": {"0": {}, "1": {}}})
    record: dict[str, Any] = {"kind": "additions", "what": "synthetic samples", "basis": "planned", "noise": 1.0}
    record |= {"clients": ["0", "1"], "added": [[0, 9, 8], [7, 0, 0]], "held": [[20, 2, 0], [0, 30, 40]]}
    put(path / "records.json", {"what was added": record})
    found = strip(path)
    assert (found.missing(after=False), found.missing(after=True)) == (1.5, 0.0), "2 of σ = 1 may be nothing"
    text = make_page([path]).html()
    assert "with noise of σ = 1 on each" in text
    assert "Not counted at the clients" in text
    put(path / "records.json", {"what was added": {**record, "basis": "unknown", "added": []}})
    assert sentence(strip(path)).endswith("how many, only the sites know.")
    put(path / "records.json", {"what was added": {**record, "held": []}})
    assert "they did not tell" in sentence(strip(path))
    assert "1 What clients have" not in make_page([path]).html()


def test_what_the_server_trains_on_is_a_bar_of_its_own(tmp_path):
    path = write_run(tmp_path / "tuned", classes=3)
    record = {"kind": "additions", "what": "synthetic samples", "basis": "exact", "clients": ["server"]}
    put(path / "records.json", {"what the server trains on": {**record, "added": [[4, 4, 4]]}})
    assert sentence(strip(path)) == "Clients train on their own data; the server trains on 12 synthetic samples."
    assert "4 added of class class 1" in make_page([path]).html()


@pytest.mark.parametrize("added", [[[1]], [[1, 2, 3], [1, 2, -3]], "x", [[1, 2, 3]]])
def test_a_damaged_record_leaves_the_rest_of_the_report(tmp_path, added):
    path = write_run(tmp_path / "odd", clients=2, classes=3)
    record = {"kind": "additions", "what": "synthetic samples", "basis": "exact", "clients": ["0", "1"]}
    put(path / "records.json", {"what was added": {**record, "added": added}})
    page = make_page([path])
    assert page.problems
    assert "Accuracy over the rounds" in page.html()


def test_a_comparison_opens_with_the_first_row_that_adds_data_and_what_it_is_worth(tmp_path):
    folder = write_comparison(tmp_path / "cmp")
    page = make_page([folder])
    assert page.sections[0].id == STRIP
    text = page.html()
    found = re.search(r"<svg[^>]*>\s*<title[^>]*>4 What it is worth</title>.*?</svg>", text, re.DOTALL)
    assert found
    shown = re.findall(r'<text x="[\d.]+" y="[\d.]+" text-anchor="end">([^<]+)</text>', found[0])
    assert [*zip(shown[::2], shown[1::2], strict=True)] == [
        ("fedavg", "60.5"),
        ("the same with noise", "62.5"),
        ("the same, no samples", "64.5"),
        ("gandalf", "70.5"),
        ("half as many", "68.5"),
        ("the same, real ones", "72.5"),
    ]
    assert "Shown is gandalf, seed 0. half as many adds data too" in text
    write_report([folder])
    assert "4 What it is worth" in (folder / "strip.svg").read_text(encoding="utf-8")


def test_a_failed_row_of_a_comparison_is_named_first(tmp_path):
    folder = write_comparison(tmp_path / "cmp", failed=True)
    text = make_page([folder]).html()
    assert text.index("✗ FAILED synthesis of gandalf, seed 0: recognised") < text.index("1 What clients have")
