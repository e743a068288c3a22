"""Data that is already federated: one folder or one file per client, joined under one label map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.arrays import is_packed, read_npz
from fedsynth.data.readers.idx import idx_names, read_idx_folder
from fedsynth.data.readers.image_folders import class_folders, read_image_folder
from fedsynth.data.readers.raw import Part, Raw, describe_shape
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
    """All clients of a folder as one source whose groups are the clients' ids."""
    inner = config.model_copy(update={"client_column": None})
    clients = {client: read_client(path, inner) for client, path in client_paths(folder).items()}
    return join_clients(clients, str(folder))


def join_clients(clients: dict[str, Raw], where: str) -> Raw:
    """One source out of many; a client whose shape or columns differ is named with the difference."""
    clients = unify_channels(clients)
    problem = next(iter(find_differences(clients)), None)
    if problem is not None:
        raise DataError(f"{where}: {problem}")
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
    if not all(raw.from_pictures for raw in clients.values()):
        return clients
    if len({raw.train.x.shape[1] for raw in clients.values()}) == 1:
        return clients
    return {client: _as_rgb(raw) for client, raw in clients.items()}


def _as_rgb(raw: Raw) -> Raw:
    if raw.train.x.shape[1] == 3:
        return raw
    parts = [Part(np.repeat(part.x, 3, axis=1), part.y) for part in raw.parts()]
    return replace(raw, train=parts[0], test=parts[1] if len(parts) > 1 else None)


def _in_order(raw: Raw, columns: tuple[str, ...]) -> Raw:
    if raw.columns == columns or not columns or not raw.columns or raw.train.x.ndim != 2:
        return raw
    order = [raw.columns.index(column) for column in columns]
    parts = [Part(part.x[:, order], part.y) for part in raw.parts()]
    return replace(raw, train=parts[0], test=parts[1] if len(parts) > 1 else None, columns=columns)


def _join(parts: list[Part]) -> Part:
    if len({part.x.dtype for part in parts}) > 1:
        parts = [Part(_as_float(part.x), part.y) for part in parts]
    return Part(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _as_float(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 255 if x.dtype == np.uint8 else x
