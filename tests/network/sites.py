"""What the tests of the network share: files as a site has them, all rehearsing on the digits, and an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DIGITS = {"shape": [1, 8, 8], "classes": [str(digit) for digit in range(10)]}
PARTITION = {"name": "dirichlet", "num_clients": 3, "alpha": 1.0}
LIMIT = 240


def site_file(folder: Path, name: str, client: str, extra: str = "") -> Path:
    """A site that plays one client of the split that the local runs of these tests use."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "site.toml"
    partition = ", ".join(f"{key} = {json.dumps(value)}" for key, value in PARTITION.items())
    file.write_text(
        f'name = "{name}"\n[flower]\nsuperlink = "localhost:1"\n'
        f"[schema]\nshape = {DIGITS['shape']}\nclasses = {json.dumps(DIGITS['classes'])}\n"
        f'[data]\nname = "digits"\nlimit = {LIMIT}\n'
        f'[rehearsal]\nclient = "{client}"\npartition = {{ {partition} }}\n{extra}'
    )
    return file


def tables(**sections: Any) -> dict[str, Any]:
    """An experiment of seconds on the same split."""
    return {
        "data": {"name": "digits", "limit": LIMIT},
        "partition": PARTITION,
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"rounds": 2, "local_epochs": 1},
        **sections,
        # The same bits here and there: noise from the seed, as sites that rehearse have it.
        "privacy": {"secret_noise": False, **sections.get("privacy", {})},
    }
