"""A whole federation on this machine, for rehearsals, the demo and tests: a SuperLink and a node per site, with TLS and
authentication, started from a federation folder by its own scripts."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedsynth.errors import FedsynthError

START = 60.0  # seconds that a part has to start
STOP = 10.0  # seconds that a part has to end when asked to


class Loopback:
    """The processes of a federation folder on this machine; all are ended at the end, by their ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.parts: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Loopback":
        try:
            self.start_superlink()
            self.script("register.sh")
            for site in sorted(path.name for path in (self.folder / "sites").iterdir()):
                self.start_site(site)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def superlink(self) -> str:
        """The address of the SuperLink."""
        return f"127.0.0.1:{self.port}"

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self._start("superlink", self.folder / "server")
        wait_for(self._healthy, START, f"The SuperLink did not start: see {self.log('superlink')}.")

    def start_site(self, site: str) -> None:
        """Start a site's node; the run waits for it."""
        self._start(site, self.folder / "sites" / site, "--superlink", self.superlink)

    def script(self, name: str) -> str:
        """Run one of the server's scripts to its end; what it says."""
        server = self.folder / "server"
        done = subprocess.run(
            [f"./{name}"], cwd=server, env=self._env(), capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise FedsynthError(f"{name} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def stop(self) -> None:
        """End everything: the nodes first, the SuperLink last."""
        for part in reversed(list(self.parts)):
            self.stop_part(part)

    def stop_part(self, part: str) -> None:
        """End one part."""
        stop_process(self.parts.pop(part))

    def log(self, part: str) -> Path:
        """Where a part's output goes."""
        return self.folder / f"{part}.log"

    def _start(self, part: str, folder: Path, *words: str) -> None:
        with self.log(part).open("ab") as out:
            self.parts[part] = subprocess.Popen(
                ["./start.sh", *words], cwd=folder, env=self._env(), stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def _env(self) -> dict[str, str]:
        """The scripts choose Flower's home; all processes share this machine's cores."""
        return {**flower_env(), "OMP_NUM_THREADS": "1", "SUPERLINK_PORT": str(self.port)}

    def _healthy(self) -> bool:
        if self.parts["superlink"].poll() is not None:
            raise FedsynthError(f"The SuperLink ended at once: see {self.log('superlink')}.")
        context = ssl.create_default_context(cafile=str(self.folder / "server" / "ca.crt"))
        url = f"https://{self.superlink}/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2, context=context) as answer:
            return bool(answer.status == 200)
        return False


def flower_env(home: Path | None = None) -> dict[str, str]:
    """An environment in which Flower's commands are those beside this Python, call nobody, and keep to a home."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "PATH": path, **({"FLWR_HOME": str(home)} if home else {})}


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and make it if it does not."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP)
    process.kill()
    process.wait()


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, message: str) -> None:
    """Look again and again until a condition holds; a `FedsynthError` with the message if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise FedsynthError(message)
        time.sleep(0.1)
