"""A site's side of the network: checks a request, carries it out on the site's own data, remembers the reply.

Nothing is held in memory between requests, because a Flower node starts a new process for each. On the site's disk,
under a folder per run: the private state, in versions (see `store.py`), and the replies of the last two steps. The
same request asked again, as a resumed server does, gets the reply it got before: nothing is trained or noised twice.
"""

import builtins
import datetime
import hashlib
import hmac
import re
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

import fedsynth.methods  # noqa: F401  (registers all tasks)
from fedsynth.data.sources import fingerprint
from fedsynth.errors import FedsynthError
from fedsynth.federation.host import Carried, DataHolder, NotFiniteError, TaskHost, finished
from fedsynth.federation.payload import PayloadError, decode, encode, not_finite
from fedsynth.federation.store import KEPT_STEPS, StateStore, alone, kept_secret, write_atomically
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.learning.weights import WeightsError
from fedsynth.network.policy import SiteBudget, SitePolicy
from fedsynth.privacy import BudgetError

RUN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
DESCRIBE = "describe_site"  # asks a site about itself, before there is a run to ask tasks in
READ_THE_LOG = "the rest is in the log of that site"
KEPT_BACK = "the policy of this site releases nothing without a privacy guarantee; its log says more"
ABOUT_THE_REQUEST = frozenset({WeightsError.__name__, NotFiniteError.__name__})
"""Errors whose text is about what was sent or names a field, and not about the data."""
FOLLOWS_FROM_REQUESTS = frozenset({WeightsError.__name__, BudgetError.__name__})
"""Errors that have nothing to do with records: weights that do not fit the model, a run's own budget."""


class RefusalError(FedsynthError):
    """A request that a site does not carry out. Its sentence is about the request, never about the data."""


