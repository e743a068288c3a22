"""The process that holds a site's data. It answers each request in a forked copy of itself: a task that crashes takes
nothing along, and nothing but what is on disk survives from one request to the next."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

import torch

from fedsynth.engines.pool import die_with_parent
from fedsynth.errors import ConfigError, FedsynthError
from fedsynth.network.door import receive, send
from fedsynth.network.loopback import flower_env, stop_process
from fedsynth.network.site import Site
from fedsynth.network.site_config import SiteConfig, open_site

LONGEST_PATH = 100  # the system's limit for the path of a socket is a little more
LOOK = 1.0  # seconds between two looks after what else runs
PAUSE = 15.0  # seconds before a Flower node that ended is started again
TRIES = 10  # how often in a row
STEADY = 120.0  # seconds after which a node counts as well started


def serve_site(config: SiteConfig, going: Callable[[], bool] = lambda: True) -> None:
    """Answer requests at the site's socket, for as long as `going` says so."""
    torch.set_num_threads(1)  # no threads yet when requests fork
    site = open_site(config)
    if len(str(config.socket)) > LONGEST_PATH:
        raise ConfigError(f'The path "{config.socket}" is too long for a socket: set socket = "/run/site.sock".')
    config.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        mask = os.umask(0o117)  # its group may come in: the user that runs the Flower node
        listener.bind(str(config.socket))
        os.umask(mask)
        listener.listen()
        listener.settimeout(LOOK)
        try:
            while going():
                with contextlib.suppress(TimeoutError):
                    caller, _ = listener.accept()
                    with caller:
                        _answer_in_a_copy(site, caller, listener)
                _reap()
        finally:
            config.socket.unlink(missing_ok=True)


def _answer_in_a_copy(site: Site, caller: socket.socket, listener: socket.socket) -> None:
    parent = os.getpid()
    if os.fork():
        return
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        listener.close()
        caller.setblocking(True)
        header, body = receive(caller, site.policy.largest_request + 1)
        send(caller, {}, site.respond(header, body))
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Node:
    """The site's Flower node, started again when it ends by itself: the SuperLink refuses a node that was killed for
    about a minute, until it has noticed."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.command, self.env = command, env
        self.failures, self.again = 0, 0.0
        self.process = self._started()

    def going(self) -> bool:
        """Look after the node; False when it does not stay alive."""
        if self.process.poll() is None:
            if time.monotonic() - self.began > STEADY:
                self.failures = 0
            return True
        if not self.again:
            self.failures += 1
            self.again = time.monotonic() + PAUSE
        elif time.monotonic() > self.again:
            self.process, self.again = self._started(), 0.0
        return self.failures <= TRIES

    def _started(self) -> subprocess.Popen[bytes]:
        self.began = time.monotonic()
        dying = partial(die_with_parent, os.getpid())
        return subprocess.Popen(self.command, env=self.env, preexec_fn=dying, stdin=subprocess.DEVNULL)


def start_site(config: SiteConfig, superlink: str | None, port: int) -> None:
    """Run the site's Flower node and the process with its data, until they are stopped."""
    if config.flower is None:
        raise ConfigError("The site's file has no [flower] table: it must say which superlink, certificate and key.")
    for name, path in (("certificate", config.flower.certificate), ("key", config.flower.key)):
        if not path.is_file():
            raise ConfigError(f'flower.{name}: there is no file "{path}".')
    home = config.folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    command = [
        *("flower-supernode", "--superlink", superlink or config.flower.superlink),
        *("--root-certificates", str(config.flower.certificate)),
        *("--auth-supernode-private-key", str(config.flower.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"site={json.dumps(str(config.socket))}"),
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node = Node(command, flower_env(home))
    try:
        serve_site(config, node.going)
    finally:
        stop_process(node.process)  # politely, so that it says good-bye to the SuperLink
    raise FedsynthError(f"The Flower node ended {TRIES + 1} times in a row: its last lines above say why.")
