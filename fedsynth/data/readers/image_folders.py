"""Folders of PNG and JPEG files: one folder per class, optionally inside train/ and test/."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.raw import Part, Raw
from fedsynth.errors import DataError

ENDINGS = {".png", ".jpg", ".jpeg"}


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
    if all(_is_grey(part.x) for part in parts):
        parts = [replace(part, x=np.ascontiguousarray(part.x[:, :1])) for part in parts]
    return Raw(parts[0], parts[1] if len(parts) > 1 else None, from_pictures=True)


def class_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def picture_files(folder: Path) -> list[Path]:
    """The PNG and JPEG files of one folder, in order."""
    files = (path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    return sorted(path for path in files if not path.name.startswith("."))


def _read_classes(folder: Path, config: DataConfig) -> Part:
    folders = class_folders(folder)
    if not folders:
        raise DataError(f"{folder} has no sub-folders; put the images of each class in a folder of its own.")
    files, labels = [], []
    for class_folder in folders:
        pictures = picture_files(class_folder)
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


def _is_grey(x: np.ndarray) -> bool:
    return bool(np.array_equal(x[:, 0], x[:, 1]) and np.array_equal(x[:, 0], x[:, 2]))
