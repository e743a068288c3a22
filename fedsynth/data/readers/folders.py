"""Folders of images, one for each class; and data that is already federated, one folder or file for each client."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.arrays import idx_names, is_packed, read_idx_folder, read_npz
from fedsynth.data.readers.raw import Part, Raw, describe_shape, join_parts
from fedsynth.data.readers.tables import describe_difference, read_csv, read_parquet
from fedsynth.errors import DataError

Reader = Callable[[Path, DataConfig], Raw]
FILE_READERS: dict[str, Reader] = {".npz": read_npz, ".csv": read_csv, ".parquet": read_parquet}


def client_paths(folder: Path) -> dict[str, Path]:
    """Client ids and their places: sub-folders, and files that end in .npz, .csv or .parquet."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; clients: needs one sub-folder or one file per client.")
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix.lower() in FILE_READERS]
    found: dict[str, Path] = {}
    for path in sorted([*class_folders(folder), *(path for path in files if not path.name.startswith("."))]):
        client = path.name if path.is_dir() else path.stem
        if client in found:
            raise DataError(f'{folder} has two places for client "{client}": {found[client].name} and {path.name}.')
        found[client] = path
    if not found:
        raise DataError(
            f"{folder} has no clients; each needs a sub-folder (images or IDX) or a file (.npz, .csv or .parquet)."
        )
    return found


def read_client(path: Path, config: DataConfig) -> Raw:
    """The data of one client, whatever its form."""
    if not path.is_dir():
        return FILE_READERS[path.suffix.lower()](path, config)
    if idx_names(path):
        return read_idx_folder(path, config)
    if is_packed(path):
        return read_npz(path, config)
    for ending, reader in FILE_READERS.items():
        if (path / f"train{ending}").is_file() and ending != ".npz":
            return reader(path, config)
    return read_image_folder(path, config)


def read_clients(folder: Path, config: DataConfig) -> Raw:
    """All clients of a folder as one source whose groups are the clients' ids; a client that differs is named."""
    inner = config.model_copy(update={"client_column": None})
    clients = unify_channels({client: read_client(path, inner) for client, path in client_paths(folder).items()})
    if problems := find_differences(clients):
        raise DataError(f"{folder}: {problems[0]}")
    columns = next(iter(clients.values())).columns
    raws = [_in_order(raw, columns) for raw in clients.values()]
    groups = np.repeat(np.array(list(clients)), [len(raw.train.y) for raw in raws])
    tests = [raw.test for raw in raws if raw.test is not None]
    return Raw(_join([raw.train for raw in raws]), _join(tests) if tests else None, columns, groups)


def find_differences(clients: dict[str, Raw]) -> list[str]:
    """One sentence per client that does not fit the first one."""
    first_id, first = next(iter(clients.items()))
    problems = []
    for client, raw in clients.items():
        if set(raw.columns) != set(first.columns) and raw.columns and first.columns:
            problem = describe_difference(first.columns, raw.columns)
        elif raw.train.x.shape[1:] != first.train.x.shape[1:]:
            problem = f"its examples are {describe_shape(raw.train.x)}, not {describe_shape(first.train.x)}"
        elif raw.train.y.dtype.kind != first.train.y.dtype.kind:
            kind = {"U": "text", "i": "whole numbers"}
            problem = f"its labels are {kind[raw.train.y.dtype.kind]}, not {kind[first.train.y.dtype.kind]}"
        elif (raw.test is None) != (first.test is None):
            problem = "it has no test part" if raw.test is None else "it has a test part"
        else:
            continue
        problems.append(f'client "{client}" differs from client "{first_id}": {problem}.')
    return problems


def unify_channels(clients: dict[str, Raw]) -> dict[str, Raw]:
    """Image folders are grey only if every client's are; otherwise grey clients become RGB like the rest."""
    pictures = all(raw.from_pictures for raw in clients.values())
    if not pictures or len({raw.train.x.shape[1] for raw in clients.values()}) == 1:
        return clients
    as_rgb = {1: lambda x: np.repeat(x, 3, axis=1), 3: lambda x: x}
    return {client: raw.change_examples(as_rgb[raw.train.x.shape[1]]) for client, raw in clients.items()}


def _in_order(raw: Raw, columns: tuple[str, ...]) -> Raw:
    if raw.columns == columns or not columns or not raw.columns or raw.train.x.ndim != 2:
        return raw
    order = [raw.columns.index(column) for column in columns]
    return replace(raw.change_examples(lambda x: x[:, order]), columns=columns)


def _join(parts: list[Part]) -> Part:
    if len({part.x.dtype for part in parts}) > 1:
        parts = [Part(part.x.astype(np.float32) / 255, part.y) if part.x.dtype == np.uint8 else part for part in parts]
    return join_parts(parts)


def read_image_folder(folder: Path, config: DataConfig) -> Raw:
    """Images by class folder; grey if every image is grey, else RGB (transparency is dropped)."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; images: needs a folder with one sub-folder per class.")
    names = {path.name for path in class_folders(folder)}
    split = "train" in names and names <= {"train", "test"}
    parts = [_read_classes(folder / "train" if split else folder, config)]
    if split and "test" in names:
        parts.append(_read_classes(folder / "test", config))
    if len({part.x.shape[1:] for part in parts}) > 1:
        raise DataError(f"{folder}: train and test images have different sizes; set data.image_size, as in 32.")
    if all((part.x == part.x[:, :1]).all() for part in parts):
        parts = [replace(part, x=np.ascontiguousarray(part.x[:, :1])) for part in parts]
    return Raw(parts[0], parts[1] if len(parts) > 1 else None, from_pictures=True)


def class_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _read_classes(folder: Path, config: DataConfig) -> Part:
    folders = class_folders(folder)
    if not folders:
        raise DataError(f"{folder} has no sub-folders; put the images of each class in a folder of its own.")
    files, labels = [], []
    for class_folder in folders:
        visible = (path for path in class_folder.iterdir() if not path.name.startswith("."))
        pictures = sorted(path for path in visible if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
        if not pictures:
            raise DataError(f"{class_folder} has no PNG or JPEG files; add some or remove the folder.")
        files += pictures
        labels += [class_folder.name] * len(pictures)
    first = read_picture(files[0], config.size)
    x = np.empty((len(files), *first.shape), np.uint8)
    for row, path in enumerate(files):
        picture = read_picture(path, config.size)
        if picture.shape != first.shape:
            raise DataError(
                f"{path} is {picture.shape[1]}x{picture.shape[2]} but {files[0]} is "
                f"{first.shape[1]}x{first.shape[2]}; make them equal or set data.image_size, as in 32."
            )
        x[row] = picture
    return Part(x, np.array(labels))


def read_picture(path: Path, size: tuple[int, int] | None) -> np.ndarray:
    """One image as (3, height, width) bytes."""
    try:
        with Image.open(path) as picture:
            if picture.mode.startswith(("I", "F")):
                raise DataError(f"{path} has more than 8 bits per pixel; convert it to an 8-bit image.")
            rgb = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable image ({error}); replace or remove it.") from error
    if size is not None and rgb.size != size[::-1]:
        rgb = rgb.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(rgb, np.uint8).transpose(2, 0, 1)
