"""The proxy config that `fedsynth deploy init` writes, in a real nginx in front of a real SuperLink."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sites import DIGITS, site_file

from fedsynth.experiment.config import EngineConfig
from fedsynth.network.deploy import Federation, write_federation
from fedsynth.network.launch import connection
from fedsynth.network.loopback import START, Loopback, free_port, wait_for

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
LONG = 300  # seconds that a busy machine may need

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(LONG * 2),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed here: apt install nginx-light"),
]


class Proxied:
    """A federation folder of one site, its SuperLink and nginx with the shipped config, on the loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.behind = folder, free_port(), free_port()
        federation = Federation(
            ("0",), tuple(DIGITS["shape"]), tuple(DIGITS["classes"]), port=self.port, superlink_port=self.behind
        )
        write_federation(folder / "fed", federation)
        site_file(folder / "fed" / "sites" / "0", "0", "0")
        self.loop = Loopback(folder / "fed")
        self.loop.port = self.behind

    def start(self) -> None:
        self.loop.start_superlink()
        self.loop.script("register.sh")
        server = self.folder / "fed" / "server"
        shipped = (server / "nginx.conf").read_text()
        # As its first lines say: into the http block, with the paths of this machine. The rest is as it is shipped.
        placed = shipped.replace("/etc/fedsynth", str(server)).replace("listen ", "listen 127.0.0.1:")
        main = self.folder / "nginx.conf"
        temporary = "".join(
            f"{what}_temp_path {self.folder}/{what};\n" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main.write_text(
            f"daemon off;\nmaster_process off;\npid {self.folder}/nginx.pid;\nerror_log {self.folder}/nginx.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{placed}\n}}\n"
        )
        with self.loop.log("nginx").open("ab") as out:
            assert NGINX is not None
            self.loop.parts["nginx"] = subprocess.Popen(
                [NGINX, "-p", str(self.folder), "-c", str(main)], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        wait_for(self.listens, START, f"nginx did not start: see {self.loop.log('nginx')}")

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def status(self, port: int, path: str, verb: str = "POST") -> int:
        """What comes back for a path, sent as it is written."""
        context = ssl.create_default_context(cafile=str(self.folder / "fed" / "server" / "ca.crt"))
        with closing(http.client.HTTPSConnection("localhost", port, timeout=30, context=context)) as door:
            door.request(verb, path, body=b"" if verb == "POST" else None)
            return door.getresponse().status


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    made = Proxied(tmp_path_factory.mktemp("n"))
    try:
        made.start()
        yield made
    finally:
        made.loop.stop()


def test_a_site_comes_in_through_the_fleet_path(proxied: Proxied) -> None:
    folder = proxied.folder / "fed" / "sites" / "0"
    proxied.loop._start("0", folder, "--superlink", f"localhost:{proxied.port}")
    log = proxied.loop.log("0")
    wait_for(lambda: b"SuperNode ID" in log.read_bytes(), LONG, f"the site did not come in: see {log}")
    proxied.loop.stop_part("0")


@pytest.mark.parametrize("path", ["pull-messages", "activate-node", "register-node"])
def test_the_fleet_path_is_answered_by_the_superlink(path: str, proxied: Proxied) -> None:
    """Without a signature it says no, in its own words."""
    direct = proxied.status(proxied.behind, f"/v1/fleet/{path}")
    assert direct not in (403, 404)
    assert proxied.status(proxied.port, f"/v1/fleet/{path}") == direct


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/v1/control/start-run",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/runtime/push-object",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "//v1//control/start-run",
        "/V1/FLEET/pull-messages",
    ],
)
def test_everything_else_is_refused_by_the_proxy(path: str, proxied: Proxied) -> None:
    for verb in ("GET", "POST"):
        assert proxied.status(proxied.port, path, verb) == 403
    assert proxied.status(proxied.behind, "/health", "GET") == 200  # it is there, and only the proxy is in between


def test_a_path_that_is_hidden_twice_reaches_nothing(proxied: Proxied) -> None:
    assert proxied.status(proxied.port, "/v1/fleet/%252e%252e/control/start-run") in (403, 404)


def test_nobody_starts_a_run_from_outside(proxied: Proxied) -> None:
    certificate = proxied.folder / "fed" / "server" / "ca.crt"
    answers = {}
    for port in (proxied.port, proxied.behind):
        engine = EngineConfig(name="flower", superlink=f"localhost:{port}", certificate=certificate, sites=("0",))
        with connection(engine) as flower:
            answers[port] = flower.call("list")
    assert not answers[proxied.port].success
    assert answers[proxied.behind].success


def test_plaintext_is_refused(proxied: Proxied) -> None:
    with closing(http.client.HTTPConnection("localhost", proxied.port, timeout=30)) as door:
        door.request("POST", "/v1/fleet/pull-messages", body=b"")
        assert door.getresponse().status == 400
