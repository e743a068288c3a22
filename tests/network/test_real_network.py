"""A real SuperLink and three real SuperNodes on this machine, with TLS and authentication.

One federation serves all tests of this file. What waits, waits for something to happen, never for a time to pass.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sites import DIGITS, site_file, tables

from fedsynth.errors import FedsynthError, UserError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import RunResult, resume_run, run_experiment
from fedsynth.network.deploy import Federation, write_federation
from fedsynth.network.loopback import Loopback, wait_for

SITES = ("0", "1", "2")
CNN = {"name": "cnn", "channels": [4, 6], "hidden": [8]}
NO_VALIDATION = {"every": 0, "final_clients": 1}  # fewer questions to the sites: each starts a process
LONG = 600  # seconds that a busy machine may need for what takes one on an idle one


class Network:
    """The federation, and how a test runs an experiment over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_federation(folder / "fed", Federation(SITES, tuple(DIGITS["shape"]), tuple(DIGITS["classes"])))
        for name in SITES:
            site_file(folder / "fed" / "sites" / name, name, name)
        self.loop = Loopback(folder / "fed")

    def experiment(self, name: str, **sections: Any) -> Any:
        engine = {"certificate": str(self.folder / "fed" / "server" / "ca.crt"), "sites": list(SITES), "wait": LONG}
        return make_experiment(
            tables(
                evaluation=NO_VALIDATION,
                runs=str(self.folder / "runs"),
                name=name,
                engine={"name": "flower", "superlink": self.loop.superlink, **engine},
                **sections,
            )
        )

    def server_program(self, name: str) -> int:
        """The process of the server program of a run."""
        return int((self.folder / "runs" / name / ".lock").read_text())

    def stop(self) -> None:
        self.loop.stop()
        for lock in self.folder.glob("runs/*/.lock"):  # a server program outlives the SuperLink it waits for
            pid = int(lock.read_text() or 0)
            if pid and b"flwr-serverapp" in _command(pid):
                os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("n"))
    try:
        with made.loop:
            yield made
    finally:
        made.stop()


def here(tmp_path: Path, **sections: Any) -> RunResult:
    return run_experiment(make_experiment(tables(runs=str(tmp_path), evaluation=NO_VALIDATION, **sections)))


def same(one: RunResult, other: RunResult) -> bool:
    assert one.weights is not None
    assert other.weights is not None
    assert set(one.weights) == set(other.weights)
    return all(torch.equal(entry, other.weights[name]) for name, entry in one.weights.items())


class Started(threading.Thread):
    """A run under way, and how it ended."""

    def __init__(self, experiment: Any) -> None:
        super().__init__(daemon=True)
        self.experiment, self.result, self.error = experiment, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = run_experiment(self.experiment)
        except Exception as error:
            self.error = error

    def after_round(self, number: int) -> None:
        """Wait until a round is done."""
        metrics = self.experiment.runs / self.experiment.name / "metrics.jsonl"
        wait_for(
            lambda: not self.is_alive() or (metrics.is_file() and metrics.read_text().count("\n") >= number),
            LONG,
            "the round did not come",
        )
        assert self.is_alive(), self.error

    def ended(self) -> RunResult:
        self.join(LONG)
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@pytest.mark.timeout(LONG * 2)
def test_fedavg_and_feddpms_give_the_bits_of_one_machine(network: Network, tmp_path: Path) -> None:
    train = {"rounds": 1, "local_epochs": 1}
    dpms: dict[str, Any] = {
        "model": CNN,
        "method": {"name": "feddpms", "quota": 6, "filter": "none"},
        "train": {"rounds": 2, "local_epochs": 1},
    }
    both: dict[str, dict[str, Any]] = {"fedavg": {"train": train}, "feddpms": dpms}
    # Side by side: most of the time of a run over a network is waiting.
    started = {name: Started(network.experiment(name, **sections)) for name, sections in both.items()}
    for name, sections in both.items():
        expected = here(tmp_path / name, **sections)
        there = started[name].ended()
        assert same(expected, there)
        assert there.summary.failed == 0
        assert json.loads((there.path / "summary.json").read_text()) == there.summary.as_dict()


# -- slower: about a minute each on an idle machine -----------------------------------------------------------------


def kill_part(network: Network, part: str) -> None:
    process = network.loop.parts.pop(part)
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(LONG * 2)
def test_updates_are_summed_securely(network: Network, tmp_path: Path) -> None:
    train = {"rounds": 1, "local_epochs": 1}
    sections: dict[str, Any] = {"train": train, "privacy": {"secure_aggregation": True}}
    there = run_experiment(network.experiment("secure", **sections))
    assert same(here(tmp_path, **sections), there)