class _Limit(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class _Request(BaseModel, extra="forbid", strict=True):
    """What a request must look like, before its fields are read."""

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


class SiteAbout(BaseModel, frozen=True, strict=True, extra="ignore"):  # what nobody has asked for is dropped
    """What a site describes itself by before a run, to whoever asks: nothing of how much it has of what, which is for
    tasks to release, under the site's policy and with an entry in the ledger."""

    site: str
    fedsynth: str
    code: str
    shape: list[Annotated[int, Field(gt=0)]] = Field(min_length=1)
    classes: list[str] = Field(min_length=2)
    fingerprint: str
    rehearsal: bool


class Site:
    """Answers requests for one site. `about` is how it describes itself before a run.

    Without `secret_noise` privacy noise comes from the request's seed: for rehearsals on data that is not private.
    """

    def __init__(
        self,
        name: str,
        data: DataHolder,
        folder: Path,
        policy: SitePolicy | None = None,
        about: SiteAbout | None = None,
        device: str = "cpu",
        secret_noise: bool = True,
    ) -> None:
        self.name, self.data, self.folder = name, data, folder
        self.policy, self.about = policy or SitePolicy(), about
        self.device, self.secret_noise = device, secret_noise
        own = data.client(name)
        self._data_print = f"{about.fingerprint if about else fingerprint(own.train, None, None)} {own.public_size}"

    def respond(self, header: Mapping[str, Any], body: bytes) -> bytes:
        """The reply to whatever came through the door; there always is one."""
        try:
            task = header.get("task")
            if task == DESCRIBE:
                about = self.about.model_dump() if self.about else {}
                self._log("described itself: " + ", ".join(about))
                return encode({"ok": True, "about": about})
            return self.answer(task if isinstance(task, str) else "", header, body)
        except Exception as error:
            self._log(f"failed outside any task\n{traceback.format_exc().rstrip()}")
            return _error(known_error(type(error).__name__), READ_THE_LOG)

    def answer(self, task: str, header: Mapping[str, Any], body: bytes) -> bytes:
        """Carry out a request, or say in one sentence why not. Of an error in a task, only the class leaves."""
        try:
            request = self._checked(task, header, body)
        except RefusalError as error:
            self._log(f'refused a request for "{task}": {error}')
            return failed(error)
        folder = self.folder / "runs" / header["run"]
        with alone(folder / "lock"):  # a resumed server may ask again while the first process still works
            kept = folder / "replies" / f"{request.step:06d}-{hashlib.sha256(body).hexdigest()}.safetensors"
            where = f'run {header["run"]}, step {request.step}, "{task}"'
            if kept.is_file():
                self._log(f"{where}: asked again, sent the same reply")
                return kept.read_bytes()
            started = time.perf_counter()
            done = self._host(folder).carry_out(self.name, decode(body))
            try:
                answer = self._release(done, where)
            except (RefusalError, BudgetError) as error:
                self._log(f"{where}: kept back, {error}")
                return failed(error)
            seconds = time.perf_counter() - started if self.policy.unprotected else 0.0  # may tell of records
            if not answer["ok"]:
                return finished(answer, seconds)
            done.keep()  # of what was kept back, nothing may be built on either
            return self._kept(finished(answer, seconds), kept, request.step, where)

    def _host(self, folder: Path) -> TaskHost:
        secret = self._noise_key if self.secret_noise else None
        store = StateStore(folder / "state", sync=True)
        return TaskHost(self.data, store, self.device, secret, always_keep=not self.policy.unprotected)

    def _noise_key(self) -> bytes:
        """The site's key, for the data as it is: the same request gets other noise when a record has come or gone."""
        return hmac.digest(kept_secret(self.folder / "noise.key"), self._data_print.encode(), "sha256")

    def _release(self, done: Carried, where: str) -> dict[str, Any]:
        """An answer as it may leave, once it has been charged for; refused when policy or budget do not let it.

        A task that failed after its release is charged too: that it failed may tell what it had released. Where nothing
        may leave unprotected, a task that failed before is answered like one whose reply is kept back.
        """
        answer, charged = done.answer, any(guarantee.costs for guarantee in done.guarantees.values())
        if answer["ok"]:
            objection = self.policy.objection(answer["fields"].opened(), done.guarantees, done.looked)
            if objection:
                self._log(f"{where}: {objection}")
                raise RefusalError(KEPT_BACK)
        elif not (self.policy.unprotected or charged or answer["error"] in FOLLOWS_FROM_REQUESTS):
            self._log(f"{where}: failed\n{answer['traceback'].rstrip()}")
            raise RefusalError(KEPT_BACK)
        over = SiteBudget(self.folder / "spent.json", self.policy).charge(done.guarantees)
        if over:
            raise BudgetError(over)
        if not answer["ok"]:
            self._log(f"{where}: failed\n{answer['traceback'].rstrip()}")
            fit = answer["error"] in ABOUT_THE_REQUEST
            message = answer["message"] if fit else READ_THE_LOG
            return {"ok": False, "error": known_error(answer["error"]), "message": message, "traceback": ""}
        if self.policy.unprotected:
            return answer
        return answer | {"guarantees": {name: g.in_plain_words().as_dict() for name, g in done.guarantees.items()}}

    def _kept(self, reply: bytes, kept: Path, step: int, where: str) -> bytes:
        """A reply that may leave, noted and kept for the same request asked again."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, reply)
        for old in kept.parent.glob("*.safetensors"):
            if int(old.name.split("-", 1)[0]) <= step - KEPT_STEPS:
                old.unlink(missing_ok=True)
        sent = ", ".join(sorted(decode(reply)["fields"])) or "nothing"
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
            reason = self.policy.kept_here(find_task(task))
            if reason:
                raise RefusalError(reason)
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


def known_error(name: str) -> str:
    """The class of an error, if it is one of Python's or of fedsynth's: a name made up in a task could carry data."""
    ours: list[type] = [FedsynthError]
    for kind in ours:  # grows as it is gone through: all that inherit from it
        ours += kind.__subclasses__()
    known = {kind.__name__ for kind in ours if kind.__module__.split(".")[0] == "fedsynth"}
    python = getattr(builtins, name, None)
    return name if name in known or (isinstance(python, type) and issubclass(python, Exception)) else "Exception"
