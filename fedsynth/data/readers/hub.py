"""Known sets from the Hugging Face hub: parquet files whose images are PNG bytes (extra `hub`)."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part
from fedsynth.errors import DataError

Download = Callable[[str], Path]


@dataclass(frozen=True)
class HubSet:
    """Where a data set lives on the hub and what its columns are called."""

    repo: str
    image: str = "image"
    label: str = "label"


def hub_is_installed() -> bool:
    """Whether the optional extra `hub` is there."""
    return all(importlib.util.find_spec(name) is not None for name in ("huggingface_hub", "pyarrow"))


def download_parquet(repo: str) -> Path:
    """Fetch the parquet files of a data set, or find them in the hub's cache; returns their folder."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(repo, repo_type="dataset", allow_patterns=["*.parquet"])
    except Exception as error:  # the hub's many network errors all have the same remedy
        raise DataError(
            f"{repo} could not be downloaded ({error}); go online, or set FEDSYNTH_DATA to a folder with the files."
        ) from error
    return Path(folder)


def read_hub(name: str, home: HubSet, config: DataConfig, download: Download = download_parquet) -> Raw:
    """Download a known set and decode its images."""
    folder = download(home.repo)
    parts = {}
    for part in ("train", "test"):
        files = sorted(folder.rglob(f"{part}-*.parquet")) or sorted(folder.rglob(f"{part}.parquet"))
        if files:
            parts[part] = _read_files(files, home, config)
    if "train" not in parts:
        raise DataError(f"{folder} has no train-*.parquet for {name}; delete the folder so that it is fetched again.")
    return Raw(parts["train"], parts.get("test"))


def _read_files(files: list[Path], home: HubSet, config: DataConfig) -> Part:
    images, labels = [], []
    for path in files:
        pixels, numbers = _read_file(path, home)
        images.append(pixels)
        labels.append(numbers)
    where = str(files[0])
    return check_part(as_examples(np.concatenate(images), where, config.shape), np.concatenate(labels), where)


def _read_file(path: Path, home: HubSet) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=[home.image, home.label])
        cells = table.column(home.image).to_pylist()
        labels = table.column(home.label).to_numpy()
    except Exception as error:  # pyarrow's errors share no useful base
        raise DataError(f"{path} is not the expected parquet file ({error}); delete it to fetch it again.") from error
    if not cells:
        raise DataError(f"{path} has no rows; delete it to fetch it again.")
    try:
        pictures = [np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in cells]
        return np.stack(pictures), np.asarray(labels)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} holds an unreadable image ({error}); delete it to fetch it again.") from error
