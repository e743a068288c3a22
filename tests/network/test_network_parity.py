"""A run over a Grid gives the bits of a run on one machine, and leaves the same folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from grids import InProcessGrid
from safetensors.torch import load_file
from sites import tables

from fedsynth.engines.envelope import digest, pack, seal, unpack
from fedsynth.errors import UserError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.folder import RunFolder
from fedsynth.experiment.runner import RunResult, run_experiment
from fedsynth.federation.journal import Journal
from fedsynth.federation.payload import decode, encode
from fedsynth.federation.store import write_json
from fedsynth.methods.pfl_gan.client_gans import KEPT
from fedsynth.network.serve import serve_run

Files = Callable[..., dict[str, Path]]
SMALL_CNN = {"name": "cnn", "channels": [4, 6], "hidden": [8]}
NORMED = {"name": "zda_cnn", "channels": [4, 6]}
PFL_GAN = {
    **{
        "gan_steps": 3,
        "gan_channels": 2,
        "gan_latent": 3,
        "use": "refined",
        "refined_steps": 2,
        "samples_per_class": 4,
    },
    **{"encoder_steps": 3, "encoder_latent": 8, "side_by_side": 3, "threshold": "none"},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "feddpms": {"model": SMALL_CNN, "method": {"quota": 6, "filter": "none"}},
    "fed_zdac": {"model": NORMED, "method": {"steps": 3, "per_class": 2, "start_round": 1}},
    "agg_enhance": {"model": NORMED, "method": {"steps": 3, "tune_epochs": 1}},
    "fedbn": {"model": NORMED},
    "gandalf": {"method": {"gan_steps": 4, "visit_steps": 2, "gan_channels": 2, "gan_latent": 3}},
    "pfl_gan": {"method": PFL_GAN},
    "ccvr": {"model": SMALL_CNN, "method": {"draws": 10, "covariance": "shared"}},
    "dense": {"model": NORMED, "method": {"distil_epochs": 2, "generator_steps": 2, "channels": 2}},
    "ensemble": {"model": NORMED},
    "fedftg": {"model": NORMED, "method": {"iterations": 2, "channels": 2}},
    "fedgen": {"model": NORMED, "method": {"generator_steps": 3}},
    "secure": {"method": {"name": "fedprox"}, "privacy": {"secure_aggregation": True}},
    "agg_enhance_secure": {
        "model": SMALL_CNN,
        "method": {"name": "agg_enhance", "steps": 3, "tune_epochs": 1, "secure": True},
        "privacy": {"secure_aggregation": True},
    },
}
"""By method, or by a name for settings of one."""


def sections(method: str, runs: Path, name: str, **changes: Any) -> dict[str, Any]:
    own = METHODS[method]
    return tables(
        **{key: value for key, value in own.items() if key != "method"},
        method={"name": method, **own.get("method", {})},
        runs=str(runs),
        name=name,
        **changes,
    )


def network_folder(experiment: dict[str, Any], certificate: Path) -> Path:
    """A run folder as `fedsynth run` makes it before it hands it to the SuperLink."""
    certificate.touch()
    engine = {"name": "flower", "superlink": "nowhere:1", "certificate": str(certificate), "sites": ["0", "1", "2"]}
    made = make_experiment({**experiment, "engine": {"wait": 0, **engine}})
    folder = RunFolder.create(made, "sites", None)
    write_json(folder.path / "network.json", {"run": f"run-{made.name}"})
    return folder.path


def over_a_grid(experiment: dict[str, Any], grid: InProcessGrid, tmp_path: Path) -> RunResult:
    return serve_run(grid, network_folder(experiment, tmp_path / "ca.crt"), pause=0.01)


def newest_state(states: Path, client: str) -> dict[str, torch.Tensor]:
    """The tensors that a client keeps to itself at the end of a run."""
    kept = load_file(max((states / client).glob("*.safetensors")))
    assert any("alone" in name for name in kept)
    return kept


def site_states(file: Path) -> Path:
    (run,) = file.with_name("state").joinpath("runs").iterdir()
    return run / "state"


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    assert all(torch.equal(entry, other[name]) for name, entry in one.items())


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_as_on_one_machine(method: str, site_files: Files, tmp_path: Path) -> None:
    here = run_experiment(make_experiment({**sections(method, tmp_path, "here"), "engine": {"workers": 1}}))
    files = site_files()
    there = over_a_grid(sections(method, tmp_path, "there"), InProcessGrid(files), tmp_path)
    if method == "pfl_gan":  # it ends with a model for each client, which stays there
        assert here.weights is None
        assert there.weights is None
        for client, file in files.items():
            assert_same_bits(newest_state(here.path / "state", client), newest_state(site_states(file), client))
    else:
        assert here.weights is not None
        assert there.weights is not None
        assert_same_bits(here.weights, there.weights)
    for key in ("clients", "validation", "views", "rounds", "client_epochs", "privacy", "best"):
        assert getattr(there.summary, key) == getattr(here.summary, key), key
    assert there.summary.bytes.up == here.summary.bytes.up


def test_the_folder_is_that_of_a_local_run(site_files: Files, tmp_path: Path) -> None:
    here = run_experiment(make_experiment({**sections("fedavg", tmp_path, "here"), "engine": {"workers": 1}}))
    there = over_a_grid(sections("fedavg", tmp_path, "there"), InProcessGrid(site_files()), tmp_path)
    left = [{p.name for p in result.path.iterdir()} for result in (here, there)]
    assert left[1] - left[0] == {"network.json", "progress.jsonl"}
    assert left[0] - left[1] == {"split.png"}
    assert there.summary.test.accuracy is None
    assert "no test set" in there.summary.test.reason
    assert there.model is not None
    manifest = json.loads((there.path / "manifest.json").read_text())
    assert set(manifest) == {"sites", "fingerprint", "shape", "classes", "clients"}
    assert "did not tell" in (there.path / "report.html").read_text()


ASKED = {"evaluation": {"class_counts": True}}


def test_class_counts_are_told_when_asked_for_and_entered_in_the_ledger(site_files: Files, tmp_path: Path) -> None:
    changes = sections("fedavg", tmp_path, "here", **ASKED)
    here = run_experiment(make_experiment({**changes, "engine": {"workers": 1}}))
    there = over_a_grid(sections("fedavg", tmp_path, "there", **ASKED), InProcessGrid(site_files()), tmp_path)
    local, told = (json.loads((result.path / "manifest.json").read_text()) for result in (here, there))
    for client, counts in local["counts"]["per_client"].items():
        assert told["counts"]["per_client"][client] == {"train": counts["train"]}
    assert told["counts"]["per_class"] == {"train": local["counts"]["per_class"]["train"]}
    assert told["train_sizes"] == local["train_sizes"]
    releases = [{row.release for row in result.summary.privacy} for result in (here, there)]
    assert releases[1] - releases[0] == {"class_counts.count_classes.counts"}, "a simulation knows without asking"
    (row,) = [row for row in there.summary.privacy if row.release == "class_counts.count_classes.counts"]
    assert (row.times, row.proven, row.clients) == (1, "none", ["0", "1", "2"])
    assert (there.path / "split.png").is_file()
    assert (there.path / "clients.csv").read_text().splitlines()[0].startswith("client,train_examples,")
    assert_same_bits(here.weights or {}, there.weights or {})


def test_a_site_that_does_not_tell_its_counts_is_not_known_and_misses_nothing(
    site_files: Files, tmp_path: Path
) -> None:
    files = site_files()
    files["1"].write_text(files["1"].read_text() + '[policy]\nrefused = ["class_counts.count_classes"]\n')
    result = over_a_grid(sections("fedavg", tmp_path, "run", **ASKED), InProcessGrid(files), tmp_path)
    manifest = json.loads((result.path / "manifest.json").read_text())
    assert set(manifest["counts"]["per_client"]) == {"0", "2"}
    assert not {"examples", "skew", "train_sizes"} & set(manifest)
    assert [(row.client, row.task) for row in result.summary.failures] == [("1", "class_counts.count_classes")]
    assert result.summary.missed == []
    text = (result.path / "report.html").read_text()
    assert "1 of 3 sites did not tell what they hold" in text
    assert "leaves out client 1" not in text


@pytest.mark.parametrize("lie", [[-1] * 10, [1] * 9, [0.5] * 10, [2**62] * 10, [[1] * 10]])
def test_sites_whose_counts_cannot_be_right_are_not_known(lie: list[Any], site_files: Files, tmp_path: Path) -> None:
    grid = InProcessGrid(site_files())

    def lying(name: str, request: Message, reply: Message) -> list[Message]:
        if request.metadata.message_type != "query.class_counts__count_classes":
            return [reply]
        header, body = unpack(reply.content)
        answer = decode(body)
        false = encode({**answer, "fields": {"counts": np.array(lie)}})
        return [Message(pack({**header, "id": digest(false)}, seal(false)), reply_to=request)]

    grid.spoil = lying
    result = over_a_grid(sections("fedavg", tmp_path, "run", **ASKED), grid, tmp_path)
    assert "counts" not in json.loads((result.path / "manifest.json").read_text())


def test_a_broadcast_is_packed_once(site_files: Files, tmp_path: Path) -> None:
    grid = InProcessGrid(site_files())
    over_a_grid(sections("fedavg", tmp_path, "run"), grid, tmp_path)
    first = [m for m in grid.pushed if m.metadata.message_type == "query.fedavg__train"][:3]
    assert len({id(m.content["body"]) for m in first}) == 1
    assert all(len(m.content["body"]) == 1 for m in first)


def test_sites_that_are_not_there_are_named(site_files: Files, tmp_path: Path) -> None:
    grid = InProcessGrid(site_files())
    grid.offline = {"1"}
    with pytest.raises(UserError, match='1 of 3 sites did not answer within 0 s: "1": not connected'):
        over_a_grid(sections("fedavg", tmp_path, "run"), grid, tmp_path)


def test_a_key_registered_under_another_name_is_noticed(site_files: Files, tmp_path: Path) -> None:
    files = site_files()
    files["0"], files["1"] = files["1"], files["0"]
    with pytest.raises(UserError, match='registered as "0" calls itself "1"'):
        over_a_grid(sections("fedavg", tmp_path, "run"), InProcessGrid(files), tmp_path)


def test_sites_with_other_classes_are_named(site_files: Files, tmp_path: Path) -> None:
    files = site_files()
    text = files["2"].read_text()
    files["2"].write_text(
        text.replace('"9"]', '"nine"]').split("[rehearsal]")[0].replace('digits"\n', 'digits"\nclasses = [0, 1]\n')
    )
    with pytest.raises(UserError, match='Site "2" has another classes'):
        over_a_grid(sections("fedavg", tmp_path, "run"), InProcessGrid(files), tmp_path)


def test_gans_of_an_earlier_run_serve_where_the_sites_have_the_same_data(site_files: Files, tmp_path: Path) -> None:
    files = site_files()
    donor = over_a_grid(sections("pfl_gan", tmp_path, "donor"), InProcessGrid(files), tmp_path)
    again = {"method": {**PFL_GAN, "name": "pfl_gan", "gans_from": str(donor.path)}}
    experiment = sections("pfl_gan", tmp_path, "again")
    taken = over_a_grid(experiment | again, InProcessGrid(files), tmp_path)
    kept, again_kept = (Journal(run.path).phase(KEPT)["result"]["gans"] for run in (donor, taken))
    assert set(kept) == set(again_kept) == set(files)
    for client, gan in kept.items():
        assert_same_bits(gan["generator"], again_kept[client]["generator"])
    (files["0"].with_name("state") / "salt").unlink()  # as good as other data: its fingerprint changes
    with pytest.raises(UserError, match="had other data than now"):
        over_a_grid(experiment | again | {"name": "other"}, InProcessGrid(files), tmp_path)


STRICT = "[policy]\nunprotected = false\nepsilon = 30.0\n"
PRIVATE: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "gandalf": {
        **{"counts_epsilon": 8.0, "gan_steps": 2, "visit_steps": 1, "gan_channels": 2, "gan_latent": 3},
        "mediators": 3,
    },
}


@pytest.mark.parametrize("method", PRIVATE)
def test_a_method_that_protects_all_it_sends_runs_between_strict_sites(
    method: str, site_files: Files, tmp_path: Path
) -> None:
    """Nothing leaves without a guarantee against the server, too, and every site notes what it has spent."""
    experiment = tables(
        method={"name": method, **PRIVATE[method]},
        privacy={"updates": "dp_sgd", "noise": 4.0, "secret_noise": True},
        evaluation={"clients": 0, "final_clients": 0},
        runs=str(tmp_path),
        name="strict",
    )
    result = over_a_grid(experiment, InProcessGrid(site_files(extra=STRICT)), tmp_path)
    assert result.summary.failures == []
    rows = [row for row in result.summary.privacy if row.kind == "release"]
    assert {row.against for row in rows} == {"everybody"}
    spent = list(tmp_path.rglob("spent.json"))
    assert len(spent) == 3
