"""Starts a run over a network: makes its folder, hands it to the SuperLink with stock Flower's own command, follows it.

The server program runs in a process of the SuperLink's machine and writes into the run folder there, so this is
started on that machine. It may end before the run does; `fedsynth resume` starts the server program anew.
"""

import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError
from safetensors.torch import load_file

from fedsynth.data.dataset import Schema
from fedsynth.errors import ConfigError, FedsynthError, UserError
from fedsynth.evaluation.results import RunSummary
from fedsynth.experiment.config import EngineConfig, Experiment
from fedsynth.experiment.folder import RunFolder
from fedsynth.experiment.progress import Quiet, make_progress
from fedsynth.experiment.recorder import read_metrics
from fedsynth.experiment.runner import RunResult, choose_device
from fedsynth.federation.store import write_json
from fedsynth.network.follow import End, Follower, end_file
from fedsynth.network.loopback import flower_env

PAUSE = 0.5  # seconds between two looks at the run folder
ASK_FLOWER = 60.0  # seconds between two questions to the SuperLink whether the run is still there
COMMAND = 120.0  # seconds that one of Flower's commands may take
CONNECTION = "federation"
APP = Path(__file__).parent / "templates" / "app"  # of Flower


def run_over_network(
    experiment: Experiment, resume: Path | None, progress: bool | None, accept_code_change: bool
) -> RunResult:
    """Run (or resume) an experiment over its sites; the result is read from the run folder."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("engine.name = \"flower\" needs Flower: pip install 'fedsynth[flower]'.")
    if experiment.faults.active:
        raise ConfigError("[faults] are simulated on one machine: leave them out where engine.name is flower.")
    choose_device(experiment.engine.device)
    certificate = experiment.engine.certificate
    if certificate is None or not certificate.is_file():
        raise ConfigError(f'engine.certificate: there is no file "{certificate}".')
    if resume is None:
        folder = RunFolder.create(experiment, "sites", None)
        write_json(folder.path / "network.json", {"run": f"{folder.path.name[:60]}-{uuid.uuid4().hex[:12]}"})
    else:
        folder = RunFolder.reopen(resume, experiment, accept_code_change)
    path = folder.path.absolute()
    try:
        with make_progress(experiment.method_name, progress) as shown, connection(experiment.engine) as flower:
            _carry_out(flower, path, shown)
    except UserError:
        if resume is None and not (path / "checkpoints").exists():
            shutil.rmtree(path)
        raise
    return finished_run(experiment, path)


def _carry_out(flower: "Flower", path: Path, shown: Quiet) -> None:
    """Start the server program and follow it to its end."""
    attempt = uuid.uuid4().hex[:12]
    ended = end_file(path, attempt)
    follower = Follower(path / "progress.jsonl", shown)
    (path / "progress.jsonl").unlink(missing_ok=True)
    run = flower.start(path, attempt)
    try:
        end = _follow(flower, run, ended, follower)
    except KeyboardInterrupt:
        flower.call("stop", str(run))
        raise
    finally:
        follower.look()
        ended.unlink(missing_ok=True)
    if not end.ok:
        raise (UserError if end.mistake else FedsynthError)(end.message)


def _follow(flower: "Flower", run: int, ended: Path, follower: Follower) -> End:
    """Show progress until the server program has left word of its end, or the SuperLink says that it is gone."""
    asked = time.monotonic()
    while True:
        follower.look()
        if ended.is_file():
            return End.model_validate_json(ended.read_bytes())
        if time.monotonic() - asked > ASK_FLOWER:
            status = flower.status(run)
            if status.startswith("finished") and not ended.is_file():
                message = f"The server program ended without a word ({status})."
                return End(ok=False, message=f'{message} "fedsynth resume {ended.parent}" goes on.')
            asked = time.monotonic()
        time.sleep(PAUSE)


class FlowerAnswer(BaseModel, populate_by_name=True):
    """What we read of the answer of a command of Flower's."""

    success: bool = False
    error: str = Field("no reason given", alias="error-message")
    run: int = Field(0, alias="run-id")
    runs: list[dict[str, object]] | None = None


class Flower:
    """Stock Flower's command line, told which SuperLink to talk to."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def call(self, *words: str) -> FlowerAnswer:
        """What a command answers; its exit code says nothing, so `success` in its answer is read."""
        env = {**flower_env(self.home), "NO_COLOR": "1"}
        line = ["flwr", *words, CONNECTION, "--format", "json"]
        try:
            done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=COMMAND, check=False)
        except subprocess.TimeoutExpired:
            return FlowerAnswer(error=f"no answer within {COMMAND:g} s")
        try:
            return FlowerAnswer.model_validate_json(done.stdout[done.stdout.find("{") :])
        except ValidationError:
            said = (done.stderr or done.stdout).strip().splitlines()
            return FlowerAnswer(error=said[-1] if said else "no answer")

    def start(self, folder: Path, attempt: str) -> int:
        """Start the server program for a run folder; the number of the Flower run."""
        app = self.home / "app"
        shutil.copytree(APP, app, dirs_exist_ok=True)
        config = f"folder={json.dumps(str(folder))} attempt={json.dumps(attempt)}"
        answer = self.call("run", str(app), "--run-config", config)
        if not answer.success:
            raise UserError(f"The SuperLink did not start the run: {answer.error}.")
        return answer.run

    def status(self, run: int) -> str:
        """The state of a Flower run, such as "running" or "finished:failed"; empty when it cannot be asked."""
        runs = self.call("list", "--run-id", str(run)).runs
        return str(runs[0].get("status", "")) if runs else ""


@contextmanager
def connection(engine: EngineConfig) -> Iterator[Flower]:
    """Flower's command line with a home of its own: what the user set up for Flower elsewhere is left alone."""
    with tempfile.TemporaryDirectory(prefix="fedsynth-flower-") as folder:
        assert engine.certificate is not None
        address, certificate = json.dumps(engine.superlink), json.dumps(str(engine.certificate.absolute()))
        text = f"[superlink.{CONNECTION}]\naddress = {address}\nroot-certificates = {certificate}\n"
        (Path(folder) / "config.toml").write_text(text, encoding="utf-8")
        yield Flower(Path(folder))


def finished_run(experiment: Experiment, path: Path) -> RunResult:
    """The result of a run, from its folder."""
    summary = RunSummary.model_validate_json((path / "summary.json").read_text(encoding="utf-8"))
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    model = path / "model.safetensors"
    weights = load_file(model) if model.is_file() else None
    schema = Schema(tuple(manifest["shape"]), len(manifest["classes"]))
    return RunResult(summary, read_metrics(path), weights, path, experiment, schema)
