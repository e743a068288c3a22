"""Every source reads what it promises, and every bad file gets one sentence that names it."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedsynth.data.config import DataConfig, parse_data
from fedsynth.data.readers import arrays
from fedsynth.data.sources import load_source, load_sources
from fedsynth.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 5, 4), dtype=np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 3


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("FEDSYNTH_DATA", raising=False)


def load(name: str, **keys):
    return load_source(DataConfig(name=str(name), **keys), seed=0)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_idx_set(folder: Path, prefix: str = "", test: str = "t10k", ending: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", test):
        write_idx(folder / f"{prefix}{part}-images-idx3-ubyte{ending}", PIXELS)
        write_idx(folder / f"{prefix}{part}-labels-idx1-ubyte{ending}", LABELS)
    return folder


def test_digits_are_embedded_and_in_range():
    source = load("digits")
    assert source.train.x.shape == (1797, 1, 8, 8)
    assert source.train.x.dtype == np.float32
    assert source.train.x.max() == 1
    assert source.test is None
    assert source.schema.classes == 10


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_plain_and_gzipped(tmp_path, ending):
    source = load(f"idx:{write_idx_set(tmp_path, ending=ending)}")
    assert np.array_equal(source.train.x[:, 0], PIXELS)
    assert source.test is not None
    assert np.array_equal(source.test.y, LABELS)


def test_emnist_images_are_turned_upright(tmp_path):
    folder = write_idx_set(tmp_path, prefix="emnist-byclass-", test="test")
    assert np.array_equal(load(f"idx:{folder}").train.x[:, 0], PIXELS.transpose(0, 2, 1))


def test_known_emnist_set_is_picked_from_a_folder_with_several(tmp_path):
    write_idx_set(tmp_path / "gzip", prefix="emnist-byclass-", test="test", ending=".gz")
    write_idx_set(tmp_path / "gzip", prefix="emnist-balanced-", test="test", ending=".gz")
    assert load("emnist-balanced", dir=tmp_path).schema.classes == 47
    assert load("emnist-byclass", dir=tmp_path).schema.classes == 62
    with pytest.raises(DataError, match="keep one data set per folder"):
        load(f"idx:{tmp_path / 'gzip'}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:100], "promises 400 bytes and it has 84"),
        (lambda data: data[:3], "cut short"),
        (lambda data: b"", "cut short"),
        (lambda data: b"\x00\x00\x09\x03" + data[4:], "magic"),
        (lambda data: data + b"x", "damaged"),
    ],
)
def test_damaged_idx_names_the_file(tmp_path, damage, message):
    folder = write_idx_set(tmp_path)
    images = folder / "train-images-idx3-ubyte"
    images.write_bytes(damage(images.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load(f"idx:{folder}")
    assert str(images) in str(caught.value)


def test_truncated_gzip_names_the_file(tmp_path):
    folder = write_idx_set(tmp_path, ending=".gz")
    images = folder / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-30])
    with pytest.raises(DataError, match="damaged gzip"):
        load(f"idx:{folder}")
    images.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match="damaged gzip"):
        load(f"idx:{folder}")


def test_idx_without_labels_or_with_too_few(tmp_path):
    folder = write_idx_set(tmp_path)
    write_idx(folder / "train-labels-idx1-ubyte", LABELS[:-1])
    with pytest.raises(DataError, match="20 examples but 19 labels"):
        load(f"idx:{folder}")
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="has no labels beside it"):
        load(f"idx:{folder}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no IDX files"):
        load(f"idx:{tmp_path / 'empty'}")
    write_idx(tmp_path / "empty" / "t10k-images-idx3-ubyte", PIXELS)
    with pytest.raises(DataError, match="no training images"):
        load(f"idx:{tmp_path / 'empty'}")


def npz(path: Path, **arrays) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_npz_layouts_become_channels_first(tmp_path):
    path = tmp_path / "a.npz"
    rgb = RNG.integers(0, 256, (20, 5, 4, 3), dtype=np.uint8)
    source = load(npz(path, x_train=rgb, y_train=LABELS, x_test=rgb[:5], y_test=LABELS[:5, None]))
    assert source.train.x.shape == (20, 3, 5, 4)
    assert np.array_equal(source.train.x[2, 1], rgb[2, :, :, 1])
    assert source.test is not None
    assert len(source.test) == 5
    assert load(npz(path, x=PIXELS, y=LABELS)).train.x.shape == (20, 1, 5, 4)
    assert load(npz(path, x=PIXELS.astype(np.int64), y=LABELS)).train.x.dtype == np.uint8
    assert load(npz(path, x=PIXELS / 255, y=LABELS)).train.x.dtype == np.float32
    rows = load(npz(path, x=PIXELS.reshape(20, -1), y=LABELS))
    assert rows.train.x.shape == (20, 20)
    assert rows.train.x.dtype == np.float32
    assert load(npz(path, x=PIXELS.reshape(20, -1), y=LABELS), shape=[1, 5, 4]).train.x.dtype == np.uint8


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": LABELS}, "holds a; it needs"),
        ({"x_train": PIXELS}, "no array y_train"),
        ({"x": PIXELS, "y": LABELS[:4]}, "20 examples but 4 labels"),
        ({"x": PIXELS, "y": LABELS.astype(float)}, "whole numbers or as text"),
        ({"x": PIXELS, "y": LABELS.astype(int) - 1}, "label -1 is negative"),
        ({"x": PIXELS, "y": LABELS.astype(int) * 10**6}, "out of range"),
        ({"x": PIXELS[:0], "y": LABELS[:0]}, "holds no examples"),
        ({"x": np.full((20, 3), np.nan), "y": LABELS}, "NaN"),
        ({"x": np.full((20, 3), 1e300), "y": LABELS}, "too large"),
        ({"x": np.array(["a"] * 20), "y": LABELS}, "must be numbers"),
        ({"x": np.zeros((20, 7, 7, 7)), "y": LABELS}, "neither rows nor images"),
        ({"x": PIXELS, "y": np.zeros((20, 2), int)}, "one label per example"),
    ],
)
def test_bad_arrays_get_a_sentence(tmp_path, arrays, message):
    path = tmp_path / "bad.npz"
    with pytest.raises(DataError, match=message) as caught:
        load(npz(path, **arrays))
    assert str(path) in str(caught.value)


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([Bomb()], dtype=object), y=LABELS[:1])
    with pytest.raises(DataError, match="never loaded"):
        load(f"npz:{path}")
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="never loaded"):
        load(f"npz:{path}")
    assert not (tmp_path / "exploded").exists()


def test_truncated_and_missing_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=PIXELS, y=LABELS)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"a\.npz is not a readable"):
        load(f"npz:{path}")
    with pytest.raises(DataError, match="does not exist"):
        load(f"npz:{tmp_path / 'b.npz'}")
    np.save(tmp_path / "c.npy", PIXELS)
    with pytest.raises(DataError, match=r"not an \.npz archive"):
        load(f"npz:{tmp_path / 'c.npy'}")
    with pytest.raises(DataError, match=r"without train-1\.npz"):
        load(f"npz:{tmp_path}")


def test_an_archive_that_would_unpack_to_too_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_UNPACKED", 10_000)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((20, 30, 30), np.uint8), y=LABELS)
    assert path.stat().st_size < 1000
    with pytest.raises(DataError, match=r"bomb\.npz would unpack to 18,\d\d\d bytes, and 10,000 are the most"):
        load(f"npz:{path}")
    assert len(load(npz(tmp_path / "small.npz", x=PIXELS, y=LABELS)).train) == 20


def test_an_archive_that_unpacks_to_more_than_it_declares_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_UNPACKED", 10_000)
    path = tmp_path / "liar.npz"
    np.savez_compressed(path, x=np.zeros((20, 300, 300), np.uint8), y=LABELS)
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("x.npy").file_size.to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (1000).to_bytes(4, "little")))
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("x.npy").file_size == 1000
    with pytest.raises(DataError, match=r"liar\.npz"):
        load(f"npz:{path}")


@pytest.mark.parametrize(("kind", "shape"), [("|u1", (10**16,)), ("|S0", (10**12,)), ("|u1", (10**12, 0))])
def test_an_array_that_is_nowhere_near_its_bytes_is_refused(tmp_path, kind, shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue())
    with pytest.raises(DataError, match=r"a\.npz is damaged"):
        load(f"npz:{tmp_path / 'a.npz'}")


def test_a_gzipped_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    folder = write_idx_set(tmp_path, ending=".gz")
    monkeypatch.setattr(arrays, "LARGEST_UNPACKED", 300)
    with pytest.raises(DataError, match=r"idx3-ubyte\.gz would unpack to more than 300 bytes"):
        load(f"idx:{folder}")


def pack(images: np.ndarray) -> np.ndarray:
    planes = images.transpose(3, 0, 1, 2).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    columns = np.diff(planes, axis=3, prepend=np.zeros_like(planes[..., :1]))
    return np.diff(columns, axis=2, prepend=np.zeros_like(columns[:, :, :1]))


def test_packed_colour_layout_is_restored_exactly(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    rgb = RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    for number in range(2):
        rows = slice(10 * number, 10 * number + 10)
        np.savez(folder / f"train-{number + 1}.npz", d=pack(rgb[rows]), y=labels[rows])
    np.savez(folder / "test.npz", d=pack(rgb[20:]), y=labels[20:])
    for name, keys in ((f"npz:{folder}", {}), ("cifar-10", {"dir": tmp_path}), ("cifar10", {"dir": folder})):
        source = load(name, **keys)
        assert np.array_equal(source.train.x, rgb[:20].transpose(0, 3, 1, 2))
        assert source.test is not None
        assert np.array_equal(source.test.x, rgb[20:].transpose(0, 3, 1, 2))
    np.savez(folder / "test.npz", d=np.zeros((2, 2), np.uint8), y=labels)
    with pytest.raises(DataError, match=r"test\.npz: d must be uint8"):
        load("cifar10", dir=tmp_path)
    np.savez(folder / "test.npz", z=labels)
    with pytest.raises(DataError, match="needs d and y"):
        load("cifar10", dir=tmp_path)


def test_cifar_binary_version(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    pixels = RNG.integers(0, 256, (6, 3072), dtype=np.uint8)
    records = np.concatenate([np.arange(6, dtype=np.uint8)[:, None], pixels], axis=1)
    records.tofile(folder / "data_batch_1.bin")
    records.tofile(folder / "test_batch.bin")
    source = load("cifar10", dir=tmp_path)
    assert np.array_equal(source.train.x.reshape(6, -1), pixels)
    assert source.schema.class_names[3] == "cat"
    (folder / "data_batch_1.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="not whole records"):
        load("cifar10", dir=tmp_path)


def test_known_names_aliases_and_environment(tmp_path, monkeypatch):
    write_idx_set(tmp_path / "fashion-mnist")
    monkeypatch.setenv("FEDSYNTH_DATA", str(tmp_path))
    sources = [load(name) for name in ("fashion-mnist", "fmnist", "FashionMNIST", "fashion_mnist")]
    assert {source.name for source in sources} == {"fashion-mnist"}
    assert sources[0].schema.class_names[0] == "T-shirt/top"
    assert sources[0].schema.classes == 10


def test_absent_known_set_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsynth.data.readers.public_sets.hub_is_installed", lambda: False)
    with pytest.raises(DataError, match="FEDSYNTH_DATA is not set") as caught:
        load("mnist")
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    assert "fedsynth[hub]" in str(caught.value)
    monkeypatch.setenv("FEDSYNTH_DATA", str(tmp_path))
    with pytest.raises(DataError, match="does not have it"):
        load("chars74k-hnd")
    with pytest.raises(DataError, match=r"data\.dir = .* does not have mnist"):
        load("mnist", dir=tmp_path)


def test_known_set_with_foreign_labels_is_refused(tmp_path):
    folder = write_idx_set(tmp_path / "mnist")
    write_idx(folder / "train-labels-idx1-ubyte", LABELS + 9)
    with pytest.raises(DataError, match="label 11 but its labels are 0 to 9"):
        load("mnist", dir=tmp_path)


def test_unknown_names_get_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match='Did you mean "mnist"'):
        load("mnits")
    (tmp_path / "a.csv").write_text("x,label\n1,0\n")
    with pytest.raises(ConfigError, match='"csv:'):
        load(tmp_path / "a.csv")
    with pytest.raises(DataError, match="does not exist"):
        load("csv:nowhere.csv")
    with pytest.raises(ConfigError, match=r'no key "nmae"\. Did you mean "name"'):
        parse_data({"nmae": "digits"})
    with pytest.raises(ConfigError, match="together must stay below 1"):
        parse_data({"validation": 0.5, "test": 0.5})
    with pytest.raises(ConfigError, match="give one number each"):
        parse_data({"sources": ["digits", "digits"], "shares": [1]})


def test_limit_is_stratified_and_seeded():
    config = DataConfig(limit=300)
    first, again, other = (load_source(config, seed) for seed in (0, 0, 1))
    assert len(first.train) == 300
    assert first.fingerprint == again.fingerprint != other.fingerprint
    whole = load("digits").train.counts(10) * 300 / 1797
    assert np.abs(first.train.counts(10) - whole).max() < 1
    assert len(load("digits", limit=10**6).train) == 1797


def test_classes_are_kept_and_renumbered():
    source = load("digits", classes=[7, "3"])
    assert source.schema.class_names == ("7", "3")
    assert source.train.counts(2).tolist() == [179, 183]
    with pytest.raises(DataError, match="no class 12"):
        load("digits", classes=[12])
    with pytest.raises(DataError, match="none twice"):
        load("digits", classes=[1, 1])


def test_several_sources_must_agree_in_shape(tmp_path):
    other = npz(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    with pytest.raises(DataError, match=r"1x5x4 but digits of 1x8x8.*image_size"):
        load_sources(DataConfig(sources=["digits", other]))
    sources = load_sources(DataConfig(sources=["digits", other], image_size=6))
    assert [source.schema.shape for source in sources] == [(1, 6, 6)] * 2
    with pytest.raises(ConfigError, match="2 sources"):
        load_source(DataConfig(sources=["digits", "digits"]))


def test_fingerprint_depends_on_content_only(tmp_path):
    first = load(npz(tmp_path / "a.npz", x=PIXELS, y=LABELS))
    same = load(npz(tmp_path / "b.npz", x=PIXELS, y=LABELS))
    other = load(npz(tmp_path / "c.npz", x=PIXELS, y=LABELS[::-1]))
    assert first.fingerprint == same.fingerprint != other.fingerprint
