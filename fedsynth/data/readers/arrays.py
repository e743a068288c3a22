"""Numpy archives, the packed colour layout, IDX files and the binary files of CIFAR. Nothing is ever unpickled.

A small compressed file can hold any number of bytes: there is a limit to what is unpacked.
"""

import gzip
import io
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part, join_parts
from fedsynth.errors import DataError

PIXELS = 3 * 32 * 32
UNSIGNED_BYTE = 8
PARTS = (
    (("x_train", "y_train"), ("x_val", "y_val"), ("x_test", "y_test")),
    (("train_images", "train_labels"), ("val_images", "val_labels"), ("test_images", "test_labels")),
)
"""How files name examples and labels for training, validation and testing: Keras's way and MedMNIST's. Examples for
validation join those for training: every client holds out a part of its own."""
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


def read_npz(path: Path, config: DataConfig) -> Raw:
    """An .npz file by one of the ways to name its parts, or a folder in the packed layout."""
    if path.is_dir():
        return read_packed(path, config)
    arrays = load_arrays(path)
    for train, validation, test in PARTS:
        found = [
            _part(arrays, x, y, path, config) if x in arrays or y in arrays else None
            for x, y in (train, validation, test)
        ]
        if found[0] is not None:
            return Raw(join_parts([part for part in found[:2] if part is not None]), found[2])
    if "x" in arrays or "y" in arrays:
        return Raw(_part(arrays, "x", "y", path, config))
    raise DataError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; it needs x_train and y_train "
        "(and x_val, y_val, x_test, y_test), or x and y, or MedMNIST's train_images and train_labels."
    )


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file; pickled objects and files that would unpack to too much are refused."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; check the path after npz:.")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is not an .npz archive; write it with numpy.savez.")
        with archive:
            unpacked = check_unpacked_size(path)
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, MemoryError) as error:  # a header may promise more than any machine has
        if "pickle" in str(error).lower():
            raise DataError(
                f"{path} is not a plain .npz file or holds Python objects, which are never loaded; "
                "save numbers or text arrays with numpy.savez."
            ) from error
        raise DataError(f"{path} is damaged ({error}); write it again with numpy.savez.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable .npz file ({error}); write it again with numpy.savez.") from error
    # Entries of no bytes: there may be any number of them.
    if any(array.ndim and len(array) > unpacked for array in arrays.values()):
        raise DataError(f"{path} is damaged (it has more entries than bytes); write it again with numpy.savez.")
    return arrays


def _part(arrays: dict[str, np.ndarray], x: str, y: str, path: Path, config: DataConfig) -> Part:
    for key in (x, y):
        if key not in arrays:
            raise DataError(f"{path} has no array {key}; add it with numpy.savez.")
    where = f"{path} ({x}, {y})"
    labels = arrays[y]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # Keras stores CIFAR's labels as a column
    return check_part(as_examples(arrays[x], where, config.shape), labels, where)


def is_packed(folder: Path) -> bool:
    """Whether a folder has the packed layout: train-1.npz, train-2.npz, ... and perhaps test.npz."""
    return folder.is_dir() and (folder / "train-1.npz").is_file()


def read_packed(folder: Path, config: DataConfig) -> Raw:
    """A colour set packed as differences: files train-1.npz, ..., test.npz with the arrays `d` and `y`."""
    if not is_packed(folder):
        raise DataError(f"{folder} is a folder without train-1.npz; give the path of an .npz file.")
    files = sorted(folder.glob("train-*.npz"), key=lambda path: (len(path.name), path.name))
    test = folder / "test.npz"
    train = join_parts([_unpack(path, config) for path in files])
    return Raw(train, _unpack(test, config) if test.is_file() else None)


def _unpack(path: Path, config: DataConfig) -> Part:
    """Undo the packing: running sums along rows, then along columns, then the planes R-G, G, B-G."""
    arrays = load_arrays(path)
    if not {"d", "y"} <= set(arrays):
        raise DataError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; a packed file needs d and y.")
    differences = arrays["d"]
    if differences.dtype != np.uint8 or differences.ndim != 4 or len(differences) != 3:
        raise DataError(f"{path}: d must be uint8 of shape (3, n, height, width), not {differences.shape}.")
    planes = np.cumsum(np.cumsum(differences, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    x = np.ascontiguousarray(planes.transpose(1, 0, 2, 3))
    return check_part(as_examples(x, str(path), config.shape), arrays["y"], str(path))


def cifar_files(folder: Path) -> tuple[list[Path], Path] | None:
    """The files of CIFAR's official binary version in a folder, if they are there."""
    ten = sorted(folder.glob("data_batch_*.bin")), folder / "test_batch.bin"
    hundred = [folder / "train.bin"], folder / "test.bin"
    return next((found for found in (ten, hundred) if found[0] and found[0][0].is_file()), None)


def read_cifar_binary(folder: Path, config: DataConfig) -> Raw:
    """CIFAR's binary version: records of one label (CIFAR-100: coarse, fine) and 3072 pixels."""
    found = cifar_files(folder)
    if found is None:
        raise DataError(f"{folder} has neither data_batch_1.bin nor train.bin of CIFAR's binary version.")
    labels = 2 if found[0][0].name == "train.bin" else 1
    train = join_parts([_records(path, labels) for path in found[0]])
    return Raw(train, _records(found[1], labels) if found[1].is_file() else None)


def _records(path: Path, labels: int) -> Part:
    data = np.fromfile(path, np.uint8)
    if len(data) == 0 or len(data) % (labels + PIXELS):
        raise DataError(
            f"{path} is damaged: {len(data)} bytes are not whole records of {labels + PIXELS}; copy it again."
        )
    records = data.reshape(-1, labels + PIXELS)
    return check_part(records[:, labels:].reshape(-1, 3, 32, 32).copy(), records[:, labels - 1].copy(), str(path))


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
    return Raw(_read_pair(names["train"], config), _read_pair(names["test"], config) if "test" in names else None)


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
    labels = images.with_name(stem)
    if not labels.is_file():
        labels = images.with_name(stem + ".gz")
    if not labels.is_file():
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
    expected = math.prod(shape)
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
