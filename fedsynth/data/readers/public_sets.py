"""Public data sets by name: what they are called, where they are looked for, and what to do when absent."""

from __future__ import annotations

import os
import string
from dataclasses import dataclass, replace
from pathlib import Path

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.arrays import cifar_files, is_packed, read_cifar_binary, read_npz, read_packed
from fedsynth.data.readers.hub import HubSet, hub_is_installed, read_hub
from fedsynth.data.readers.idx import idx_names, read_idx_folder
from fedsynth.data.readers.raw import Raw
from fedsynth.errors import DataError

VARIABLE = "FEDSYNTH_DATA"
IDX_FILES = "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same with t10k"
CIFAR_FILES = "data_batch_1.bin ... data_batch_5.bin and test_batch.bin (CIFAR's binary version)"

DIGIT_NAMES = tuple(string.digits)
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LETTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
BALANCED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")  # the other small letters are merged


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
    for folder in folders:
        raw = _read_folder(folder, known, config)
        if raw is not None:
            return raw
    return None


def _read_folder(folder: Path, known: KnownSet, config: DataConfig) -> Raw | None:
    """Whatever layout the folder has, or None when it has none that we know."""
    if (folder / f"{known.name}.npz").is_file():
        return read_npz(folder / f"{known.name}.npz", config)
    if is_packed(folder):
        return read_packed(folder, config)
    for prefix in (f"{known.name}-", ""):  # EMNIST's archive has all its sets in one folder
        if idx_names(folder, prefix):
            return read_idx_folder(folder, config, prefix)
    if folder.is_dir() and cifar_files(folder):
        return read_cifar_binary(folder, config)
    archives = sorted(folder.glob("*.npz")) if folder.is_dir() and folder.name == known.name else []
    return read_npz(archives[0], config) if len(archives) == 1 else None


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
