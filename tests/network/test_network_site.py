"""A site refuses what it must, in a sentence; its policy can only tighten; a crash at the site takes nothing along."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsynth.data.dataset import ClientData, Dataset
from fedsynth.errors import ConfigError, DataError
from fedsynth.federation import Client, Reply, leaves, task
from fedsynth.federation.payload import decode, encode
from fedsynth.network.door import BrokenOffError, ClosedDoorError, knock
from fedsynth.network.policy import SitePolicy
from fedsynth.network.resident import serve_site
from fedsynth.network.site import Site
from fedsynth.network.site_config import SiteData, check_ready, check_site, load_site_data, open_site, read_site
from fedsynth.privacy import GaussianEvent, Guarantee

Files = Callable[..., dict[str, Path]]
ECHO, DIE, NOISY_TASK = (f"test_network_site.ns_{name}" for name in ("echo", "die", "noisy"))
REAL = "ablations.draw_real_samples"


class Number(Reply):
    number: float = leaves("a number")


@task
def ns_echo(client: Client, model: dict[str, torch.Tensor], times: int = 1) -> Number:
    return client.release(Number(number=float(times)))


@task
def ns_die(client: Client) -> Number:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.fixture
def site(site_files: Files) -> Site:
    return open_site(read_site(site_files()["0"]))


def request(task: str = ECHO, **changes: Any) -> dict[str, Any]:
    fields = {"model": {"w": torch.ones(2)}}
    return {"task": task, "id": "0", "step": 1, "seed": 0, "round": 1, "states": {}, "fields": fields, **changes}


def ask(site: Site, body: bytes, /, task: str = ECHO, **header: Any) -> dict[str, Any]:
    return decode(site.respond({"run": "r", "site": "0", "task": task, **header}, body))


def test_a_good_request_is_carried_out(site: Site) -> None:
    assert ask(site, encode(request()))["fields"] == {"number": 1.0}


@pytest.mark.parametrize(
    ("body", "header", "words"),
    [
        (b"", {}, "not a payload"),
        (b"\x80\x04\x95pickle", {}, "not a payload"),
        (
            encode(request(task="test_network_site.ns_ecko")),
            {"task": "test_network_site.ns_ecko"},
            f'Did you mean "{ECHO}"',
        ),
        (encode(request()), {"task": "local_training.train"}, "says something else"),
        (encode(request()), {"site": "1"}, "not for this site"),
        (encode(request()), {"run": "../../etc"}, "names no run"),
        (encode(request(step=-1)), {}, '"step"'),
        (encode(request(id="../x")), {}, '"id"'),
        (encode(request(surprise=1)), {}, '"surprise"'),
        (encode(request(fields={"model": {"w": torch.tensor([1.0, float("nan")])}})), {}, '"fields.model.w"'),
        (encode(request(fields={"model": {"w": torch.tensor([float("inf")])}})), {}, "not finite"),
        (encode(request(fields={"model": 3})), {}, '"model"'),
        (encode(request(fields={})), {}, '"model"'),
        (encode(request(budget={"epsilon": -1.0, "delta": 0.5})), {}, '"budget.epsilon"'),
    ],
)
def test_a_bad_request_is_refused_in_a_sentence(site: Site, body: bytes, header: dict[str, Any], words: str) -> None:
    answer = ask(site, body, **header)
    assert (answer["ok"], answer["error"], answer["traceback"]) == (False, "RefusalError", "")
    assert words in answer["message"]
    assert "refused" in (site.folder / "site.log").read_text()
    assert not (site.folder / "runs").exists()


def test_a_site_tells_of_itself_no_number_of_its_examples(site: Site) -> None:
    answer = ask(site, b"", task="describe_site")
    told = {"site", "fedsynth", "code", "shape", "classes", "fingerprint", "rehearsal"}
    assert set(answer) == {"ok", "about"}
    assert set(answer["about"]) == told


def test_weights_of_another_model_are_named(site: Site) -> None:
    spec = {"name": "mlp", "hidden": [4]}
    fields = {"model": {"nonsense": torch.zeros(3)}, "spec": spec, "parts": ["test"]}
    answer = ask(site, encode(request("views.score", fields=fields)), task="views.score")
    assert answer["error"] == "WeightsError"
    assert "lack" in answer["message"]


GOOD = encode(request())
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
TREE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8).filter(lambda k: k != "$"), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = ("task", "id", "step", "seed", "round", "states", "budget", "fields", "extra")


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """Noise, a good request with a few bytes changed or cut off, or a good tree with a wrong value in it."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.binary(max_size=300))
    if kind == 1:
        return GOOD[: draw(st.integers(0, len(GOOD) - 1))]
    if kind == 2:
        place, byte = draw(st.integers(0, len(GOOD) - 1)), draw(st.integers(1, 255))
        return GOOD[:place] + bytes([GOOD[place] ^ byte]) + GOOD[place + 1 :]
    key = draw(st.sampled_from(KEYS))
    return encode({**request(), key: draw(TREE)})


@pytest.mark.timeout(600)
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=malformed())
def test_no_malformed_request_gets_past_a_sentence(site: Site, body: bytes) -> None:
    answer = ask(site, body)
    if answer["ok"]:  # the wrong value was a right one: then the request must really be well formed
        kept = decode(body)
        assert kept["task"] == ECHO
        assert isinstance(kept["step"], int)
    else:
        assert answer["error"] == "RefusalError"
        assert len(answer["message"]) > 10
        assert answer["traceback"] == ""


# -- the policy -----------------------------------------------------------------------------------------------------


def with_policy(site: Site, **policy: Any) -> Site:
    return Site(site.name, site.data, site.folder, SitePolicy(**policy))


