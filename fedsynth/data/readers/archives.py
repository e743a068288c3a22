"""How much a compressed file may unpack to: a small file can hold any number of bytes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from fedsynth.errors import DataError

LARGEST_UNPACKED = 16 * 2**30
"""Bytes of one file; more than that would not be read into memory anyway."""
PIECE = 2**20  # bytes of a stream that are read at once


def check_unpacked_size(path: Path) -> int:
    """The bytes that a zip file (.npz is one) declares to hold; a file above the limit is refused.

    A member that holds more than it declares does no harm: `zipfile` stops there and finds the file damaged.
    """
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > LARGEST_UNPACKED:
        raise DataError(
            f"{path} would unpack to {unpacked:,} bytes, and {LARGEST_UNPACKED:,} are the most; "
            "divide it into smaller files, or do not trust it."
        )
    return unpacked


def read_stream(path: Path, stream: io.BufferedIOBase) -> bytes:
    """All that a stream of unpacked bytes gives; refused as soon as it passes the limit."""
    pieces: list[bytes] = []
    left = LARGEST_UNPACKED
    while piece := stream.read(PIECE):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise DataError(f"{path} would unpack to more than {LARGEST_UNPACKED:,} bytes; do not trust it.")
    return b"".join(pieces)
