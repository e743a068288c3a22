"""A run folder that somebody sent: opening it executes nothing of theirs before the user has said so."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedsynth as package
from fedsynth.errors import ConfigError
from fedsynth.experiment.folder import code_fingerprint, fingerprint
from fedsynth.report.dashboard import make_server
from fedsynth.report.reading import read_run
from fedsynth.studies.compare import finish_comparison

PLUGIN = """
from pathlib import Path
from fedsynth.federation import Federation, Outcome, method
from fedsynth.components.loop import LoopConfig, federated_loop

Path({witness!r}).touch()

@method("theirs", config=LoopConfig)
def theirs(fed: Federation, cfg: LoopConfig) -> Outcome:
    "FedAvg."
    return federated_loop(fed, cfg)
"""


@dataclass
class Received:
    """A folder with a plug-in inside and hashes that fit it, and the file that shows that the plug-in was executed."""

    path: Path
    witness: Path

    @property
    def plugin(self) -> Path:
        return self.path / "theirs.py"


@pytest.fixture(scope="module")
def made(fedsynth, tiny, tmp_path_factory) -> Path:
    """A run and a comparison of somebody else's method, where they were made."""
    cwd = tmp_path_factory.mktemp("theirs")
    (cwd / "theirs.py").write_text(PLUGIN.format(witness=str(cwd / "witness")))
    words = (*tiny, "method.name=theirs", 'plugins=["theirs.py"]')
    assert fedsynth("run", *words, "name=run", cwd=cwd).code == 0
    done = fedsynth("compare", *words, "name=cmp", "--methods", "theirs", "--no-references", cwd=cwd)
    assert done.code == 0, done.err
    return cwd / "runs"


@pytest.fixture
def received(made, tmp_path) -> Received:
    """The run as it is sent: with its plug-in inside, under the name that the config has, and hashes that fit."""
    path, witness = shutil.copytree(made / "run", tmp_path / "run"), tmp_path / "executed"
    (path / "theirs.py").write_text(PLUGIN.format(witness=str(witness)))
    config = json.loads((path / "config.json").read_text()) | {"plugins": [str(path / "theirs.py")]}
    (path / "config.json").write_text(json.dumps(config))
    hashes = {"config": fingerprint(config), "code": code_fingerprint([path / "theirs.py"])}
    (path / "versions.json").write_text(json.dumps(json.loads((path / "versions.json").read_text()) | hashes))
    return Received(path, witness)


@pytest.mark.parametrize("command", ["resume", "quality", "audit"])
def test_plugins_of_a_run_folder_are_named_and_not_executed(fedsynth, received, command):
    done = fedsynth(command, received.path, cwd=received.path.parent)
    assert done.code == 2
    assert f'"{received.plugin}". Look at them, then say --trust-plugins' in done.err
    assert not received.witness.exists()


@pytest.mark.parametrize(
    "command", [("run",), ("partition",), ("compare", "--methods", "fedavg"), ("stress",), ("advise",)]
)
def test_who_runs_a_runs_config_again_names_its_plugins(fedsynth, received, command):
    file = received.path / "config.json"
    done = fedsynth(command[0], file, "name=again", *command[1:], cwd=received.path.parent)
    assert done.code == 2
    assert str(received.plugin) in done.err
    assert "name them on the command line" in done.err
    assert not received.witness.exists()


def test_named_plugins_run_a_config_again(fedsynth, received):
    words = ("run", received.path / "config.json", "name=again", f'plugins=["{received.plugin}"]')
    done = fedsynth(*words, cwd=received.path.parent)
    assert done.code == 0, done.err
    assert received.witness.exists()


def test_a_plugin_beside_the_config_and_one_in_the_current_folder_are_not_executed_either(fedsynth, received):
    config = json.loads((received.path / "config.json").read_text()) | {"plugins": ["theirs.py"]}
    (received.path / "config.json").write_text(json.dumps(config))
    for cwd in (received.path.parent, received.path):
        done = fedsynth("resume", received.path, cwd=cwd)
        assert (done.code, str(received.plugin) in done.err) == (2, True)
    assert not received.witness.exists()


@pytest.mark.parametrize("plugins", ["theirs.py", 3, {"a": 1}, [3], [["theirs.py"]], ["\u001b[2Jtheirs.py\u0000"]])
def test_strange_lists_of_plugins_get_a_sentence(fedsynth, received, plugins):
    config = json.loads((received.path / "config.json").read_text()) | {"plugins": plugins}
    (received.path / "config.json").write_text(json.dumps(config))
    done = fedsynth("resume", received.path, cwd=received.path)
    assert (done.code, received.witness.exists()) == (2, False)
    assert "Look at them" in done.err
    assert "\u001b" not in done.err


def test_reports_dashboards_and_exports_execute_nothing(fedsynth, received):
    assert fedsynth("report", received.path, cwd=received.path.parent).code == 0
    text = (received.path / "report.html").read_text()
    assert "look at them first" in text
    assert "plugins=[" in text
    assert read_run(received.path).method == "theirs"  # all that an export reads
    server = make_server(received.path.parent, "127.0.0.1", 0)
    server.server_close()
    assert not received.witness.exists()


def test_a_trusted_run_is_resumed_measured_and_audited(fedsynth, received):
    cwd = received.path.parent
    done = fedsynth("resume", received.path, "--trust-plugins", "--json", cwd=cwd)
    assert (done.code, done.json["method"]) == (0, "theirs"), done.err
    assert received.witness.exists()
    assert fedsynth("audit", received.path, "--trust-plugins", "--runs", "80", cwd=cwd).code == 0
    assert "no synthetic images" in fedsynth("quality", received.path, "--trust-plugins", cwd=cwd).err


def test_trust_does_not_replace_the_check_of_the_code(fedsynth, received):
    received.plugin.write_text(received.plugin.read_text() + "# changed")
    done = fedsynth("resume", received.path, "--trust-plugins", cwd=received.path.parent)
    assert (done.code, "other code" in done.err) == (2, True)
    assert not received.witness.exists(), "refused before it was executed"


def test_a_received_comparison_executes_nothing(fedsynth, made, tmp_path):
    path, witness = shutil.copytree(made / "cmp", tmp_path / "cmp"), tmp_path / "executed"
    (path / "theirs.py").write_text(PLUGIN.format(witness=str(witness)))
    kept = json.loads((path / "comparison.json").read_text())
    for planned in kept["planned"]:
        planned["experiment"]["plugins"] = [str(path / "theirs.py")]
    (path / "comparison.json").write_text(json.dumps(kept))
    done = fedsynth("resume", path, cwd=tmp_path)
    assert (done.code, str(path / "theirs.py") in done.err) == (2, True)
    assert not witness.exists()
    assert fedsynth("resume", path, "--trust-plugins", cwd=tmp_path).code == 0
    assert witness.exists()


def test_python_callers_say_so_too(made, received, tmp_path):
    with pytest.raises(ConfigError, match="trust_plugins=True"):
        package.resume(received.path)
    with pytest.raises(ConfigError, match="trust_plugins=True"):
        finish_comparison(shutil.copytree(made / "cmp", tmp_path / "cmp"))
    assert not received.witness.exists()
    assert package.resume(received.path, trust_plugins=True, progress=False).summary.method == "theirs"
    assert received.witness.exists()
