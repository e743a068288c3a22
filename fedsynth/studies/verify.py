"""Does a method keep the promises that all methods make? Small runs on the digits that find out.

Identity: with the settings it declares (`@method(…, fedavg_when=…)`) it is FedAvg, bit-identical.
Determinism: the same bits again, and on an engine where only bytes pass and clients answer in another order.
Resume: cut off anywhere, it ends as if nothing had happened.
What leaves: the declared fields, and no training example.
Dead clients: it ends without one, and without all.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsynth.components.settings import TrainConfig
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.engines.faults import FaultConfig, FaultyEngine
from fedsynth.engines.local import LocalEngine
from fedsynth.engines.wire import WireEngine
from fedsynth.evaluation.views import client_tallies
from fedsynth.experiment.catalogue import load_method
from fedsynth.federation import Federation, Outcome, Policy
from fedsynth.federation.host import TaskHost
from fedsynth.federation.journal import Journal
from fedsynth.federation.methods import Method
from fedsynth.federation.payload import decode
from fedsynth.federation.port import SERVER, Answers, Engine
from fedsynth.federation.store import StateStore
from fedsynth.federation.tasks import find_task
from fedsynth.learning.models import ModelSpec

CUTS = (0.25, 0.5, 0.8)  # of all asks: where runs are cut off
CONVOLUTIONAL = ("cnn", "zda_cnn", "agg_cnn", "pfl_cnn", "latent_cnn")  # the promises hold for small ones or for none
REAL = "real"  # a field that holds training examples must say so
FOREVER = [(0.0, 1e18)]


class BrokenPromiseError(Exception):
    """A check that failed, and why."""


class CutOffError(Exception):
    """Stands for a kill."""


@dataclass(frozen=True)
class Finding:
    """What one check found; `passed` is None where there was nothing to check."""

    check: str
    passed: bool | None
    why: str


@dataclass
class WatchedEngine:
    """An engine that remembers what came back, and may cut a run off."""

    inner: Engine
    stop: int | None = None
    asks: int = 0
    clock: float = 0.0
    sent: list[tuple[str, str, Mapping[str, object]]] = field(default_factory=list)  # task, client, fields

    def ask(self, task: str, requests: Mapping[str, bytes], deadline: float | None) -> Answers:
        """Pass on, or fail where the run is to be cut off."""
        self.asks += 1
        if self.stop is not None and self.asks > self.stop:
            raise CutOffError
        answers = self.inner.ask(task, requests, deadline)
        self.clock = self.inner.clock
        for client, blob in answers.replies.items():
            answer = decode(blob.read())
            if answer["ok"] and not client.startswith(SERVER):
                self.sent.append((task, client, answer["fields"]))
        return answers

    def close(self) -> None:
        """Close the engine inside."""
        self.inner.close()


@dataclass(frozen=True)
class Trace:
    """A run that came to its end."""

    outcome: Outcome
    fed: Federation
    engine: WatchedEngine


Results = tuple[Mapping[str, torch.Tensor], Mapping[tuple[str, str], tuple[list[int], float]]]
"""Everything a run ends with: the weights, and what every client's model gets right, by view and client."""


