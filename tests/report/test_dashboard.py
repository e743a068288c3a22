"""The dashboard: live, read only, and blind to everything outside of its folder."""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium, faults_of, opened
from folders import put, write_run
from test_report_browser import NOTHING_WRONG

from fedsynth.errors import ConfigError
from fedsynth.report.dashboard import Dashboard, make_server

SECRET = "nobody may read this"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished, a failed and an interrupted run, a comparison, and things that must not be seen."""
    root = tmp_path / "runs"
    write_run(root / "done", clients=3)
    for name in ("broken", "stopped"):
        (write_run(root / name) / "summary.json").unlink()
    put(root / "broken" / "failed.json", {"message": "a client <failed>"})
    planned = []
    for seed in (0, 1):
        write_run(root / "cmp" / f"fedavg-s{seed}", seed=seed)
        planned.append({"label": "fedavg", "experiment": {"name": f"fedavg-s{seed}"}})
    planned.append({"label": "moon", "experiment": {"name": "../../outside"}})
    put(root / "cmp" / "comparison.json", {"planned": planned})
    outside = write_run(tmp_path / "outside", method=SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "done" / "samples").symlink_to(tmp_path, target_is_directory=True)
    (root / "done" / "versions.json").unlink()
    (root / "done" / "versions.json").symlink_to(outside / "config.json")
    return root


@pytest.fixture
def server(runs: Path) -> Iterator[Dashboard]:
    made = make_server(runs, port=0)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: Dashboard, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, dict[str, str]]:
    """One request with the path exactly as it is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), dict(reply.getheaders())


def test_all_runs_are_listed_with_their_state(server, runs):
    with (runs / "stopped" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, text, _ = ask(server, "/")
        assert code == 200
        for word in ("1 running", "3 finished", "1 failed", "/run/cmp/fedavg-s1", "3 of 3", "80.00 %"):
            assert word in text
        assert '<meta http-equiv="refresh" content="5">' in text
        assert '<meta http-equiv="refresh"' in ask(server, "/run/stopped")[1]
    assert "1 interrupted" in ask(server, "/")[1]
    assert SECRET not in text
    assert "/run/link" not in text


def test_a_run_and_a_comparison_are_shown_as_in_their_reports(server):
    code, text, _ = ask(server, "/run/done")
    assert code == 200
    assert "Who took part" in text
    assert "refresh" not in text
    assert "a client &lt;failed&gt;" in ask(server, "/run/broken")[1]
    code, text, _ = ask(server, "/run/cmp")
    assert code == 200
    assert 'href="/run/cmp/fedavg-s0"' in text
    assert "../../outside has not begun" in text
    assert SECRET not in text


def test_a_page_shows_what_a_run_has_written_since(server, runs):
    assert "80.0 % in round 3" in ask(server, "/run/stopped")[1]
    with (runs / "stopped" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 4, "validation": {"accuracy": 0.9}}) + "\n")
    assert "90.0 % in round 4" in ask(server, "/run/stopped")[1]


@pytest.mark.parametrize(
    "path",
    [
        "/run/../secret.txt",
        "/run/..",
        "/run/../outside",
        "/run/%2e%2e/outside",
        "/run/%2e%2e%2foutside",
        "/run/..%5coutside",
        "/run/done/../../outside",
        "/run/link",
        "/run/link/../../secret.txt",
        "/run/done/config.json",
        "/run/done/samples/secret.txt",
        "/run//etc/passwd",
        "/run/%2Fetc%2Fpasswd",
        "//etc/passwd",
        "/etc/passwd",
        "/run/",
        "/run/done%00",
        "/run/./done",
        "http://127.0.0.1/etc/passwd",
        "/" + "a" * 5000,
    ],
)
def test_nothing_but_the_listed_runs_can_be_asked_for(server, path):
    code, text, _ = ask(server, path)
    assert code == 404
    assert SECRET not in text
    assert "root:" not in text


def test_links_inside_a_run_are_not_followed(server):
    text = ask(server, "/run/done")[1]
    assert SECRET not in text
    assert "versions.json cannot be read: it is a link to another place" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_read_only(server, runs, method):
    before = sorted(path.as_posix() for path in runs.rglob("*"))
    assert ask(server, "/run/done", method)[0] == 501
    assert sorted(path.as_posix() for path in runs.rglob("*")) == before


def test_a_foreign_host_name_is_refused(server):
    assert ask(server, "/", host="evil.example")[0] == 403
    assert ask(server, "/", host="127.0.0.1.evil.example:80")[0] == 403
    assert ask(server, "/", host="localhost:1")[0] == 200
    assert ask(server, "/", host="[::1]:1")[0] == 200


def test_a_page_may_load_nothing_and_be_framed_by_nobody(server):
    _, _, headers = ask(server, "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Server"] == "fedsynth "
    code, text, headers = ask(server, "/", "HEAD")
    assert (code, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_it_listens_to_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.loopback
    with make_server(server.root, "0.0.0.0", 0) as open_to_all:
        assert not open_to_all.loopback


def test_a_folder_that_is_not_there_and_a_taken_port_are_sentences(runs, tmp_path):
    with pytest.raises(ConfigError, match="There is no folder"):
        make_server(tmp_path / "nowhere")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port 0"):
            make_server(runs, port=taken.getsockname()[1])


def test_it_looks_right_in_a_browser(server):
    with chromium() as browser:
        for width in (390, 1280):
            with opened(browser, server.address, width) as (page, complaints):
                assert faults_of(page) == NOTHING_WRONG
                page.get_by_role("link", name="cmp/fedavg-s0").click()
                page.get_by_role("heading", name="Who took part").wait_for()
                page.get_by_role("link", name="fedsynth").click()
                page.get_by_role("heading", name="Runs", exact=True).wait_for()
                assert complaints == []
