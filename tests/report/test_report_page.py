"""The report of whatever is in a run folder: whole, damaged, foreign, hostile or large."""

from __future__ import annotations

import html
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from folders import put, write_run

from fedsynth.errors import ConfigError
from fedsynth.report.page import make_page, write_report

SECTIONS = [
    "Result",
    "Accuracy over the rounds",
    "Clients",
    "Classes",
    "Measures",
    "Who has what",
    "Synthetic samples",
    "Quality of synthetic data",
    "What the method recorded",
    "Who took part",
    "Bytes and seconds",
    "What left the clients",
    "How to reproduce it",
]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Tags(HTMLParser):
    """The tags of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "my-run", pictures=2)


def test_a_report_has_every_section_and_names_nothing_missing(run):
    page = make_page([run])
    assert [part.title for part in page.sections] == SECTIONS
    assert page.problems == []
    text = page.html()
    for word in ("80.00 %", "single run", "The result leaves out client", "3.00 MB", "ab12", "made, round 3"):
        assert word in text
    assert "weights of the model after local training left the clients without a guarantee" in text
    assert f"fedsynth run {run / 'config.json'} name=again" in html.unescape(text)


def test_a_report_needs_nothing_from_elsewhere_and_runs_no_script(run):
    text = make_page([run]).html()
    tags = Tags(text).found
    assert not {"script", "iframe", "object", "form"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert value is not None
                assert value.startswith(("#", "data:")), (tag, value)
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")


def test_every_picture_says_in_words_what_it_shows(run):
    text = make_page([run]).html()
    charts = re.findall(r'<svg viewBox[^>]*role="img" aria-labelledby="(\w+) (\w+)">(.*?)</svg>', text, re.DOTALL)
    assert len(charts) >= 7
    for title, about, inside in charts:
        assert f'<title id="{title}">' in inside
        assert len(re.search(rf'<desc id="{about}">(.*?)</desc>', inside)[1]) > 30
    tags = Tags(text).found
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
    assert [tag for tag, _ in tags if tag in ("h1", "h2", "h3")][:2] == ["h1", "h2"]


def test_what_a_run_folder_says_is_text_and_never_markup(run):
    names = {"a": EVIL, "b": "b"}
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["classes"] = [EVIL] * 10
    manifest["counts"]["per_client"] = {EVIL: {"train": [1] * 10}}
    put(run / "manifest.json", manifest)
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"notes": [EVIL], "method": EVIL}
    summary["privacy"][0] |= {"what": EVIL, "clients": [EVIL]}
    put(run / "summary.json", summary)
    put(
        run / "records.json",
        {
            EVIL: {"kind": "matrix", "about": EVIL, "rows": [EVIL], "values": [[1.0]]},
            "groups": {"kind": "groups", "groups": {EVIL: [EVIL]}},
            "table": {"kind": "table", "columns": [EVIL], "rows": [[EVIL]]},
        },
    )
    with (run / "timeline.csv").open("a") as file:
        file.write(f'"{EVIL.replace(chr(34), chr(34) * 2)}",train,1,0,1,0,0,timeout\n')
    put(run / "versions.json", names)
    for seed in (0, EVIL):
        put(run / "summary.json", summary | {"seed": seed})
        page = make_page([run])
        text = page.html()
        assert not [tag for tag, _ in Tags(text).found if tag in ("script", "img")]
        assert text.count("&lt;script&gt;") > 10
        assert [problem for problem in page.problems if "seed: " in problem] == page.problems[: seed == EVIL]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("versions.json", None),
        ("manifest.json", "[1, 2]"),
        ("manifest.json", '{"classes": 3, "counts": {"per_client": {"0": {"train": "x"}}}}'),
        ("summary.json", '{"method": "fedavg"'),
        ("summary.json", '{"privacy": [{"kind": "release"}], "bytes": {"by_task": {"train": 3}}, "test": 5}'),
        ("clients.csv", "client,global/test/accuracy\n1,half\n"),
        ("clients.csv", None),
        ("participation.json", "null"),
        ("timeline.csv", None),
        ("timeline.csv", "client,task,round\n1,train\n"),
        ("records.json", '{"similarity": {"kind": "matrix", "rows": ["1"], "values": [[1, 2]]}}'),
        ("quality.json", '{"measures": [3]}'),
        ("samples/made-round-0001.safetensors", "not a tensor"),
        ("metrics.jsonl", None),
    ],
)
def test_a_damaged_or_missing_file_is_named_and_the_rest_is_shown(run, name, content):
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    page = make_page([run])
    assert [part.title for part in page.sections] == SECTIONS
    assert page.problems
    said = " ".join(page.problems)
    assert name in said or "could not be made" in said
    assert "What is not there" in page.html()


def test_a_half_written_line_of_metrics_is_left_out_and_named(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "valida')
    page = make_page([run])
    assert [problem for problem in page.problems if "metrics.jsonl, line 4" in problem]
    assert "80.0 % in round 3" in page.html()


def test_a_run_without_an_end_is_shown_as_far_as_it_came(run):
    for name in ("summary.json", "clients.csv", "participation.json"):
        (run / name).unlink()
    page = make_page([run])
    assert page.problems == []
    assert "The run was interrupted" in page.html()
    put(run / "failed.json", {"error": "QuorumError", "message": "too few <answered>"})
    assert "The run failed: too few &lt;answered&gt;" in make_page([run]).html()


def test_files_that_lead_out_of_the_folder_are_not_read(run, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "tell nobody"}')
    (run / "config.json").unlink()
    (run / "config.json").symlink_to(secret)
    page = make_page([run])
    assert "tell nobody" not in page.html()
    assert any("config.json" in problem and "link" in problem for problem in page.problems)


def test_a_large_run_stays_small_and_quick(tmp_path):
    run = write_run(tmp_path / "large", clients=100, rounds=100, pictures=100)
    started = time.perf_counter()
    file, page = write_report([run])
    assert time.perf_counter() - started < 10
    assert file.stat().st_size < 5_000_000
    assert page.problems == []


def test_several_runs_give_means_with_intervals_and_paired_differences(tmp_path):
    runs = []
    for seed, (one, other) in enumerate([(0.70, 0.80), (0.72, 0.83), (0.74, 0.83)]):
        runs.append(write_run(tmp_path / f"a{seed}", seed=seed, accuracy=one, split=f"s{seed}"))
        runs.append(write_run(tmp_path / f"b{seed}", seed=seed, accuracy=other, split=f"s{seed}", method="feddyn"))
    runs.append(write_run(tmp_path / "c", accuracy=0.9, split="other", method="moon"))
    page = make_page(runs)
    text = page.html()
    assert page.problems == []
    assert "72.00 ± 4.97" in text  # t(0.975, 2) · 2 / √3
    assert "+10.00 ± 2.48" in text  # differences 10, 11, 9
    assert "better: the interval excludes zero" in text
    assert "1, single run" in text
    assert "No paired difference for moon" in text
    assert "Not all rows of a seed ran on the same split" in text


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        make_page([tmp_path])


def test_a_report_that_cannot_be_written_is_a_sentence(run, tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report([run], tmp_path / "no" / "where.html")
