"""Numpy archives, the packed colour layout, and the binary files of CIFAR. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.archives import check_unpacked_size
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part
from fedsynth.errors import DataError

PIXELS = 3 * 32 * 32


def read_npz(path: Path, config: DataConfig) -> Raw:
    """An .npz file with x_train, y_train [, x_test, y_test] or x, y; or a folder in the packed layout."""
    if path.is_dir():
        return read_packed(path, config)
    arrays = load_arrays(path)
    if "x_train" in arrays or "y_train" in arrays:
        train = _part(arrays, "x_train", "y_train", path, config)
        has_test = "x_test" in arrays or "y_test" in arrays
        return Raw(train, _part(arrays, "x_test", "y_test", path, config) if has_test else None)
    if "x" in arrays or "y" in arrays:
        return Raw(_part(arrays, "x", "y", path, config))
    raise DataError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; it needs x_train and y_train "
        "(and x_test, y_test), or x and y."
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
    except ValueError as error:
        if "allow_pickle" in str(error) or "pickle" in str(error).lower():
            raise DataError(
                f"{path} is not a plain .npz file or holds Python objects, which are never loaded; "
                "save numbers or text arrays with numpy.savez."
            ) from error
        raise DataError(f"{path} is damaged ({error}); write it again with numpy.savez.") from error
    except MemoryError as error:  # its header promises more than any machine has
        raise DataError(f"{path} is damaged ({error}); write it again with numpy.savez.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable .npz file ({error}); write it again with numpy.savez.") from error
    if any(
        array.ndim and len(array) > unpacked for array in arrays.values()
    ):  # entries of no bytes, any number of them
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
    parts = [_unpack(path, config) for path in files]
    train = Part(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
    test = folder / "test.npz"
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
    parts = [_records(path, labels) for path in found[0]]
    train = Part(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
    return Raw(train, _records(found[1], labels) if found[1].is_file() else None)


def _records(path: Path, labels: int) -> Part:
    data = np.fromfile(path, np.uint8)
    if len(data) == 0 or len(data) % (labels + PIXELS):
        raise DataError(
            f"{path} is damaged: {len(data)} bytes are not whole records of {labels + PIXELS}; copy it again."
        )
    records = data.reshape(-1, labels + PIXELS)
    return check_part(records[:, labels:].reshape(-1, 3, 32, 32).copy(), records[:, labels - 1].copy(), str(path))
