"""The process that holds a site's data. It answers each request in a forked copy of itself: a task that crashes takes
nothing along, and nothing but what is on disk survives from one request to the next."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from fedsynth.engines.site import Site
from fedsynth.engines.worker import die_with_parent
from fedsynth.errors import ConfigError
from fedsynth.network.door import receive, send
from fedsynth.network.site import SiteConfig, open_site

LONGEST_PATH = 100  # the system's limit for the path of a socket is a little more
LOOK = 1.0  # seconds between two looks after what else runs


def serve_site(config: SiteConfig, going: Callable[[], bool] = lambda: True) -> None:
    """Answer requests at the site's socket, for as long as `going` says so."""
    torch.set_num_threads(1)  # no threads yet when requests fork
    site = open_site(config)
    if len(str(config.socket)) > LONGEST_PATH:
        raise ConfigError(f'The path "{config.socket}" is too long for a socket: set socket = "/run/site.sock".')
    config.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(config.socket))
        config.socket.chmod(0o660)  # its group may come in: the user that runs the Flower node
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
    if os.fork():
        return
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
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


def start_site(config: SiteConfig, superlink: str | None, port: int) -> None:
    """Run the site's Flower node and the process with its data, until one of them ends."""
    if config.flower is None:
        raise ConfigError("The site's file has no [flower] table: it must say which superlink, certificate and key.")
    for name, path in (("certificate", config.flower.certificate), ("key", config.flower.key)):
        if not path.is_file():
            raise ConfigError(f'flower.{name}: there is no file "{path}".')
    home = config.folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
    tools = Path(sys.executable).parent
    env = {**os.environ, **quiet, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [
        *("flower-supernode", "--superlink", superlink or config.flower.superlink),
        *("--root-certificates", str(config.flower.certificate)),
        *("--auth-supernode-private-key", str(config.flower.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"site={json.dumps(str(config.socket))}"),
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the node says good-bye to the SuperLink on the way out
    node = subprocess.Popen(command, env=env, preexec_fn=die_with_parent, stdin=subprocess.DEVNULL)
    try:
        serve_site(config, lambda: node.poll() is None)
    finally:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(10)
        node.kill()
        node.wait()
    raise ConfigError(f"The Flower node ended (exit code {node.returncode}): its last lines above say why.")