def test_images_do_not_leave_unless_a_site_allows_it(site: Site) -> None:
    body = encode(request(REAL, fields={"per_class": 1}))
    assert "keeps records here" in ask(site, body, task=REAL)["message"]
    assert ask(with_policy(site, records=True), body, task=REAL)["ok"]


def test_a_policy_refuses_tasks_sizes_and_what_is_not_protected(site: Site) -> None:
    body = encode(request())
    assert "does not allow" in ask(with_policy(site, tasks=["local_training.train"]), body)["message"]
    assert "bytes" in ask(with_policy(site, largest_request=10), body)["message"]
    strict = with_policy(site, unprotected=False, epsilon=1.0)
    assert "without a privacy guarantee" in ask(strict, body)["message"]
    assert ask(with_policy(site, tasks=[ECHO]), body)["ok"]


NOISY = Guarantee(
    mechanism="noise", events=(GaussianEvent(mu=1.0),), unit="record", adjacency="add or remove one", covered="it"
)


@task
def ns_noisy(client: Client, at: int) -> Number:
    return client.release(Number(number=0.0), number=NOISY)


def test_the_sites_own_budget_cannot_be_turned_back(site: Site) -> None:
    strict = with_policy(site, epsilon=6.0)
    answers = [
        ask(strict, encode(request(NOISY_TASK, step=n + 1, fields={"at": n})), task=NOISY_TASK, run=f"run-{n % 2}")
        for n in range(12)
    ]
    said = [answer["ok"] for answer in answers]
    assert said[0]
    assert not said[-1]
    refused = answers[-1]
    assert refused["error"] == "BudgetError"
    assert "past the policy of this site" in refused["message"]
    assert said == sorted(said, reverse=True)


# -- the data -------------------------------------------------------------------------------------------------------


def real_site(folder: Path, x: Any, y: Any, classes: str = '["a", "b", "c"]', extra: str = "") -> Path:
    folder.mkdir()
    np.savez(folder / "data.npz", x=x, y=y)
    file = folder / "site.toml"
    file.write_text(
        f'name = "x"\n[schema]\nshape = [1, 4, 4]\nclasses = {classes}\n[data]\nname = "npz:{folder}/data.npz"\n{extra}'
    )
    return file


def test_labels_get_the_federations_numbers(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((30, 4, 4), dtype=np.float32)
    file = real_site(tmp_path / "s", x, np.array(["c", "a"] * 15))
    data: SiteData = load_site_data(read_site(file))
    assert [sum(part) for part in zip(*data.counts.values(), strict=True)] == [15, 0, 15]
    assert [sum(data.counts[part]) for part in ("train", "validation", "test")] == [24, 3, 3]
    assert open_site(read_site(file)).secret_noise
    assert data.own.public_size == 24
    declaring = real_site(tmp_path / "declaring", x, np.array(["c", "a"] * 15), extra="[policy]\nexamples = 20\n")
    assert load_site_data(read_site(declaring)).own.public_size == 20


def test_a_site_without_examples_to_train_on_does_not_take_part(tmp_path: Path) -> None:
    config = read_site(real_site(tmp_path / "s", np.zeros((0, 4, 4), np.float32), np.zeros(0, int)))
    for way in (open_site, check_site):
        with pytest.raises(DataError, match="holds no examples"):
            way(config)
    nothing = Dataset(np.zeros((0, 1, 4, 4), np.float32), np.zeros(0, np.int64))
    with pytest.raises(DataError, match='Site "x" has no examples to train on'):
        check_ready(SiteData("x", config.schema_.to_schema(), ClientData(nothing, nothing, nothing)))


def test_a_strange_key_in_a_sites_file_is_named(site_files: Files) -> None:
    file = site_files()["0"]
    file.write_text("secret_noise = false\n" + file.read_text())
    with pytest.raises(ConfigError, match='no key "secret_noise"'):
        read_site(file)


# -- the process with the data --------------------------------------------------------------------------------------


@pytest.fixture
def door(site_files: Files) -> Iterator[Path]:
    """The socket of a site whose process runs."""
    config = read_site(site_files()["0"])
    child = os.fork()
    if not child:
        try:
            serve_site(config)
        finally:
            os._exit(1)
    end = time.monotonic() + 60
    while not config.socket.exists() and time.monotonic() < end:
        time.sleep(0.02)
    yield config.socket
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


HEADER = {"run": "r", "site": "0"}


def test_requests_go_through_the_door_and_a_crash_is_noticed_at_once(door: Path) -> None:
    body = encode(request())
    assert decode(knock(door, {**HEADER, "task": ECHO}, body)[1])["ok"]
    began = time.monotonic()
    with pytest.raises(BrokenOffError):
        knock(door, {**HEADER, "task": DIE}, encode(request(DIE, fields={})))
    assert time.monotonic() - began < 20
    assert decode(knock(door, {**HEADER, "task": ECHO}, body)[1])["ok"]  # the site goes on


def test_the_door_is_for_the_owner_and_the_group(door: Path) -> None:
    assert door.stat().st_mode & 0o777 == 0o660


def test_a_closed_door_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClosedDoorError):
        knock(tmp_path / "nothing.sock", HEADER, b"")


def test_one_request_of_a_run_at_a_time(door: Path) -> None:
    """Asked twice at once, a task runs once."""
    body = encode(request())
    replies: list[bytes] = []
    header = {**HEADER, "task": ECHO, "id": hashlib.sha256(body).hexdigest()}
    threads = [threading.Thread(target=lambda: replies.append(knock(door, header, body)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(replies) == 4
    assert len(set(replies)) == 1


def test_the_client_app_needs_no_pytorch() -> None:
    code = "import fedsynth.network.client_app, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
