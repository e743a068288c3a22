"""Mistakes in the input: one sentence that names the thing and the fix, exit code 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder full of files with something wrong in them."""
    path = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 4), dtype=np.float32), np.arange(60) % 3
    np.savez(path / "negative.npz", x=x, y=np.where(y == 2, -1, y))
    np.savez(path / "fractions.npz", x=x, y=y + 0.5)
    np.savez(path / "short.npz", x=x, y=y[:-1])
    np.savez(path / "objects.npz", x=np.array([{}] * 5, dtype=object), y=np.zeros(5, int))
    np.savez(path / "good.npz", x=x, y=y)
    (path / "corrupt.npz").write_bytes(b"PK\x03\x04" + bytes(100))
    (path / "torn.npz").write_bytes((path / "good.npz").read_bytes()[:300])
    (path / "idx").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (path / "idx" / f"{name}-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    rows = "\n".join(f"{a:.3f},{b:.3f},{label}" for (a, b, *_), label in zip(x, y, strict=True))
    (path / "table.csv").write_text(f"a,b,label\n{rows}\n")
    (path / "bad.toml").write_text("seed = = 3\n")
    (path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (path / "section.toml").write_text("[trian]\nrounds = 3\n")
    (path / "list.json").write_text("[1]")
    (path / "broken.py").write_text("import nothing_of_that_name\n")
    (path / "a file").touch()
    return path


TABLE = ("data.name=csv:table.csv", "partition.num_clients=2", "partition.min_size=1")

MISTAKES = {
    "unknown key": (["train.ruonds=3"], ["ruonds", '"rounds"']),
    "unknown section": (["section.toml"], ["trian", '"train"']),
    "unknown top-level key": (["sead=3"], ["sead", '"seed"']),
    "key of a section at the top": (["rounds=3"], ['"train.rounds"']),
    "name too long for a folder": (["name=" + 300 * "a"], ["at most 200 characters"]),
    "unknown method": (["method.name=fedporx"], ["fedporx", '"fedprox"']),
    "unknown setting of a method": (["method.name=fedprox", "method.my=1"], ["fedprox", '"my"', "mu"]),
    "setting of another method": (["method.mu=0.1"], ["fedavg", '"mu"']),
    "wrong value for a method": (["method.name=fedprox", "method.mu=-1"], ["fedprox", "mu = -1"]),
    "unknown aggregator": (["method.aggregator=medain"], ["medain", '"median"']),
    "unknown partitioner": (["partition.name=dirichlte"], ["dirichlte", '"dirichlet"']),
    "unknown model": (["model.name=nmp"], ["nmp"]),
    "unknown data": (["data.name=digist"], ["digist", '"digits"']),
    "too many clients": (["partition.num_clients=5000"], ["5000 clients", "partition.num_clients"]),
    "no clients": (["partition.num_clients=0"], ["num_clients = 0"]),
    "corrupt npz": (["data.name=npz:corrupt.npz"], ["corrupt.npz"]),
    "torn npz": (["data.name=npz:torn.npz"], ["torn.npz"]),
    "npz with objects": (["data.name=npz:objects.npz"], ["objects.npz", "never loaded"]),
    "corrupt idx": (["data.name=idx:idx"], ["train-images-idx3-ubyte"]),
    "labels below zero": (["data.name=npz:negative.npz"], ["negative.npz", "-1"]),
    "labels between classes": (["data.name=npz:fractions.npz"], ["fractions.npz"]),
    "labels missing": (["data.name=npz:short.npz"], ["60 examples but 59 labels"]),
    "class out of range": (["data.classes=[0, 99]"], ["data.classes", "99"]),
    "missing data file": (["data.name=npz:lost.npz"], ["lost.npz", "does not exist"]),
    "missing experiment": (["lost.toml"], ["lost.toml"]),
    "folder for an experiment": (["."], ["cannot be read"]),
    "bad TOML": (["bad.toml"], ["bad.toml", "line 1"]),
    "binary experiment": (["binary.toml"], ["binary.toml"]),
    "experiment that is a list": (["list.json"], ["list.json", "one object"]),
    "text for a number": (["train.rounds=many"], ["rounds = 'many'"]),
    "number out of range": (["train.rounds=-1"], ["rounds = -1"]),
    "fraction for a seed": (["seed=1.5"], ["seed = 1.5"]),
    "value for a section": (["train=3"], ['"train"', "section"]),
    "section for a value": (["seed=1", "seed.deep=3"], ["seed.deep"]),
    "value for a method's section": (["methods.fedprox=1"], ["methods.fedprox"]),
    "list for a method": (["method.name=[1]"], ["[1]"]),
    "word without equals sign": (["seed=1", "nonsense"], ["nonsense", "key=value"]),
    "missing plugin": (['plugins=["lost.py"]'], ["lost.py"]),
    "broken plugin": (['plugins=["broken.py"]'], ["broken.py", "nothing_of_that_name"]),
    "plugins that are no list": (["plugins=3"], ["plugins", "list"]),
    "device that nobody has": (["engine.device=toaster"], ["toaster", '"cpu"']),
    "convolutions on a table": ([*TABLE, "model.name=cnn"], ["cnn", "images", "mlp"]),
    "method whose model needs images": (TABLE, ["images", "mlp"]),
    "wrong fault": (["faults.dropout=2"], ["dropout = 2"]),
    "runs in a file": (["runs=a file"], ["a file"]),
}


def assert_refused(done, folder: Path, before: set[str], words: list[str]) -> None:
    assert done.code == 2, done.err
    assert done.out == ""
    [line] = done.err.splitlines()
    assert line.startswith("fedsynth: ")
    for word in words:
        assert word in line, word
    assert {path.name for path in folder.iterdir()} == before, "something was left behind"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(fedsynth, folder, name):
    args, words = MISTAKES[name]
    before = {path.name for path in folder.iterdir()}
    assert_refused(fedsynth("run", *args, cwd=folder), folder, before, words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(fedsynth, folder):
    before = {path.name for path in folder.iterdir()}
    done = fedsynth("run", "engine.device=cuda", cwd=folder)
    assert_refused(done, folder, before, ['engine.device = "cuda"', '"cpu"'])


@pytest.mark.parametrize(
    "name", ["unknown key", "too many clients", "convolutions on a table", "fraction for a seed", "corrupt npz"]
)
def test_a_comparison_finds_mistakes_before_it_begins(fedsynth, folder, name):
    args, words = MISTAKES[name]
    before = {path.name for path in folder.iterdir()}
    assert_refused(fedsynth("compare", *args, "--methods", "fedavg,fedprox", cwd=folder), folder, before, words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "--methods", "fedavg,fedporx"], ["fedporx", '"fedprox"']),
        (["compare", "--methods", " , "], ["--methods"]),
        (["compare", "--methods", "fedavg,fedavg"], ["compared with itself"]),
        (["compare", "seed=x"], ["seed = 'x'"]),
        (["compare", "method=3"], ["method"]),
        (["methods", "fedporx"], ["fedporx", '"fedprox"']),
        (["resume", "lost"], ["lost", "config.json"]),
        (["resume", "idx"], ["idx", "config.json"]),
        (["partition", "partition.nam=iid"], ['"nam"', '"name"']),
        (["partition", "partition.num_clients=5000"], ["5000"]),
        (["check", "npz:corrupt.npz"], ["corrupt.npz"]),
        (["check", "npz:good.npz", "lable=y"], ["lable", '"label"']),
        (["check", "nothing-like-it"], ["nothing-like-it"]),
    ],
)
def test_the_other_commands_refuse_in_one_sentence_too(fedsynth, folder, args, words):
    before = {path.name for path in folder.iterdir()}
    assert_refused(fedsynth(*args, cwd=folder), folder, before, words)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nonsense"], "nonsense"),
        (["run", "--nonsense"], "--nonsense"),
        (["compare", "--seeds", "0"], "--seeds"),
        (["resume"], "FOLDER"),
    ],
)
def test_a_command_that_is_not_understood_is_exit_code_2(fedsynth, folder, args, word):
    done = fedsynth(*args, cwd=folder)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert word in done.err.replace("'folder'", "FOLDER")
