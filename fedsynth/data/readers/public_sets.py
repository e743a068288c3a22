"""Public data sets by name: what they are called, where they are looked for, and what to do when absent.

From the Hugging Face hub (extra `hub`) they come as parquet files whose images are PNG bytes.
"""

import importlib.util
import io
import os
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.data.config import DataConfig
from fedsynth.data.readers import arrays
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part
from fedsynth.errors import DataError

VARIABLE = "FEDSYNTH_DATA"
IDX_FILES = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same with t10k"
CIFAR_FILES = "data_batch_1.bin ... data_batch_5.bin and test_batch.bin (CIFAR's binary version)"

DIGIT_NAMES = tuple(string.digits)
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LETTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
BALANCED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # the other small letters are merged


@dataclass(frozen=True)
class HubSet:
    """Where a data set lives on the hub and what its columns are called."""

    repo: str
    image: str = "image"
    label: str = "label"


@dataclass(frozen=True)
class KnownSet:
    """A public data set: its classes, other spellings, folders it may lie in, and its home on the hub."""

    name: str
    class_names: tuple[str, ...]
    files: str
    aliases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    hub: HubSet | None = None


KNOWN = {
    known.name: known
    for known in (
        KnownSet("mnist", DIGIT_NAMES, IDX_FILES, folders=("MNIST/raw",), hub=HubSet("ylecun/mnist")),
        KnownSet(
            "fashion-mnist",
            CLOTHES,
            IDX_FILES,
            aliases=("fmnist", "fashionmnist"),
            folders=("FashionMNIST/raw",),
            hub=HubSet("zalando-datasets/fashion_mnist"),
        ),
        KnownSet(
            "cifar10",
            THINGS,
            f"{CIFAR_FILES}, cifar10.npz with x_train, y_train, x_test, y_test, or train-1.npz ... test.npz",
            folders=("cifar-10-batches-bin",),
            hub=HubSet("uoft-cs/cifar10", image="img"),
        ),
        KnownSet(
            "cifar100",
            tuple(map(str, range(100))),
            "train.bin and test.bin (CIFAR's binary version), or cifar100.npz with x_train, y_train, x_test, y_test",
            folders=("cifar-100-binary",),
            hub=HubSet("uoft-cs/cifar100", image="img", label="fine_label"),
        ),
        KnownSet(
            "emnist-byclass",
            LETTERS,
            "emnist-byclass-train-images-idx3-ubyte.gz, emnist-byclass-train-labels-idx1-ubyte.gz "
            "and the same with test",
            aliases=("emnist",),
            folders=("EMNIST/raw", "gzip"),
        ),
        KnownSet(
            "emnist-balanced",
            BALANCED,
            "emnist-balanced-train-images-idx3-ubyte.gz, emnist-balanced-train-labels-idx1-ubyte.gz "
            "and the same with test",
            folders=("emnist", "EMNIST/raw", "gzip"),
        ),
        KnownSet("chars74k-hnd", LETTERS, IDX_FILES, aliases=("chars74k",)),
    )
}


def find_known(name: str) -> KnownSet | None:
    """The known set of that name; capitals, `_`, `-` and blanks do not matter."""
    plain = _plain(name)
    return next((known for known in KNOWN.values() if plain in map(_plain, (known.name, *known.aliases))), None)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def read_known(known: KnownSet, config: DataConfig) -> Raw:
    """Read a known set from `data.dir`, else FEDSYNTH_DATA, else the Hugging Face hub."""
    raw = _read_local(known, config)
    if raw is None and config.dir is None and known.hub is not None and hub_is_installed():
        raw = read_hub(known.name, known.hub, config)
    if raw is None:
        raise DataError(_how_to_get(known, config))
    _check_range(raw, known)
    return replace(raw, class_names=known.class_names)


def _read_local(known: KnownSet, config: DataConfig) -> Raw | None:
    root = config.dir or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if root is None:
        return None
    root = root.expanduser()
    folders = [root / name for name in (known.name, *known.aliases, *known.folders)]
    folders.append(root / known.name.replace("-", "_"))
    if config.dir is not None:
        folders.append(root)  # data.dir may be the data set's own folder
    found = (_read_folder(folder, known, config) for folder in folders)
    return next((raw for raw in found if raw is not None), None)


def _read_folder(folder: Path, known: KnownSet, config: DataConfig) -> Raw | None:
    """Whatever layout the folder has, or None when it has none that we know."""
    if (folder / f"{known.name}.npz").is_file():
        return arrays.read_npz(folder / f"{known.name}.npz", config)
    if arrays.is_packed(folder):
        return arrays.read_packed(folder, config)
    for prefix in (f"{known.name}-", ""):  # EMNIST's archive has all its sets in one folder
        if arrays.idx_names(folder, prefix):
            return arrays.read_idx_folder(folder, config, prefix)
    if folder.is_dir() and arrays.cifar_files(folder):
        return arrays.read_cifar_binary(folder, config)
    archives = sorted(folder.glob("*.npz")) if folder.is_dir() and folder.name == known.name else []
    return arrays.read_npz(archives[0], config) if len(archives) == 1 else None


def _check_range(raw: Raw, known: KnownSet) -> None:
    classes = len(known.class_names)
    for part in raw.parts():
        if part.y.dtype.kind != "i" or int(part.y.max()) >= classes:
            raise DataError(
                f"The files of {known.name} have label {part.y.max()} but its labels are 0 to {classes - 1}; "
                "they belong to another data set."
            )


def _how_to_get(known: KnownSet, config: DataConfig) -> str:
    place = f"{known.name}/ with {known.files}"
    if config.dir is not None:
        return f"data.dir = {config.dir} does not have {known.name}; put there a folder {place}."
    variable = os.environ.get(VARIABLE)
    tried = f"{VARIABLE} = {variable} does not have it" if variable else f"{VARIABLE} is not set"
    online = ", or run pip install 'fedsynth[hub]' to download it" if known.hub else ""
    return f"{known.name} was not found ({tried}): set {VARIABLE} or data.dir to a folder that has {place}{online}."


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


def read_hub(name: str, home: HubSet, config: DataConfig, download: Callable[[str], Path] = download_parquet) -> Raw:
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
    images, labels = zip(*(_read_file(path, home) for path in files), strict=True)
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
