"""The door between a Flower node and the process that holds a site's data: a socket in the site's folder.

Behind it, one process has PyTorch and the data in memory and answers with the tasks of the installed package alone.
In front of it, the process that Flower starts for every message only passes bytes on; it needs no right to read the
data. Only the standard library is used here, so that this process starts quickly.
"""

import json
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from fedsynth.errors import FedsynthError

SIZES = struct.Struct(">IQ")  # of the header and of the body
LONGEST_HEADER = 1_000_000
PIECE = 1 << 20


class ClosedDoorError(FedsynthError):
    """The process with the site's data is not there."""


class BrokenOffError(FedsynthError):
    """The process with the site's data died over a request."""


def knock(path: Path, header: Mapping[str, object], body: bytes) -> tuple[Mapping[str, object], bytes]:
    """Hand a request in and wait for what comes out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(path))
        except OSError:
            raise ClosedDoorError('the process with its data is not running ("fedsynth site start")') from None
        try:
            send(door, header, body)
            return receive(door)
        except (OSError, EOFError):
            raise BrokenOffError("the process that ran its task died") from None


def send(door: socket.socket, header: Mapping[str, object], body: bytes) -> None:
    """Send a header and a body."""
    text = json.dumps(header).encode()
    door.sendall(SIZES.pack(len(text), len(body)) + text)
    door.sendall(body)


def receive(door: socket.socket, largest: int | None = None) -> tuple[dict[str, object], bytes]:
    """Receive a header and a body; an `EOFError` when the other side ends, or sends more than `largest` bytes."""
    header_size, body_size = SIZES.unpack(_exactly(door, SIZES.size))
    if header_size > LONGEST_HEADER or (largest is not None and body_size > largest):
        raise EOFError("too much")
    header = json.loads(_exactly(door, header_size))
    if not isinstance(header, dict):
        raise EOFError("no header")
    return header, _exactly(door, body_size)


def _exactly(door: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = door.recv(min(PIECE, size - len(content)))
        if not piece:
            raise EOFError("the other side ended")
        content += piece
    return bytes(content)