class Bench:
    """Runs one method on a few digits, again and again."""

    def __init__(self, method: Method, settings: Mapping[str, Any], folder: Path) -> None:
        self.method, self.settings, self.folder = method, dict(settings), folder
        partition = {"name": "dirichlet", "num_clients": 4, "alpha": 0.5, "min_size": 5}
        self.data: FederatedData = load_federated(DataConfig(name="digits", limit=100), partition, seed=1)
        channels = (4, 6) if method.model in CONVOLUTIONAL else None
        self.spec = ModelSpec(name=method.model, channels=channels)

    def run(
        self,
        name: str = "",
        wire: bool = False,
        faults: FaultConfig | None = None,
        stop: int | None = None,
        method: Method | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Trace:
        """One run; with a name it is kept, and goes on when it is called again."""
        method, settings = method or self.method, self.settings if settings is None else settings
        place = self.folder / (name or f"unnamed-{len(list(self.folder.iterdir()))}")
        place.mkdir(exist_ok=True)
        store = StateStore(place / "state")
        engine: Engine = LocalEngine(TaskHost(self.data, store))
        if wire:
            engine = WireEngine(lambda: TaskHost(self.data, store))
        if faults is not None:
            engine = FaultyEngine(engine, faults, 0, lambda client: 1)
        watched = WatchedEngine(engine, stop)
        policy, journal = Policy(quorum=0.0 if faults else 1.0), Journal(place) if name else None
        where = self.data.clients, self.data.schema
        fed = Federation(watched, *where, 0, policy, journal, pooled=True, version_readable=store.readable)
        return Trace(method.program(fed, self.config(method, settings)), fed, watched)

    def config(self, method: Method, settings: Mapping[str, Any]) -> Any:
        """The settings of a short run."""
        return method.config(train=TrainConfig(rounds=3, local_epochs=1, batch_size=16), model=self.spec, **settings)

    @functools.cached_property
    def whole(self) -> Trace:
        """A run from beginning to end: what the others are held against."""
        return self.run("whole")

    @functools.cached_property
    def results(self) -> Results:
        """What the whole run ends with."""
        return self.evaluate(self.whole)

    def evaluate(self, trace: Trace) -> Results:
        """What a run ends with."""
        spec = self.config(self.method, self.settings).classifier
        tallies = client_tallies(trace.fed, trace.outcome, spec, ["validation", "test"])
        scores = {
            (view, client): (tally.correct.tolist(), tally.loss)
            for view, by_client in tallies.items()
            for client, tally in by_client.items()
        }
        return trace.outcome.model or {}, scores


def verify_method(name: str, settings: Mapping[str, Any] | None = None) -> list[Finding]:
    """Put a method through all checks."""
    method = load_method(name)
    checks: dict[str, Callable[[Bench], str | None]] = {
        "identity": check_identity,
        "determinism": check_determinism,
        "resume": check_resume,
        "what leaves": check_replies,
        "dead clients": check_dead_clients,
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(method, settings or {}, Path(folder))
        _ = bench.whole  # settings that it refuses are for the user to change
        return [_finding(check, examine, bench) for check, examine in checks.items()]


def _finding(check: str, examine: Callable[[Bench], str | None], bench: Bench) -> Finding:
    try:
        why = examine(bench)
    except BrokenPromiseError as error:
        return Finding(check, False, str(error))
    except Exception as error:
        return Finding(check, False, f"it broke down: {type(error).__name__}: {str(error).splitlines()[0]}")
    return Finding(check, None if why else True, why or "")


def check_identity(bench: Bench) -> str | None:
    """With the settings it names, the method is FedAvg."""
    off = bench.method.fedavg_when
    if off is None:
        return "not declared: @method(…, fedavg_when={…}) names the settings that turn the method into FedAvg"
    ours = bench.run(settings=bench.settings | dict(off))
    plain = bench.run(method=load_method("fedavg"), settings={})
    different = _first_difference(ours.outcome.model or {}, plain.outcome.model or {})
    if different:
        raise BrokenPromiseError(f'with {dict(off)} it should be bit-identical to FedAvg, but "{different}" differs')
    return None


def check_determinism(bench: Bench) -> None:
    """The same seed gives the same bits, here and where only bytes pass."""
    first, again = bench.results, bench.evaluate(bench.run())
    _require_same(first, again, "a second run with the same seed: use client.rng and fed.rng")
    wire = bench.evaluate(bench.run(wire=True))
    _require_same(first, wire, "the wire engine: nothing may be shared but what is sent and kept")


def check_resume(bench: Bench) -> None:
    """Cut off at any point and started again, the run ends with the same bits."""
    whole, total = bench.results, bench.whole.engine.asks
    for cut in sorted({max(1, round(share * total)) for share in CUTS}):
        name = f"cut-{cut}"
        with contextlib.suppress(CutOffError):
            bench.run(name, stop=cut)
        resumed = bench.evaluate(bench.run(name))
        _require_same(whole, resumed, f"a run cut off after {cut} of {total} requests: keep it in `state`")


def check_replies(bench: Bench) -> None:
    """Replies hold the declared fields, and training examples only where the field says so."""
    trace = bench.whole
    private = {client: _rows(bench.data.client(client).train.x) for client in bench.data.clients}
    size = int(np.prod(bench.data.schema.shape))
    for name_of_task, client, fields in trace.engine.sent:
        task, records = f'task "{name_of_task}"', private.get(client, set())
        declared = find_task(name_of_task).leaves()
        if set(fields) != set(declared):
            undeclared = sorted(set(fields) ^ set(declared))
            raise BrokenPromiseError(f"{task} sent {undeclared}, which is not declared")
        for name, words in declared.items():
            if not words:
                raise BrokenPromiseError(f'{task}: the field "{name}" does not say what leaves in it')
            if REAL not in words and any(_holds(array, size, records) for array in _arrays(fields[name])):
                raise BrokenPromiseError(f'{task} sent training examples in "{name}", which is declared as "{words}"')


def check_dead_clients(bench: Bench) -> None:
    """A client that never answers, and then nobody who does, are no reason to break down."""
    clients = list(bench.data.clients)
    for away in (clients[:1], clients):
        trace = bench.run(faults=FaultConfig(delay=1.0, outages=dict.fromkeys(away, FOREVER)))
        weights = trace.outcome.model or {}
        if not all(torch.isfinite(entry).all() for entry in weights.values() if entry.is_floating_point()):
            raise BrokenPromiseError(f"with {len(away)} of {len(clients)} clients away its weights are not finite")


def _require_same(first: Results, second: Results, where: str) -> None:
    different = _first_difference(first[0], second[0])
    if different:
        raise BrokenPromiseError(f'"{different}" has other bits in {where}')
    if first[1] != second[1]:
        raise BrokenPromiseError(f"clients' own models have other scores in {where}")


def _first_difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> str:
    if set(one) != set(other):
        return sorted(set(one) ^ set(other))[0]
    return next((name for name in one if not torch.equal(one[name], other[name])), "")


def _rows(x: np.ndarray) -> set[bytes]:
    return {np.ascontiguousarray(row, np.float32).tobytes() for row in x}


def _holds(array: np.ndarray, size: int, private: set[bytes]) -> bool:
    """Whether an array holds one of these examples, as whole rows of its numbers."""
    if array.size < size or array.size % size:
        return False
    return any(row.tobytes() in private for row in np.ascontiguousarray(array, np.float32).reshape(-1, size))


def _arrays(value: object) -> Iterator[np.ndarray]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, torch.Tensor):
        yield value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        yield value
