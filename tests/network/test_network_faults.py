"""What goes wrong on a network, on a Grid in one process: every site gets a reply or a typed failure, in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from grids import InProcessGrid, error_reply
from test_network_parity import network_folder, over_a_grid, sections

from fedsynth.engines.flower import FlowerEngine, connected
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.federation.federation import Federation
from fedsynth.federation.host import TaskHost
from fedsynth.federation.state import Policy, QuorumError
from fedsynth.federation.store import StateStore
from fedsynth.network.client_app import SiteApp
from fedsynth.network.door import BrokenOffError, ClosedDoorError
from fedsynth.network.serve import Nobody, serve_run
from fedsynth.network.site_config import open_site, read_site
from fedsynth.report.coverage import missed_words

Files = Callable[..., dict[str, Path]]
SECRET = "Jane Doe, born 1970"


class Count(Reply):
    times: int = leaves("how often the task has run here")


@task
def nt_count(client: Client, fail: str = "") -> Count:
    client.state["times"] = client.state.get("times", 0) + 1
    if fail == client.id:
        raise ValueError(SECRET)
    return client.release(Count(times=client.state["times"]))


@pytest.fixture
def grid(site_files: Files) -> InProcessGrid:
    return InProcessGrid(site_files())


def federation(grid: InProcessGrid, tmp_path: Path, **policy: float) -> Federation:
    own = LocalEngine(TaskHost(Nobody(), StateStore(tmp_path / "own")))
    engine = FlowerEngine(grid, "run-1", own, pause=0.01)
    schema = open_site(read_site(grid.files["0"])).data.schema
    return Federation(engine, ["0", "1", "2"], schema, policy=Policy(**{"quorum": 0.0, **policy}))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, "crashed"),
        (2, "task error"),
        (3, "lost"),
        (4, "lost"),
        (5, "lost"),
        (7, "not sent"),
        (8, "crashed"),
        (99, "lost"),
    ],
)
def test_flowers_errors_are_told_apart(code: int, kind: str, grid: InProcessGrid, tmp_path: Path) -> None:
    def spoil(name: str, request: Message, reply: Message) -> list[Message]:
        return [error_reply(request, code, f"<class 'KeyError'>:<'{SECRET}'>")] if name == "1" else [reply]

    grid.spoil = spoil
    replies = federation(grid, tmp_path).broadcast(nt_count)
    assert set(replies) == {"0", "2"}
    assert replies.failures["1"].kind == kind
    assert SECRET not in str(replies.failures["1"])


def test_a_site_that_is_not_connected_is_not_asked(grid: InProcessGrid, tmp_path: Path) -> None:
    grid.offline = {"2"}
    replies = federation(grid, tmp_path).broadcast(nt_count)
    assert {name: failure.kind for name, failure in replies.failures.items()} == {"2": "not sent"}
    assert ("2", "query.test_network_faults__nt_count") not in grid.delivered


def test_a_site_that_does_not_answer_is_given_up_at_the_deadline(grid: InProcessGrid, tmp_path: Path) -> None:
    grid.spoil = lambda name, request, reply: [] if name == "0" else [reply]
    began = time.monotonic()
    replies = federation(grid, tmp_path, deadline=0.3).broadcast(nt_count)
    assert 0.3 <= time.monotonic() - began < 5
    assert replies.failures["0"].kind == "timeout"
    assert set(replies) == {"1", "2"}
    assert all(message.metadata.ttl > 0.3 for message in grid.pushed)


def test_a_superlink_that_is_away_does_not_hold_a_deadline_up(grid: InProcessGrid, tmp_path: Path) -> None:
    grid.pull_messages = lambda ids: time.sleep(60) or []  # type: ignore[method-assign]
    began = time.monotonic()
    replies = federation(grid, tmp_path, deadline=0.2).broadcast(nt_count)
    assert time.monotonic() - began < 10
    assert {failure.kind for failure in replies.failures.values()} == {"timeout"}


def test_a_late_answer_changes_nothing(grid: InProcessGrid, tmp_path: Path) -> None:
    late: list[Message] = []

    def spoil(name: str, request: Message, reply: Message) -> list[Message]:
        if name == "0" and not late:
            late.append(reply)
            return []
        return [reply]

    grid.spoil = spoil
    fed = federation(grid, tmp_path, deadline=0.2)
    assert "0" in fed.broadcast(nt_count).failures
    grid.waiting["m1"] = late  # here it comes
    assert fed.broadcast(nt_count)["0"].times == 1  # from the state that the server accepted: none


def test_the_first_of_two_answers_counts(grid: InProcessGrid, tmp_path: Path) -> None:
    grid.spoil = lambda name, request, reply: [reply, error_reply(request, 8), reply]
    replies = federation(grid, tmp_path).broadcast(nt_count)
    assert not replies.failures
    assert [reply.times for reply in replies.values()] == [1, 1, 1]


def test_an_answer_to_another_request_is_refused(grid: InProcessGrid, tmp_path: Path) -> None:
    fed = federation(grid, tmp_path)
    kept: dict[str, Message] = {}

    def spoil(name: str, request: Message, reply: Message) -> list[Message]:
        first = kept.setdefault(name, reply)
        return [Message(first.content, reply_to=request)]

    grid.spoil = spoil
    assert not fed.broadcast(nt_count).failures
    assert "answers another request" in fed.broadcast(nt_count).failures["1"].message


def test_a_failed_task_is_rolled_back_and_its_text_stays(grid: InProcessGrid, tmp_path: Path) -> None:
    fed = federation(grid, tmp_path)
    assert fed.broadcast(nt_count)["1"].times == 1
    failed = fed.broadcast(nt_count, fail="1")
    assert failed.failures["1"].kind == "task error"
    assert failed.failures["1"].message.startswith("ValueError: ")
    assert SECRET not in f"{failed.failures['1']}{failed.failures['1'].traceback}"
    log = grid.files["1"].with_name("state") / "site.log"
    assert SECRET in log.read_text()
    assert fed.broadcast(nt_count)["1"].times == 2  # the failed one left nothing


def test_the_same_request_asked_twice_runs_once(grid: InProcessGrid, tmp_path: Path) -> None:
    one, other = federation(grid, tmp_path), federation(grid, tmp_path)  # the other: a resumed server program
    assert one.broadcast(nt_count)["2"].times == other.broadcast(nt_count)["2"].times == 1
    log = (grid.files["2"].with_name("state") / "site.log").read_text()
    assert log.count("sent times") == 1
    assert log.count("asked again, sent the same reply") == 1


def test_a_failed_request_is_tried_again_when_asked_again(grid: InProcessGrid, tmp_path: Path) -> None:
    assert "0" in federation(grid, tmp_path).broadcast(nt_count, fail="0").failures
    assert "0" in federation(grid, tmp_path).broadcast(nt_count, fail="0").failures
    assert (grid.files["0"].with_name("state") / "site.log").read_text().count("failed") == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ClosedDoorError("gone"), "unavailable"), (BrokenOffError("died"), "crashed"), (KeyError(SECRET), "task error")],
)
def test_what_happens_at_the_door_is_told(error: Exception, kind: str, site_files: Files, tmp_path: Path) -> None:
    def door(*_: object) -> tuple[dict[str, str], bytes]:
        raise error

    replies = federation(InProcessGrid(site_files(), SiteApp(door)), tmp_path).broadcast(nt_count)
    assert {failure.kind for failure in replies.failures.values()} == {kind}
    assert all(SECRET not in str(failure) for failure in replies.failures.values())


def test_two_nodes_of_one_name_are_an_error(grid: InProcessGrid) -> None:
    grid.names[9] = "1"
    with pytest.raises(FedsynthError, match='registered as "1"'):
        connected(grid)


def test_the_quorum_holds_on_a_network(grid: InProcessGrid, tmp_path: Path) -> None:
    grid.offline = {"0"}
    with pytest.raises(QuorumError, match="2 of 3 clients answered"):
        federation(grid, tmp_path, quorum=1.0).broadcast(nt_count)


# -- whole runs -----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """kill -9 of the server program."""


def test_a_server_program_that_was_killed_goes_on_with_the_same_bits(site_files: Files, tmp_path: Path) -> None:
    whole = over_a_grid(sections("scaffold", tmp_path, "whole"), InProcessGrid(site_files()), tmp_path)
    path = network_folder(sections("scaffold", tmp_path, "killed"), tmp_path / "ca.crt")
    grid = InProcessGrid(site_files())
    trained: list[str] = []

    def spoil(name: str, request: Message, reply: Message) -> list[Message]:
        if request.metadata.message_type == "query.local_training__train":
            trained.append(name)
            if len(trained) == 5:  # in the second round, with one reply on its way
                raise Killed
        return [reply]

    grid.spoil = spoil
    with pytest.raises(Killed):
        serve_run(grid, path, pause=0.01)
    grid.spoil = lambda name, request, reply: [reply]
    resumed = serve_run(grid, path, pause=0.01)
    assert whole.weights is not None
    assert resumed.weights is not None
    assert all(torch.equal(entry, resumed.weights[name]) for name, entry in whole.weights.items())
    log = (grid.files["0"].with_name("state") / "site.log").read_text()
    assert "asked again, sent the same reply" in log


@pytest.mark.parametrize("told", [True, False])
def test_a_resumed_run_goes_on_without_a_site_and_refuses_other_data(
    told: bool, site_files: Files, tmp_path: Path
) -> None:
    changed = {"train": {"rounds": 2, "local_epochs": 1, "quorum": 0.5}, "evaluation": {"class_counts": told}}
    path = network_folder(sections("fedavg", tmp_path, "run", **changed), tmp_path / "ca.crt")
    grid = InProcessGrid(site_files())
    grid.spoil = lambda name, request, reply: (
        (_ for _ in ()).throw(Killed()) if "train" in request.metadata.message_type else [reply]
    )
    with pytest.raises(Killed):
        serve_run(grid, path, pause=0.01)
    grid.spoil = lambda name, request, reply: [reply]
    grid.offline = {"1"}
    result = serve_run(grid, path, pause=0.01)
    assert {row.client for row in result.summary.failures} == {"1"}
    missed = result.summary.missed[0]
    assert missed.client == "1"
    assert missed.rounds == [1, 2]
    # What it holds is known where it was asked, before it was lost.
    assert bool(missed.classes) == told
    assert ("did not tell" in missed_words(missed)) != told
    assert ("it holds" in (path / "report.html").read_text()) == told
    assert ("Which classes that cost is not known" in (path / "report.html").read_text()) != told
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["fingerprint"]["split"] = "0" * 64
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FedsynthError, match="begun on other data"):
        serve_run(grid, path, pause=0.01)
