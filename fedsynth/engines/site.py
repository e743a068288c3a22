"""A site's side of the network: checks a request, carries it out on the site's own data, remembers the reply.

Nothing is held in memory between requests, because a Flower node starts a new process for each. On the site's disk,
under a folder per run: the private state, in versions (see `store.py`), and the replies of the last two steps. The
same request asked again, as a resumed server does, gets the reply it got before: nothing is trained or noised twice.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsynth.engines.policy import SiteBudget, SitePolicy
from fedsynth.errors import FedsynthError
from fedsynth.federation.host import DataHolder, TaskHost
from fedsynth.federation.payload import PayloadError, decode, encode
from fedsynth.federation.store import KEPT_STEPS, StateStore, write_atomically
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.learning.weights import WeightsError
from fedsynth.privacy import BudgetError, Guarantee

RUN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
DESCRIBE = "describe_site"  # asks a site about itself, before there is a run to ask tasks in
READ_THE_LOG = "the rest is in the log of that site"
ABOUT_THE_REQUEST = frozenset({WeightsError.__name__})  # errors whose text is about what was sent, not about the data


class RefusalError(FedsynthError):
    """A request that a site does not carry out. Its sentence is about the request, never about the data."""


class _Limit(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class _Request(BaseModel):
    """What a request must look like, before its fields are read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str
    id: str = Field(pattern=r"^[0-9]{1,9}$")
    step: int = Field(ge=1, le=10**9)
    seed: int = Field(ge=0)
    round: int = Field(ge=0)
    states: dict[str, str]
    budget: _Limit | None = None
    relay: str = ""
    route: str = ""
    turn: int = Field(0, ge=0)
    fields: dict[str, Any]


class Site:
    """Answers requests for one site. `about` is what it tells of itself before a run."""

    def __init__(
        self,
        name: str,
        data: DataHolder,
        folder: Path,
        policy: SitePolicy | None = None,
        about: Mapping[str, Any] | None = None,
        device: str = "cpu",
        secret_noise: bool = True,
    ) -> None:
        self.name, self.data, self.folder = name, data, folder
        self.policy, self.about = policy or SitePolicy(), dict(about or {})
        self.device, self.secret_noise = device, secret_noise

    def respond(self, header: Mapping[str, Any], body: bytes) -> bytes:
        """The reply to whatever came through the door; there always is one."""
        try:
            task = header.get("task")
            if task == DESCRIBE:
                self._log("told about itself: " + ", ".join(self.about))
                return encode({"ok": True, "about": self.about})
            return self.answer(task if isinstance(task, str) else "", header, body)
        except Exception as error:
            self._log(f"failed outside any task\n{traceback.format_exc().rstrip()}")
            return _error(type(error).__name__, READ_THE_LOG)

    def answer(self, task: str, header: Mapping[str, Any], body: bytes) -> bytes:
        """Carry out a request, or say in one sentence why not. Of an error in a task, only the class leaves."""
        try:
            request = self._checked(task, header, body)
        except RefusalError as error:
            self._log(f'refused a request for "{task}": {error}')
            return failed(error)
        folder = self.folder / "runs" / header["run"]
        with _alone(folder):
            kept = folder / "replies" / f"{request.step:06d}-{hashlib.sha256(body).hexdigest()}.safetensors"
            where = f'run {header["run"]}, step {request.step}, "{task}"'
            if kept.is_file():
                self._log(f"{where}: asked again, sent the same reply")
                return kept.read_bytes()
            host = TaskHost(self.data, StateStore(folder / "state", sync=True), self.device, self.secret_noise)
            return self._let_out(host.handle(self.name, body), where, kept, request.step)

    def _let_out(self, reply: bytes, where: str, kept: Path, step: int) -> bytes:
        """Keep a reply, enter it in the log and hand it over, if it is one and the policy lets it pass."""
        answer = decode(reply)
        if not answer["ok"]:
            self._log(f"{where}: failed\n{answer['traceback'].rstrip()}")
            fit = answer["error"] in ABOUT_THE_REQUEST
            return _error(answer["error"], answer["message"] if fit else READ_THE_LOG)
        guarantees = {name: Guarantee.model_validate(values) for name, values in answer["guarantees"].items()}
        objection = self.policy.objection(answer["fields"], guarantees)
        over = "" if objection else SiteBudget(self.folder / "spent.json", self.policy).charge(guarantees)
        if objection or over:
            self._log(f"{where}: kept back, {objection or over}")
            return failed(BudgetError(over) if over else RefusalError(objection))
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, reply)
        for old in kept.parent.glob("*.safetensors"):
            if int(old.name.split("-", 1)[0]) <= step - KEPT_STEPS:
                old.unlink(missing_ok=True)
        sent = ", ".join(sorted(answer["fields"])) or "nothing"
        self._log(f"{where}: sent {sent} ({len(reply)} bytes)")
        return reply

    def _checked(self, task: str, header: Mapping[str, Any], body: bytes) -> _Request:
        """The request, if it is well formed, for this site, and something that this site may do."""
        if header.get("site") != self.name:
            raise RefusalError(f'the request is not for this site, "{self.name}"')
        if not isinstance(header.get("run"), str) or not RUN_KEY.fullmatch(header["run"]):
            raise RefusalError("the request names no run")
        reason = self.policy.refusal(task, len(body))
        if reason:
            raise RefusalError(reason)
        try:
            request = _Request(**decode(body))
            if request.task != task:
                raise RefusalError(f'the message says "{task}" and the request inside it says something else')
            find_task(task).read_request(request.fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "request"
            raise RefusalError(f'the request is malformed: "{where}": {first["msg"].lower()}') from None
        except (PayloadError, TaskError) as error:
            raise RefusalError(str(error)) from None
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise RefusalError(f"the request is malformed ({type(error).__name__})") from None
        broken = next(not_finite(request.fields, "fields"), None)
        if broken:
            raise RefusalError(f'"{broken}" of the request holds numbers that are not finite')
        return request

    def _log(self, text: str) -> None:
        """One entry of the site's own log, which never leaves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "site.log").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n")


def failed(error: Exception) -> bytes:
    """The reply of a site that did not carry out a request; the error's sentence must be fit to leave."""
    return _error(type(error).__name__, str(error))


def _error(name: str, message: str) -> bytes:
    return encode({"ok": False, "error": name, "message": message, "traceback": ""})


def not_finite(value: Any, path: str) -> Iterator[str]:
    """Where in a tree of fields there are NaN or infinite numbers."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from not_finite(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from not_finite(item, f"{path}.{index}")
    elif (
        (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, torch.Tensor) and not _all_finite(value))
        or (isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not bool(np.isfinite(value).all()))
    ):
        yield path


def _all_finite(tensor: torch.Tensor) -> bool:
    if tensor.is_complex():
        return bool(torch.isfinite(tensor).all())
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.float()).all())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One request of a run at a time: a resumed server may ask again while the first process still works."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