@pytest.mark.slow
@pytest.mark.timeout(LONG * 2)
@pytest.mark.parametrize("secure", [False, True])
def test_the_closed_form_is_that_of_one_machine(network: Network, tmp_path: Path, secure: bool) -> None:
    method = {"name": "analytic", "dimension": 60}
    sections: dict[str, Any] = {"method": method, "privacy": {"secure_aggregation": secure}}
    there = run_experiment(network.experiment(f"closed-form-{secure}", **sections))
    assert same(here(tmp_path, **sections), there)


@pytest.mark.slow
@pytest.mark.timeout(LONG * 3)
def test_a_killed_server_program_is_resumed_with_the_same_bits(network: Network, tmp_path: Path) -> None:
    train = {"rounds": 3, "local_epochs": 1}
    method = {"name": "scaffold"}
    run = Started(network.experiment("killed", train=train, method=method))
    run.after_round(1)
    os.kill(network.server_program("killed"), signal.SIGKILL)
    with pytest.raises(FedsynthError, match="resume"):
        run.ended()
    resumed = resume_run(network.folder / "runs" / "killed")
    assert same(here(tmp_path, train=train, method=method), resumed)


@pytest.mark.slow
@pytest.mark.timeout(LONG * 3)
def test_a_killed_site_is_missed_and_comes_back(network: Network) -> None:
    train = {"rounds": 12, "local_epochs": 1, "quorum": 0.6, "deadline": 120}
    run = Started(network.experiment("missed", train=train))
    run.after_round(1)
    kill_part(network, "2")
    run.after_round(3)
    network.loop.start_site("2")
    result = run.ended()
    assert {row.client for row in result.summary.failures} == {"2"}
    assert result.summary.missed[0].client == "2"
    participation = json.loads((result.path / "participation.json").read_text())
    assert participation["answered"]["0"] == participation["asked"]["0"]
    assert 2 <= participation["answered"]["2"] < participation["asked"]["2"]


@pytest.mark.slow
@pytest.mark.timeout(LONG * 3)
def test_a_superlink_that_restarts_costs_nothing(network: Network, tmp_path: Path) -> None:
    train = {"rounds": 3, "local_epochs": 1}
    run = Started(network.experiment("restarted", train=train))
    run.after_round(1)
    kill_part(network, "superlink")
    network.loop.start_superlink()
    try:
        result = run.ended()
    except FedsynthError:  # the SuperLink took the server program along: the journal has the rest
        result = resume_run(network.folder / "runs" / "restarted")
    assert same(here(tmp_path, train=train), result)


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_a_key_that_is_not_registered_is_refused(network: Network) -> None:
    from fedsynth.network.certificates import write_key_pair

    stranger = network.folder / "fed" / "sites" / "stranger"
    site_file(stranger, "stranger", "0")
    write_key_pair(stranger / "site.key", network.folder / "stranger.pub")
    for name in ("ca.crt", "start.sh"):
        (stranger / name).write_bytes((network.folder / "fed" / "sites" / "0" / name).read_bytes())
    (stranger / "start.sh").chmod(0o755)
    refused_by(network, "stranger")


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_a_superlink_of_another_authority_is_refused(network: Network, tmp_path: Path) -> None:
    write_federation(tmp_path / "other", Federation(("0",), (1, 8, 8), tuple(DIGITS["classes"])))
    sites = network.folder / "fed" / "sites"
    wrong = sites / "wrong"
    site_file(wrong, "wrong", "0")
    for name in ("site.key", "ca.crt", "start.sh"):
        (wrong / name).write_bytes((tmp_path / "other" / "sites" / "0" / name).read_bytes())
    (wrong / "start.sh").chmod(0o755)
    refused_by(network, "wrong")
    with pytest.raises(UserError, match="did not start the run"):
        run_experiment(
            make_experiment(
                tables(
                    runs=str(tmp_path),
                    engine={
                        "name": "flower",
                        "superlink": network.loop.superlink,
                        "certificate": str(wrong / "ca.crt"),
                        "sites": ["0"],
                    },
                )
            )
        )


def refused_by(network: Network, name: str) -> None:
    """Start a node that must not get in: it never gets an id, and is gone or still trying when we look."""
    network.loop.start_site(name)
    log = network.loop.log(name)
    words = (b"Failed to activate SuperNode", b"CERTIFICATE_VERIFY_FAILED", b"SSL/TLS handshake error")
    try:
        wait_for(lambda: any(word in log.read_bytes() for word in words), LONG, f"{name} was not refused: {log}")
        assert b"SuperNode ID" not in log.read_bytes()
    finally:
        network.loop.stop_part(name)


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_plaintext_is_refused(network: Network) -> None:
    import socket

    host, port = network.loop.superlink.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as door:
        door.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not door.recv(1000).startswith(b"HTTP/1.1 200")
