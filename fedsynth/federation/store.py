"""Private state of clients on disk, in versions.

A task starts from the version the server names and writes a new one; only a reply that the server accepts makes the
new version current. So a task that failed, came too late or was asked twice changes nothing, and a resumed run starts
from the versions of its checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsynth.errors import FedsynthError
from fedsynth.federation.payload import PayloadError, decode, encode

LONGEST_NAME = 200
KEPT_STEPS = 2  # the journal keeps its last two checkpoints, so the versions of both must stay


class StateStore:
    """A folder per client with one file per version. `sync` makes each survive a power failure."""

    def __init__(self, folder: Path, sync: bool = False) -> None:
        self.folder, self.sync = folder, sync

    def read(self, client: str, version: str) -> dict[str, Any]:
        """The values of one version; a sentence that names the client if it cannot be read."""
        path = self._path(client, version)
        try:
            values = decode(path.read_bytes())["values"]
        except (OSError, PayloadError, KeyError) as error:
            raise FedsynthError(
                f'The private state of client "{client}" ({path.name}) cannot be read: {error}'
            ) from error
        return dict(values)

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
            if at is not None:
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


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
