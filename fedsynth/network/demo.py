"""A federation on this machine, from nothing to a finished run: a SuperLink, three sites with a share of the digits
each, TLS, registered keys, and FedDPMS over all of it."""

import json
from collections.abc import Callable
from pathlib import Path

from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.files import Tables
from fedsynth.experiment.runner import RunResult, run_experiment
from fedsynth.network.deploy import Federation, write_federation
from fedsynth.network.loopback import Loopback

SITES = ("berlin", "paris", "rome")
PARTITION = 'partition = { name = "dirichlet", num_clients = 3, alpha = 0.3 }'


def run_demo(folder: Path, settings: Tables, say: Callable[[str], None], progress: bool | None) -> RunResult:
    """Write a federation folder, start it on this machine, run, and stop everything."""
    write_federation(folder, Federation(SITES, (1, 8, 8), tuple(map(str, range(10)))))
    for number, site in enumerate(SITES):
        _rehearse(folder / "sites" / site / "site.toml", number)
    say(f"The federation is in {folder}. Starting a SuperLink and {len(SITES)} sites; this takes half a minute.")
    with Loopback(folder) as network:
        say(f"The SuperLink answers at {network.superlink}. Each request takes a few seconds.")
        engine = {
            "name": "flower",
            "superlink": network.superlink,
            "certificate": str((folder / "server" / "ca.crt").absolute()),
            "sites": list(SITES),
        }
        given = {"method": {"name": "feddpms"}, "train": {"rounds": 4}, "evaluation": {"every": 2}, **settings}
        return run_experiment(
            make_experiment({**given, "runs": str(folder / "runs"), "engine": engine}), progress=progress
        )


def _rehearse(file: Path, client: int) -> None:
    """Let a site play one client of a split of the digits, in place of data of its own."""
    text = file.read_text(encoding="utf-8").replace('name = "npz:data.npz"', 'name = "digits"')
    file.write_text(f"{text}\n[rehearsal]\nclient = {json.dumps(str(client))}\n{PARTITION}\n", encoding="utf-8")
