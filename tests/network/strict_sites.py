"""Sites with a few made-up records, and requests to them, as somebody who holds the server's side could send them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedsynth.evaluation.views
import fedsynth.methods  # noqa: F401 - these register the tasks
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.federation.payload import decode, encode
from fedsynth.network.policy import SitePolicy
from fedsynth.network.site import Site

SHAPE = (1, 4, 4)
CLASSES = 3
NAME = "x"


def records(count: int, bright: int = 0, more: int = 0) -> Dataset:
    """Images with pixels of their own, of the classes in turn, most of the last; some of class 1 are very bright."""
    total = count + bright + more
    x = np.random.default_rng(7).random((count + 1, *SHAPE), dtype=np.float32)[:total]
    y = np.minimum(np.arange(total) % (CLASSES + 2), CLASSES - 1)
    if bright:
        x[count:], y[count:] = 1e4, 1
    return Dataset(x, y.astype(np.int64))


class TinyData:
    """One client's records; the number that it tells as public is the same whatever they are."""

    def __init__(self, count: int, bright: int = 0, more: int = 0) -> None:
        self.schema = Schema(SHAPE, CLASSES)
        rest = records(count).subset(np.arange(min(3, count)))
        self.own = ClientData(records(count, bright, more), rest, rest, declared=count)

    def client(self, client: str) -> ClientData:
        return self.own

    def pooled(self, part: str) -> Dataset:
        raise AssertionError("nobody holds everybody's data")


def tiny_site(folder: Path, count: int = 20, bright: int = 0, more: int = 0, **policy: Any) -> Site:
    """A site with this policy."""
    return Site(NAME, TinyData(count, bright, more), folder, SitePolicy(**policy))


def strict(make: Callable[..., Site], **policy: Any) -> Site:
    """A site that lets nothing out without a guarantee, and spends ε = 1 at most."""
    return make(**{"unprotected": False, "epsilon": 1.0} | policy)


def asked(task: str, fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A well-formed request."""
    common = {"id": "0", "step": 1, "seed": 0, "round": 1, "states": {}}
    return {"task": task, **common, "fields": fields, **changes}


def ask(site: Site, task: str, fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a site answers at its own door."""
    header = {"run": changes.pop("run", "r"), "site": NAME, "task": task}
    return decode(site.respond(header, encode(asked(task, fields, **changes))))
