"""The server program of a run over a network, as it runs inside Flower's ServerApp."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsynth import __version__
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.run_data import DescribedData
from fedsynth.engines.flower import FlowerEngine, connected
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import DataError, FedsynthError, UserError
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import read_experiment
from fedsynth.experiment.folder import RunFolder, check_same_split
from fedsynth.experiment.runner import RunResult, carry_out, check_setting
from fedsynth.federation.host import TaskHost
from fedsynth.federation.payload import PayloadError, decode, encode
from fedsynth.federation.store import StateStore, write_json
from fedsynth.network.follow import Lines
from fedsynth.network.site import DESCRIBE

PAUSE = 0.5  # seconds between two looks for sites that are not there yet
TOLD = ("site", "fedsynth", "code", "shape", "classes", "fingerprint", "rehearsal")  # of a site, before a run
TELLING = 120.0  # seconds that a site has to tell about itself: it reads its data for that


def serve(grid: Grid, folder: Path, attempt: str) -> None:
    """Run what the folder holds, and leave word of how it ended for whoever started it."""
    try:
        serve_run(grid, folder)
    except BaseException as error:  # also when Flower ends this process
        if isinstance(error, FedsynthError):
            text = str(error)
        elif isinstance(error, Exception):
            text = f"The server program failed.\n{traceback.format_exc().rstrip()}"
        else:
            text = f'The server program was stopped: "fedsynth resume {folder}" goes on.'
        write_json(end_of(folder, attempt), {"ok": False, "mistake": isinstance(error, UserError), "message": text})
        raise
    write_json(end_of(folder, attempt), {"ok": True})


def end_of(folder: Path, attempt: str) -> Path:
    """The file that says how an attempt at a run ended."""
    return folder / f".ended-{attempt}.json"


def serve_run(grid: Grid, path: Path, pause: float = PAUSE) -> RunResult:
    """Gather the sites, then run the experiment of a run folder over them."""
    # Whoever started this has asked whether plug-ins are trusted, and has just written or checked the folder.
    experiment = make_experiment(read_experiment(path / "config.json", trust_plugins=True))
    folder = RunFolder(path)
    with folder.locked(), Lines(path / "progress.jsonl") as shown:
        nobody = TaskHost(Nobody(), StateStore(path / "server"))
        engine = FlowerEngine(grid, run_key(path), LocalEngine(nobody), min(pause, 0.2))
        shown.say(f"Waiting for {len(experiment.engine.sites)} sites.")
        data, rehearsal = gathered(engine, experiment, path, pause)
        nobody.data = Nobody(data.schema)
        device = check_setting(experiment, data)
        try:
            secret = None if rehearsal else folder.secret
            return carry_out(experiment, data, engine, device, folder, shown, secret=secret)
        finally:
            engine.close()


class Nobody:
    """The server's own share of the data: none. Its own work needs to know the schema all the same."""

    def __init__(self, schema: Schema | None = None) -> None:
        self.schema = schema or Schema((1,), 2)

    def client(self, client: str) -> ClientData:
        """There is no client here."""
        raise DataError(f'The server of a network does not hold the data of "{client}".')

    def pooled(self, part: str) -> Dataset:
        """Nor everybody's data."""
        raise DataError("The server of a network holds no data.")


def run_key(path: Path) -> str:
    """The key under which the sites keep what belongs to this run; made with the folder."""
    return str(json.loads((path / "network.json").read_text(encoding="utf-8"))["run"])


def gathered(engine: FlowerEngine, experiment: Experiment, path: Path, pause: float) -> tuple[DescribedData, bool]:
    """The sites as they describe themselves, and whether all of them only rehearse.

    A new run needs all of them. A resumed one knows them from its manifest: it waits for them too, but who is missing
    may come back later; who is there must still have the same data.
    """
    names, manifest = experiment.engine.sites, path / "manifest.json"
    resumed = manifest.is_file()
    told = introduced(engine, names, experiment.engine.wait, pause, needed=not resumed)
    for name, about in told.items():
        if about["fedsynth"] != __version__:
            raise UserError(
                f'Site "{name}" has fedsynth {about["fedsynth"]} and this server {__version__}: '
                "install the same version everywhere."
            )
    if resumed:
        known = json.loads(manifest.read_text(encoding="utf-8"))["sites"]
        told = {name: told.get(name, known[name]) for name in names}
    data = DescribedData({name: told[name] for name in names})
    data.check()
    if resumed:
        RunFolder(path).check_split(data.split_fingerprint())
    else:
        for earlier in experiment.method_config().earlier_runs():
            check_same_split(Path(earlier), data.split_fingerprint())
        write_json(manifest, data.manifest())
    return data, all(about["rehearsal"] for about in told.values())


def introduced(
    engine: FlowerEngine, names: Sequence[str], wait: float, pause: float, needed: bool
) -> dict[str, dict[str, Any]]:
    """What the sites tell about themselves; all must within `wait` seconds if they are `needed`."""
    end = time.monotonic() + wait
    told: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    while True:
        here = [name for name in connected(engine.grid) if name in names and name not in told]
        if here:
            answers = engine.ask(DESCRIBE, dict.fromkeys(here, encode({})), TELLING)
            reasons |= {name: str(failure) for name, failure in answers.failures.items()}
            for name, blob in answers.replies.items():
                about = _about(name, blob.read())
                if isinstance(about, str):
                    raise UserError(about)
                told[name] = dict(about)
        missing = [name for name in names if name not in told]
        if not missing or time.monotonic() > end:
            break
        time.sleep(pause)
    if missing and needed:
        why = "; ".join(reasons.get(name, f'"{name}": not connected') for name in missing)
        raise UserError(f"{len(missing)} of {len(names)} sites did not answer within {wait:g} s: {why}.")
    return told


def _about(name: str, reply: bytes) -> Mapping[str, Any] | str:
    """What a site tells, or a sentence about why it cannot be used."""
    try:
        answer = decode(reply)
        if not answer["ok"]:
            reason = f"{answer['error']}: {answer['message']}"
            return f'Site "{name}" cannot take part: {reason}. Run "fedsynth site check" there.'
        about: dict[str, Any] = answer["about"]
        about = {key: about[key] for key in TOLD}  # whatever else it tells, nobody has asked for
        sized = all(isinstance(side, int) and side > 0 for side in about["shape"]) and about["shape"]
        named = all(isinstance(entry, str) for entry in about["classes"]) and len(about["classes"]) > 1
        if not (sized and named and isinstance(about["fingerprint"], str) and isinstance(about["rehearsal"], bool)):
            return f'Site "{name}" tells about itself in a way that cannot be read.'
    except (PayloadError, KeyError, TypeError, ValueError) as error:
        return f'Site "{name}" tells about itself in a way that cannot be read ({type(error).__name__}).'
    if about["site"] != name:
        return f'The site whose key is registered as "{name}" calls itself "{about["site"]}": correct its file.'
    return about
