"""People's own files: image folders, tables, one place per client, and the hub's parquet files."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.public_sets import HubSet, read_hub
from fedsynth.data.sources import load_source
from fedsynth.errors import DataError

RNG = np.random.default_rng(0)


def load(name: str, **keys):
    return load_source(DataConfig(name=str(name), **keys), seed=0)


def picture(path, size=(6, 5), grey=True, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size if grey else (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_image_folder_grey_and_colour(tmp_path):
    pixels = picture(tmp_path / "cat" / "1.png")
    picture(tmp_path / "dog" / "1.png", seed=1)
    picture(tmp_path / "dog" / "2.jpg", seed=2)
    source = load(f"images:{tmp_path}")
    assert source.train.x.shape == (3, 1, 6, 5)
    assert np.array_equal(source.train.x[0, 0], pixels)
    assert source.schema.class_names == ("cat", "dog")
    picture(tmp_path / "dog" / "3.png", grey=False)
    assert load(f"images:{tmp_path}").train.x.shape == (4, 3, 6, 5)


def test_image_folder_with_train_and_test(tmp_path):
    for part in ("train", "test"):
        for name in ("2", "10", "1"):
            picture(tmp_path / part / name / "a.png")
    source = load(f"images:{tmp_path}")
    assert source.test is not None
    assert source.schema.class_names == ("1", "2", "10")  # numbers sort by value


def test_images_of_two_sizes_need_image_size(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "1.png", size=(9, 9))
    with pytest.raises(DataError, match=r"9x9 but .* is 6x5.*data\.image_size"):
        load(f"images:{tmp_path}")
    assert load(f"images:{tmp_path}", image_size=[4, 3]).schema.shape == (1, 4, 3)


def test_bad_image_folders(tmp_path):
    with pytest.raises(DataError, match="no sub-folders"):
        load(f"images:{tmp_path}")
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="no PNG or JPEG"):
        load(f"images:{tmp_path}")
    (tmp_path / "a" / "x.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"x\.png is not a readable image"):
        load(f"images:{tmp_path}")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a" / "x.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        load(f"images:{tmp_path}")


def table(rows: int = 12) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": np.arange(rows),
            "dose": np.linspace(0, 1, rows),
            "site": ["007", "012", "007"] * (rows // 3),
            "label": ["well", "ill", "NA"] * (rows // 3),
        }
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_with_client_column(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    table().to_csv(path, index=False) if kind == "csv" else table().to_parquet(path)
    source = load(f"{kind}:{path}", client_column="site")
    assert source.train.x.shape == (12, 2)
    assert source.train.x.dtype == np.float32
    assert source.schema.class_names == ("NA", "ill", "well")
    assert source.train.y[:3].tolist() == [2, 1, 0]
    assert source.groups is not None
    assert source.groups.tolist()[:3] == ["007", "012", "007"]


def test_table_reshaped_to_images_is_stored_as_bytes(tmp_path):
    pixels = RNG.integers(0, 256, (6, 12))
    frame = pd.DataFrame(pixels).assign(kind=[0, 1, 0, 1, 0, 1])
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = load(f"csv:{tmp_path / 't.csv'}", label="kind", shape=[1, 3, 4])
    assert source.train.x.dtype == np.uint8
    assert np.array_equal(source.train.x.reshape(6, 12), pixels)
    with pytest.raises(DataError, match=r"12 values, which do not fit data\.shape"):
        load(f"csv:{tmp_path / 't.csv'}", label="kind", shape=[1, 5, 5])


def test_csv_folder_with_train_and_test(tmp_path):
    frame = table()[["age", "dose", "label"]]
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame[["dose", "label", "age"]].to_csv(tmp_path / "test.csv", index=False)
    source = load(f"csv:{tmp_path}")
    assert source.test is not None
    assert np.array_equal(source.test.x, source.train.x)
    frame[["dose", "label"]].to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(DataError, match="lacks column age"):
        load(f"csv:{tmp_path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,label\n", "no rows"),
        ("a,lable\n1,0\n", 'no column "label".*Did you mean "lable"'),
        ("a,label\nx,0\n", 'column "a" is not numeric'),
        ("a,label\n1,0\n,1\nNA,1\n", 'column "a" has no value in 2 rows'),
        ("a,label\n1,0\n2,\n", 'column "label" has no value in 1 rows'),
        ("a,label\n1,0.5\n", "whole numbers or as text"),
        ("a,label\n1,-3\n", "label -3 is negative"),
        ("label\n1\n", "no feature columns"),
        ('a,label\n1,"0\n', "not a readable csv"),
    ],
)
def test_bad_csv_names_the_column(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load(f"csv:{tmp_path / 't.csv'}")
    assert "t.csv" in str(caught.value)


def test_bad_parquet_names_the_file(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"t\.parquet is not a readable parquet"):
        load(f"parquet:{tmp_path / 't.parquet'}")
    with pytest.raises(DataError, match=r"without train\.parquet"):
        load(f"parquet:{tmp_path}")


def test_client_column_must_exist(tmp_path):
    table().drop(columns="site").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"data\.client_column"):
        load(f"csv:{tmp_path / 't.csv'}", client_column="hospital")


def test_clients_share_one_label_map(tmp_path):
    for client, labels in {"north": ["b", "c"], "south": ["a", "c"]}.items():
        pd.DataFrame({"u": [1, 2], "v": [3, 4], "label": labels}).to_csv(tmp_path / f"{client}.csv", index=False)
    pd.DataFrame({"v": [30], "label": ["a"], "u": [10]}).to_parquet(tmp_path / "west.parquet")
    source = load(f"clients:{tmp_path}")
    assert source.schema.class_names == ("a", "b", "c")
    assert source.groups is not None
    assert source.groups.tolist() == ["north", "north", "south", "south", "west"]
    assert source.train.y.tolist() == [1, 2, 0, 2, 0]
    assert source.train.x[-1].tolist() == [10, 30]  # columns in the order of the first client


def test_clients_in_folders_and_archives(tmp_path):
    picture(tmp_path / "one" / "cat" / "1.png")
    picture(tmp_path / "two" / "dog" / "1.png", grey=False)
    source = load(f"clients:{tmp_path}")
    assert source.train.x.shape == (2, 3, 6, 5)  # grey clients become RGB when another is in colour
    np.savez(tmp_path / "three.npz", x=np.zeros((2, 6, 5), np.uint8), y=np.array(["cat", "dog"]))
    picture(tmp_path / "one" / "cat" / "1.png", grey=False)
    with pytest.raises(DataError, match='client "three" differs from client "one": its examples are 1x6x5'):
        load(f"clients:{tmp_path}")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"u": [1], "label": ["a"]}, "lacks column v"),
        ({"u": [1], "v": [1], "w": [2], "label": ["a"]}, "adds column w"),
        ({"u": [1], "v": [1], "label": [3]}, "labels are whole numbers, not text"),
    ],
)
def test_a_client_that_differs_is_named(tmp_path, frame, message):
    pd.DataFrame({"u": [1, 2], "v": [3, 4], "label": ["a", "b"]}).to_csv(tmp_path / "first.csv", index=False)
    pd.DataFrame(frame).to_csv(tmp_path / "second.csv", index=False)
    with pytest.raises(DataError, match=f'client "second" differs from client "first": .*{message}'):
        load(f"clients:{tmp_path}")


def test_clients_folder_problems(tmp_path):
    with pytest.raises(DataError, match="has no clients"):
        load(f"clients:{tmp_path}")
    for ending in ("npz", "csv"):
        (tmp_path / f"a.{ending}").write_text("x")
    with pytest.raises(DataError, match='two places for client "a"'):
        load(f"clients:{tmp_path}")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=[0, 1])
    (tmp_path / "a.csv").unlink()
    np.savez(tmp_path / "b.npz", x_train=np.zeros((2, 3)), y_train=[0, 1], x_test=np.zeros((2, 3)), y_test=[0, 1])
    with pytest.raises(DataError, match='client "b" differs from client "a": it has a test part'):
        load(f"clients:{tmp_path}")


def png(pixels: np.ndarray) -> dict[str, object]:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def hub_folder(tmp_path, rows: int = 4):
    pixels = RNG.integers(0, 256, (rows, 6, 5), dtype=np.uint8)
    frame = pd.DataFrame({"image": [png(image) for image in pixels], "label": np.arange(rows) % 3})
    (tmp_path / "mnist").mkdir()
    frame.iloc[:2].to_parquet(tmp_path / "mnist" / "train-00000-of-00002.parquet")
    frame.iloc[2:].to_parquet(tmp_path / "mnist" / "train-00001-of-00002.parquet")
    frame.to_parquet(tmp_path / "mnist" / "test-00000-of-00001.parquet")
    return pixels


def test_hub_parquet_is_decoded(tmp_path):
    pixels = hub_folder(tmp_path)
    asked = []
    raw = read_hub("mnist", HubSet("ylecun/mnist"), DataConfig(), download=lambda repo: asked.append(repo) or tmp_path)
    assert asked == ["ylecun/mnist"]
    assert np.array_equal(raw.train.x[:, 0], pixels)
    assert raw.test is not None
    assert raw.test.y.tolist() == [0, 1, 2, 0]


def test_hub_is_asked_when_nothing_is_local(tmp_path, monkeypatch):
    hub_folder(tmp_path)
    monkeypatch.delenv("FEDSYNTH_DATA", raising=False)
    monkeypatch.setattr("fedsynth.data.readers.public_sets.hub_is_installed", lambda: True)
    monkeypatch.setattr(
        "fedsynth.data.readers.public_sets.read_hub",
        lambda name, home, config: read_hub(name, home, config, download=lambda repo: tmp_path),
    )
    assert load("mnist").schema.classes == 10


def test_hub_problems_are_sentences(tmp_path):
    def read(home):
        return read_hub("mnist", home, DataConfig(), download=lambda repo: tmp_path)

    with pytest.raises(DataError, match=r"no train-\*\.parquet"):
        read(HubSet("ylecun/mnist"))
    hub_folder(tmp_path)
    with pytest.raises(DataError, match="not the expected parquet"):
        read(HubSet("ylecun/mnist", image="img"))
    pd.DataFrame({"image": [{"bytes": b"no", "path": None}], "label": [0]}).to_parquet(
        tmp_path / "mnist" / "train-00000-of-00002.parquet"
    )
    with pytest.raises(DataError, match="unreadable image"):
        read(HubSet("ylecun/mnist"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b;label\n1;2;0\n", "divided by ';'"),
        ("a,a,label\n1,2,0\n", 'several columns "a"'),
        ("a,b,label\n1,x,0\n2,?,1\ny,3,1\n", r"\"a\" is not numeric \(such as 'y' in row 3\); column \"b\""),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load_source(DataConfig(name=f"csv:{tmp_path / 't.csv'}"))


def test_labels_are_what_people_mean(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\n1,0.0\n2,1.0\n")
    assert load_source(DataConfig(name=f"csv:{tmp_path / 't.csv'}")).schema.class_names == ("0", "1")
    (tmp_path / "t.csv").write_text("a,label\n1,yes\n2,yes \n3,no\n")
    assert load_source(DataConfig(name=f"csv:{tmp_path / 't.csv'}")).train.y.tolist() == [1, 1, 0]


def test_examples_for_validation_join_those_for_training(tmp_path):
    x, y = np.zeros((6, 1, 4, 4), np.uint8), np.arange(6) % 2
    for names in (
        ("x_train", "y_train", "x_val", "y_val"),
        ("train_images", "train_labels", "val_images", "val_labels"),
    ):
        np.savez(tmp_path / "a.npz", **dict(zip(names, (x[:4], y[:4], x[4:], y[4:]), strict=True)))
        assert len(load_source(DataConfig(name=f"npz:{tmp_path / 'a.npz'}")).train) == 6
    for name, rows in {"train": "1,0\n2,1\n", "val": "3,1\n", "test": "4,0\n"}.items():
        (tmp_path / f"{name}.csv").write_text("a,label\n" + rows)
    source = load_source(DataConfig(name=f"csv:{tmp_path}"))
    assert source.train.x[:, 0].tolist() == [1, 2, 3]
    assert source.test is not None
    assert source.test.x[:, 0].tolist() == [4]


def test_bytes_that_were_stored_as_fractions_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((4, 1, 4, 4), 254.5, np.float32), y=np.arange(4))
    with pytest.raises(DataError, match="fractions up to 254.5"):
        load_source(DataConfig(name=f"npz:{tmp_path / 'a.npz'}"))
