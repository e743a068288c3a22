"""Private state of clients on disk, in versions.

A task starts from the version the server names and writes a new one; only a reply that the server accepts makes the
new version current. So a task that failed, came too late or was asked twice changes nothing, and a resumed run starts
from the versions of its checkpoint.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsynth.errors import FedsynthError
from fedsynth.federation.payload import Fields, PayloadError, decode, encode

LONGEST_NAME = 200
SECRET_BYTES = 32
KEPT_STEPS = 2  # the journal keeps its last two checkpoints, so the versions of both must stay


class StateStore:
    """A folder per client with one file per version. `sync` makes each survive a power failure."""

    def __init__(self, folder: Path, sync: bool = False) -> None:
        self.folder, self.sync = folder, sync

    def read(self, client: str, version: str) -> Fields:
        """The values of one version; a sentence that names the client if it cannot be read."""
        path = self._path(client, version)
        try:
            values = decode(path.read_bytes())["values"]
        except (OSError, PayloadError, KeyError) as error:
            raise FedsynthError(
                f'The private state of client "{client}" ({path.name}) cannot be read: {error}'
            ) from error
        return dict(values)

    def fingerprint(self, client: str, version: str) -> str:
        """A hash of one version."""
        return hashlib.sha256(self._path(client, version).read_bytes()).hexdigest()

    def readable(self, client: str, version: str) -> bool:
        """Whether a version is there and whole."""
        try:
            self.read(client, version)
        except FedsynthError:
            return False
        return True

    def write(self, client: str, version: str, step: int, parent: str | None, values: Mapping[str, Any]) -> None:
        """Write a version atomically and drop those that no kept checkpoint can name any more."""
        path = self._path(client, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode({"parent": parent, "step": step, "values": dict(values)}), self.sync)
        self._prune(client, version, step)

    def _prune(self, client: str, version: str, step: int) -> None:
        keep = {version}
        at: str | None = version
        while at is not None and self._step(at) > step - KEPT_STEPS:
            try:
                at = decode(self._path(client, at).read_bytes())["parent"]
            except (OSError, PayloadError):
                break
            if at is None or at in keep:  # a request can name the version it writes as the one it comes from
                break
            keep.add(at)
        for path in self._path(client, version).parent.glob("*.safetensors"):
            if path.stem not in keep and self._step(path.stem) <= step:
                path.unlink(missing_ok=True)

    @staticmethod
    def _step(version: str) -> int:
        return int(version.split("-", 1)[0])

    def _path(self, client: str, version: str) -> Path:
        # Ids and versions come over a network one day: nothing in them may leave the folder.
        # Quoting keeps different ids apart; a bare "%" stands for no id, and for the cut in one too long for a file.
        safe = quote(client, safe="", errors="surrogatepass").replace(".", "%2E") or "%"
        if len(safe) > LONGEST_NAME:
            safe = f"{safe[:100]}%{hashlib.sha256(safe.encode()).hexdigest()}"
        if not re.fullmatch(r"[0-9]+-[A-Za-z0-9_.-]+", version):
            raise FedsynthError(f'"{version}" is not the name of a state version.')
        return self.folder / safe / f"{version}.safetensors"


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time, by a lock on a file; others wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_of(file: Path) -> Path:
    """The lock for a file that several processes read and write."""
    return file.with_name(f"{file.name}.lock")


def kept_secret(file: Path) -> bytes:
    """The key that a file holds, made by the operating system when first asked for; its owner alone may read it."""
    with alone(lock_of(file)):
        if not file.is_file():
            fresh = file.with_name(f".{file.name}.tmp")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
                opened.write(secrets.token_bytes(SECRET_BYTES))
                opened.flush()
                os.fsync(opened.fileno())
            fresh.replace(file)
        key = file.read_bytes()
    if len(key) != SECRET_BYTES:
        raise FedsynthError(
            f'The key of the noise in "{file}" is damaged: it must have {SECRET_BYTES} bytes. Delete it.'
        )
    return key


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
