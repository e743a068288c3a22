"""IDX files, the format of MNIST: plain or gzipped, with MNIST's or EMNIST's file names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.archives import read_stream
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part
from fedsynth.errors import DataError

UNSIGNED_BYTE = 8


def read_idx_folder(folder: Path, config: DataConfig, prefix: str = "") -> Raw:
    """The `train` and, when present, the `t10k` or `test` pair of IDX files in a folder."""
    names = idx_names(folder, prefix)
    if not names:
        raise DataError(
            f"{folder} has no IDX files; it needs train-images-idx3-ubyte and train-labels-idx1-ubyte "
            "(plain or .gz), and t10k-... for the test part."
        )
    if "train" not in names:
        raise DataError(f"{folder} has no training images; add train-images-idx3-ubyte (plain or .gz).")
    return Raw(
        train=_read_pair(names["train"], config),
        test=_read_pair(names["test"], config) if "test" in names else None,
    )


def idx_names(folder: Path, prefix: str = "") -> dict[str, Path]:
    """The image files of a folder by part; two data sets under one prefix are an error."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{prefix}*-images-idx3-ubyte*")) if folder.is_dir() else []:
        stem = path.name.removesuffix(".gz")
        if not stem.endswith("-images-idx3-ubyte"):
            continue
        part = "train" if stem.removesuffix("-images-idx3-ubyte").endswith("train") else "test"
        if part in found and found[part].name.removesuffix(".gz") != stem:
            raise DataError(f"{folder} holds both {found[part].name} and {path.name}; keep one data set per folder.")
        found.setdefault(part, path)
    return found


def _read_pair(images: Path, config: DataConfig) -> Part:
    stem = images.name.removesuffix(".gz").replace("-images-idx3-ubyte", "-labels-idx1-ubyte")
    candidates = [images.with_name(stem), images.with_name(stem + ".gz")]
    labels = next((path for path in candidates if path.is_file()), None)
    if labels is None:
        raise DataError(f"{images} has no labels beside it; add {stem} (plain or .gz).")
    x = read_idx(images, dimensions=3)
    if images.name.startswith("emnist"):
        x = np.ascontiguousarray(x.transpose(0, 2, 1))  # EMNIST stores its images column by column
    return check_part(as_examples(x, str(images), config.shape), read_idx(labels, dimensions=1), str(images))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """One IDX file of unsigned bytes; a wrong magic number or length is an error that names the file."""
    data = _read_bytes(path)
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{path} is cut short: {len(data)} bytes do not hold an IDX header; copy it again.")
    if data[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise DataError(
            f"{path} does not start with the IDX magic number of {dimensions}-dimensional bytes; "
            "it is another kind of file."
        )
    shape = [int.from_bytes(data[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(dimensions)]
    expected = 1
    for side in shape:
        expected *= side
    if len(data) - header != expected:
        raise DataError(
            f"{path} is damaged: its header promises {expected} bytes and it has {len(data) - header}; copy it again."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as stream:
            return read_stream(path, stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); copy it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
