"""Every method of ours keeps its promises; the example does; broken copies of it are found out for the right reason."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsynth.methods  # noqa: F401 - registers the methods
from fedsynth.cli.app import app
from fedsynth.federation import methods as registry
from fedsynth.federation import tasks
from fedsynth.federation.methods import all_methods
from fedsynth.studies.verify import verify_method

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
GAN = {"gan_steps": 2, "visit_steps": 2, "gan_channels": 2, "gan_latent": 3}
LIKE = {
    "gan_steps": 2,
    "gan_channels": 2,
    "gan_latent": 3,
    "encoder_steps": 2,
    "encoder_latent": 4,
    "samples_per_class": 3,
}
QUICK: dict[str, dict[str, Any]] = {
    "pfl_gan": LIKE | {"use": "refined", "refined_steps": 2},
    "cluster_fedavg": LIKE,
    "rfa_rfd": LIKE,
    "faug": {"gan_steps": 2, "gan_channels": 2},
    "gandalf": GAN,
    "private_fl_gan": GAN,
    "sda_fl": GAN,
    "feddpgan": GAN,
    "agg_enhance": {"steps": 2},
    "fed_zda": {"steps": 2, "per_class": 1, "start_round": 1},
    "fed_zdac": {"steps": 2, "per_class": 1, "start_round": 1},
    "fed_zdas": {"steps": 2, "per_class": 1, "start_round": 1},
    "krum": {"byzantine": 0},
    "dense": {"distil_epochs": 2, "generator_steps": 1, "tune_batch_size": 4, "latent": 3, "channels": 2},
    "fedftg": {"iterations": 1, "model_steps": 1, "tune_batch_size": 4, "latent": 3, "channels": 2},
}


@pytest.mark.parametrize("name", [method.name for method in all_methods()])
def test_a_built_in_method_keeps_its_promises(name: str) -> None:
    found = verify_method(name, QUICK.get(name))
    assert not [finding for finding in found if finding.passed is False]


@pytest.fixture
def copy_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the example with one passage changed; what it registers goes when the test ends."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.setattr(tasks, "TASKS", {k: v for k, v in tasks.TASKS.items() if k != "learn"})
    registry._METHODS.pop("steady", None)

    def write(*changes: tuple[str, str]) -> Path:
        text = EXAMPLE.read_text(encoding="utf-8")
        for passage, instead in changes:
            assert passage in text
            text = text.replace(passage, instead)
        file = tmp_path / f"copy_{uuid.uuid4().hex}.py"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def verified(file: Path) -> tuple[int, dict[str, str]]:
    """Exit code and the word for each promise."""
    result = CliRunner().invoke(app, ["verify-method", str(file)])
    lines = [line.split() for line in result.output.splitlines()]
    words = {" ".join(line[: 2 if line[0] in ("what", "dead") else 1]): line for line in lines if line}
    return result.exit_code, {
        name: next((w for w in line if w in ("kept", "BROKEN")), "–") for name, line in words.items()
    }


PROMISES = ("identity", "determinism", "resume", "what leaves", "dead clients")


def test_the_example_keeps_every_promise(copy_of_the_example) -> None:
    code, found = verified(copy_of_the_example())
    assert code == 0
    assert [found[name] for name in PROMISES] == ["kept"] * 5


MIX = "            state.model = weighted_mean([(state.model, cfg.beta), (state.newest, 1 - cfg.beta)])"
IMPORTS = "from fedsynth.api import Federation, Field, MethodConfig, Outcome, State, method, train, weighted_mean\n"


def own_task(draw: str = 'client.rng("batches")', summary: str = "") -> tuple[str, str]:
    """FedAvg's task written out in the copy, with these random numbers, and this sent beside the weights."""
    return (
        IMPORTS,
        f"""import numpy
from fedsynth.api import *
from fedsynth.api import Client, LocalTraining, ModelSpec, Update, Weights, fit, leaves, task, weights_of


class Learned(Update):
    summary: Weights = leaves("a summary", default={{}})


@task
def train(client: Client, model: Weights, spec: ModelSpec, training: LocalTraining) -> Learned:
    net = client.build(spec, model)
    x, y = client.data.train.tensors()
    fit(net, x, y, training, {draw})
    return client.release(Learned(model=weights_of(net), examples=len(y){summary}))
""",
    )


BROKEN_COPIES = {
    "never quite FedAvg": ([(MIX, MIX.replace("cfg.beta), (", "cfg.beta + 0.01), ("))], {"identity"}),
    "random numbers of its own": ([own_task("numpy.random.default_rng()")], {"identity", "determinism", "resume"}),
    "a count that is not in the state": (
        [
            (
                MIX,
                "            fed.seen = getattr(fed, 'seen', 0) + 1\n" + MIX.replace("cfg.beta", "cfg.beta / fed.seen"),
            )
        ],
        {"resume"},
    ),
    "sends a few images as a summary": ([own_task(summary=', summary={"some": x[:2]}')], {"what leaves"}),
    "needs everybody": (
        [("        if replies:  #", "        if True:  #"), (" if replies else {}", "")],
        {"dead clients"},
    ),
}


def test_a_copy_with_a_task_of_its_own_keeps_every_promise(copy_of_the_example) -> None:
    code, found = verified(copy_of_the_example(own_task()))
    assert (code, [found[name] for name in PROMISES]) == (0, ["kept"] * 5)


@pytest.mark.parametrize("name", BROKEN_COPIES)
def test_a_broken_copy_is_found_out(copy_of_the_example, name: str) -> None:
    changes, broken = BROKEN_COPIES[name]
    code, found = verified(copy_of_the_example(*changes))
    assert {promise for promise in PROMISES if found[promise] == "BROKEN"} == broken
    assert code == 1


def test_a_file_without_a_method_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    result = CliRunner().invoke(app, ["verify-method", str(file)])
    assert "has 0 methods" in str(result.exception)
