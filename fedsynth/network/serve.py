"""The Flower ServerApp: runs the server program of the run folder that the run config names."""

import json
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsynth import __version__
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import DescribedData
from fedsynth.engines.flower import FlowerEngine, connected
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import DataError, FedsynthError, UserError
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import read_experiment
from fedsynth.experiment.folder import RunFolder, check_same_sites, check_same_split
from fedsynth.experiment.runner import RunResult, carry_out, check_setting
from fedsynth.federation.host import TaskHost
from fedsynth.federation.payload import PayloadError, decode, encode
from fedsynth.federation.store import StateStore, write_json
from fedsynth.network.follow import End, Lines, end_file
from fedsynth.network.site import DESCRIBE, SiteAbout

PAUSE = 0.5  # seconds between two looks for sites that are not there yet
DESCRIBING = 120.0  # seconds that a site has to describe itself: it reads its data for that

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower calls this."""
    serve(grid, Path(str(context.run_config["folder"])), str(context.run_config["attempt"]))


def serve(grid: Grid, folder: Path, attempt: str) -> None:
    """Run what the folder holds, and leave word of how it ended for whoever started it."""
    file = end_file(folder, attempt)
    try:
        serve_run(grid, folder)
    except BaseException as error:  # also when Flower ends this process
        if isinstance(error, FedsynthError):
            text = str(error)
        elif isinstance(error, Exception):
            text = f"The server program failed.\n{traceback.format_exc().rstrip()}"
        else:
            text = f'The server program was stopped: "fedsynth resume {folder}" goes on.'
        write_json(file, End(ok=False, mistake=isinstance(error, UserError), message=text).model_dump())
        raise
    write_json(file, End(ok=True).model_dump())


def serve_run(grid: Grid, path: Path, pause: float = PAUSE) -> RunResult:
    """Gather the sites, then run the experiment of a run folder over them."""
    # Whoever started this has asked whether plug-ins are trusted, and has just written or checked the folder.
    experiment = make_experiment(read_experiment(path / "config.json", trust_plugins=True))
    folder = RunFolder(path)
    with folder.locked(), Lines(path / "progress.jsonl") as shown:
        nobody = TaskHost(Nobody(), StateStore(path / "server"))
        # The key under which the sites keep what belongs to this run; made with the folder.
        key = str(json.loads((path / "network.json").read_text(encoding="utf-8"))["run"])
        engine = FlowerEngine(grid, key, LocalEngine(nobody), min(pause, 0.2))
        shown.say(f"Waiting for {len(experiment.engine.sites)} sites.")
        data, rehearsal = gather_sites(engine, experiment, path, pause)
        nobody.data = Nobody(data.schema)
        device = check_setting(experiment, data)
        with closing(engine):
            secret = None if rehearsal else folder.secret
            return carry_out(experiment, data, engine, device, folder, shown, secret=secret)


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


def gather_sites(engine: FlowerEngine, experiment: Experiment, path: Path, pause: float) -> tuple[DescribedData, bool]:
    """The sites as they describe themselves, and whether all of them only rehearse.

    A new run needs all of them. A resumed one knows them from its manifest: it waits for them too, but who is missing
    may come back later; who is there must still have the same data.
    """
    names, manifest = experiment.engine.sites, path / "manifest.json"
    resumed = manifest.is_file()
    sites = await_descriptions(engine, names, experiment.engine.wait, pause, needed=not resumed)
    for name, about in sites.items():
        if about.fedsynth != __version__:
            raise UserError(
                f'Site "{name}" has fedsynth {about.fedsynth} and this server {__version__}: '
                "install the same version everywhere."
            )
    if resumed:
        known = json.loads(manifest.read_text(encoding="utf-8"))["sites"]
        sites = {name: sites.get(name) or SiteAbout.model_validate(known[name]) for name in names}
    data = DescribedData({name: sites[name].model_dump() for name in names})
    data.check()
    if resumed:
        check_same_split(path, data.split_fingerprint())
    else:
        for earlier in experiment.method_config().earlier_runs():
            check_same_sites(Path(earlier), data.sites)
        write_json(manifest, data.manifest())
    return data, all(about.rehearsal for about in sites.values())


def await_descriptions(
    engine: FlowerEngine, names: Sequence[str], wait: float, pause: float, needed: bool
) -> dict[str, SiteAbout]:
    """How the sites describe themselves; all must within `wait` seconds if they are `needed`."""
    end = time.monotonic() + wait
    found: dict[str, SiteAbout] = {}
    reasons: dict[str, str] = {}
    while True:
        here = [name for name in connected(engine.grid) if name in names and name not in found]
        if here:
            answers = engine.ask(DESCRIBE, dict.fromkeys(here, encode({})), DESCRIBING)
            reasons |= {name: str(failure) for name, failure in answers.failures.items()}
            found |= {name: _read_about(name, blob.read()) for name, blob in answers.replies.items()}
        missing = [name for name in names if name not in found]
        if not missing or time.monotonic() > end:
            break
        time.sleep(pause)
    if missing and needed:
        why = "; ".join(reasons.get(name, f'"{name}": not connected') for name in missing)
        raise UserError(f"{len(missing)} of {len(names)} sites did not answer within {wait:g} s: {why}.")
    return found


def _read_about(name: str, reply: bytes) -> SiteAbout:
    """A site's description of itself, if it can be used."""
    try:
        answer = decode(reply)
        if not answer["ok"]:
            reason = f"{answer['error']}: {answer['message']}"
            raise UserError(f'Site "{name}" cannot take part: {reason}. Run "fedsynth site check" there.')
        about = SiteAbout.model_validate(answer["about"])
    except (PayloadError, KeyError, TypeError, ValueError) as error:
        unusable = f'Site "{name}" describes itself in a way that cannot be read'
        raise UserError(f"{unusable} ({type(error).__name__}).") from None
    if about.site != name:
        raise UserError(f'The site whose key is registered as "{name}" calls itself "{about.site}": correct its file.')
    return about
