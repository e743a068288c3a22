"""From an experiment to a run folder: data, engine, federation, method, evaluation, record."""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsynth.components.class_counts import count_classes
from fedsynth.data.dataset import Schema
from fedsynth.data.federated import DescribedData, FederatedData, RunData, load_federated
from fedsynth.engines.faults import FaultyEngine
from fedsynth.engines.local import LocalEngine, choose_workers
from fedsynth.engines.wire import WireEngine
from fedsynth.errors import ConfigError, UserError
from fedsynth.evaluation.results import Best, DataSummary, MetricsRow, RunSummary, SynthesisCheck
from fedsynth.evaluation.scores import Evaluation
from fedsynth.evaluation.usable import find_problem
from fedsynth.evaluation.views import final_evaluation
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import plugin_files, read_run_config
from fedsynth.experiment.folder import RunFolder, check_same_code, check_same_split
from fedsynth.experiment.progress import Quiet, make_progress
from fedsynth.experiment.recorder import Recorder, held_out, save_model
from fedsynth.experiment.synthesis import checks_of, keep_class_means, record_exactly
from fedsynth.federation import Federation, Outcome, Policy
from fedsynth.federation.host import TaskHost
from fedsynth.federation.journal import Journal
from fedsynth.federation.methods import find_method
from fedsynth.federation.port import POOLED, SERVER, Engine
from fedsynth.federation.store import StateStore, write_json
from fedsynth.learning.models import Classifier, build_model, instantiate
from fedsynth.learning.weights import Weights
from fedsynth.report.artifacts import write_record
from fedsynth.report.coverage import missed_clients
from fedsynth.report.page import write_report

MOST_EXAMPLES = 10**12  # of a class: more is a mistake or a lie, and would not add up in 64 bits


@dataclass
class RunResult:
    """What a run gave: the summary, a line of metrics per round, the global weights and where all of it is kept."""

    summary: RunSummary
    metrics: list[MetricsRow]
    weights: Weights | None
    path: Path
    experiment: Experiment = field(repr=False)
    schema: Schema = field(repr=False)
    whole: bool = field(repr=False, default=True)

    @cached_property
    def model(self) -> nn.Module | None:
        """The global model, ready to use; None for a method that ends with personal models only."""
        return built(self.experiment, self.schema, self.weights if self.whole else None)


def built(experiment: Experiment, schema: Schema, weights: Weights | None) -> Classifier | None:
    """A network with these weights; None without any."""
    if weights is None:
        return None
    return instantiate(experiment.model_spec, schema.shape, schema.classes, weights).eval()


def run_experiment(
    experiment: Experiment,
    resume: Path | None = None,
    progress: bool | None = None,
    accept_code_change: bool = False,
    data: FederatedData | None = None,
) -> RunResult:
    """Run (or resume) an experiment. Everything that can be wrong with the input is found before a folder is made."""
    if experiment.engine.name == "flower":
        from fedsynth.network.launch import run_over_network

        return run_over_network(experiment, resume, progress, accept_code_change)
    data = data or load_data(experiment)
    device = check_setting(experiment, data)
    if resume is None:
        for earlier in experiment.method_config().earlier_runs():
            check_same_split(Path(earlier), data.split_fingerprint())
        folder = RunFolder.create(experiment, "+".join(data.source_names), data.manifest())
    else:
        folder = RunFolder.reopen(resume, experiment, accept_code_change)
        check_same_split(folder.path, data.split_fingerprint())
    try:
        with folder.locked(), folder.failure_kept(), make_progress(experiment.method_name, progress) as shown:
            return _run(experiment, data, device, folder, shown)
    except UserError:
        if resume is None and not (folder.path / "checkpoints").exists():
            shutil.rmtree(folder.path)  # the program refused its settings before its first round
        raise


def check_setting(experiment: Experiment, data: RunData) -> str:
    """Check that the device is there and the model fits the data; the device to use."""
    device = choose_device(experiment.engine.device)
    build_model(experiment.model_spec, data.schema.shape, data.schema.classes, seed=0)
    return device


def load_data(experiment: Experiment) -> FederatedData:
    """The federation's data, split as the experiment says."""
    seed = experiment.seed if experiment.data_seed is None else experiment.data_seed
    return load_federated(experiment.data, experiment.partition, seed)


def choose_device(name: str) -> str:
    """Check that the device is there; "auto" takes a GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError(
            f'engine.device = "{name}" cannot be used here ({first_line}): use "cpu" or "auto".'
        ) from None
    return name


def make_engine(
    experiment: Experiment, data: FederatedData, make_host: Callable[[], TaskHost], device: str, shown: Quiet
) -> Engine:
    """The engine the experiment asks for, with its fault schedule if it has one."""
    engine: Engine
    if experiment.engine.name == "wire":
        engine = WireEngine(make_host)
    else:
        workers, why = choose_workers(experiment.engine.workers, device)
        if why:
            shown.say(why)
        engine = LocalEngine(make_host(), workers, _work_of(data))
    if experiment.faults.active:
        engine = FaultyEngine(engine, experiment.faults, experiment.seed, _work_of(data), data.clients)
    return engine


def _work_of(data: FederatedData) -> Callable[[str], int]:
    """How much work a client is: its training examples."""

    def work(client: str) -> int:
        if client.startswith(SERVER):
            return 0
        return len(data.rows) if client == POOLED else data.train_size(client)

    return work


def _run(experiment: Experiment, data: FederatedData, device: str, folder: RunFolder, shown: Quiet) -> RunResult:
    store = StateStore(folder.path / "state")
    secret = folder.secret if experiment.privacy.draws_in_secret else None
    make_host = partial(TaskHost, data, store, device, secret)
    options = {"pooled": True, "version_readable": store.readable, "secret": secret}
    with closing(make_engine(experiment, data, make_host, device, shown)) as engine:
        return carry_out(experiment, data, engine, device, folder, shown, store, **options)


def carry_out(
    experiment: Experiment,
    data: RunData,
    engine: Engine,
    device: str,
    folder: RunFolder,
    shown: Quiet,
    simulated: StateStore | None = None,
    **options: Any,
) -> RunResult:
    """Run the method's program over an engine, evaluate what it gave, and leave the record in the folder.

    `simulated` is where clients that are simulated keep their state; `options` are those of `Federation` that depend on
    where the clients are.
    """
    recorder = Recorder(folder.path, experiment, data.test, device, shown, partial(held_out, experiment, data))
    policy, journal = policy_of(experiment), Journal(folder.path)
    fed = Federation(engine, data.clients, data.schema, experiment.seed, policy, journal, recorder, **options)
    data = with_told_counts(experiment, data, fed, folder.path)
    outcome = find_method(experiment.method_name).program(fed, experiment.method_config())
    if simulated is not None:
        record_exactly(fed, simulated)
    evaluated = fed.once("final evaluation", lambda: _evaluate(fed, outcome, experiment, data, device).as_dict())
    evaluation = Evaluation.model_validate(evaluated)
    seconds = fed.once("seconds", lambda: fed.seconds)
    recorder.follow(fed)
    keep_class_means(folder.path, data)
    whole = outcome.model is not None and not outcome.no_global
    if outcome.model is not None and whole:
        save_model(folder.path / "model.safetensors", outcome.model, experiment)
    model = built(experiment, data.schema, outcome.model if whole else None)
    checks = checks_of(folder.path, data, fed.participation.records, model)
    problem = find_problem(evaluation, outcome.model, data.counts(), data.schema.class_names)
    summary = summarise(experiment, data, fed, evaluation, checks, seconds, recorder.best, folder.path)
    summary = summary.model_copy(update={"problem": problem})
    write_record(folder.path, summary, recorder.rows, evaluation, fed.participation, data)
    folder.finish(summary)
    write_report([folder.path])
    return RunResult(summary, recorder.rows, outcome.model, folder.path, experiment, data.schema, whole)


def with_told_counts(experiment: Experiment, data: RunData, fed: Federation, path: Path) -> RunData:
    """The data and, where the experiment wants it, what its sites say they hold, which goes into the manifest too.

    They are asked before the first round: a site that is lost later is one of which people want to know what it held.
    """
    if not isinstance(data, DescribedData) or not experiment.evaluation.class_counts:
        return data
    known = data.with_counts(fed.once("class counts for the report", lambda: report_counts(fed)))
    write_json(path / "manifest.json", known.manifest())
    return known


def report_counts(fed: Federation) -> dict[str, list[int]]:
    """The exact class counts of the clients that release them, where they can be right."""
    replies = fed.broadcast(count_classes, quorum=0.0)
    return {c: reply.counts.tolist() for c, reply in replies.items() if _credible(reply.counts, fed.schema.classes)}


def _credible(counts: np.ndarray, classes: int) -> bool:
    """Whether these are numbers of examples at all."""
    whole = counts.shape == (classes,) and counts.dtype.kind in "iu"
    return whole and bool(counts.min() >= 0) and bool(counts.max() <= MOST_EXAMPLES)


def policy_of(experiment: Experiment) -> Policy:
    """All must answer, unless the experiment says otherwise or schedules faults."""
    quorum = experiment.train.quorum
    if quorum is None:
        quorum = 0.0 if experiment.faults.active else 1.0
    return Policy(quorum, experiment.train.deadline, experiment.privacy.limit())


def _evaluate(fed: Federation, outcome: Outcome, experiment: Experiment, data: RunData, device: str) -> Evaluation:
    sources: dict[str, np.ndarray] = {}
    if data.test_sources is not None:
        sources = {name: np.flatnonzero(data.test_sources == i) for i, name in enumerate(data.source_names)}
    count = experiment.evaluation.final_clients
    return final_evaluation(fed, outcome, experiment.model_spec, data.test, sources, device, count)


def summarise(
    experiment: Experiment,
    data: RunData,
    fed: Federation,
    evaluation: Evaluation,
    checks: list[SynthesisCheck],
    seconds: float,
    best: Best,
    path: Path,
) -> RunSummary:
    """The one object that `--json` prints."""
    took_part = fed.participation
    return RunSummary(
        method=experiment.method_name,
        seed=experiment.seed,
        metric=experiment.evaluation.metric,
        test=evaluation.test,
        clients=evaluation.clients,
        validation=evaluation.validation,
        views=evaluation.views,
        best=best,
        rounds=fed.round,
        bytes=took_part.bytes(),
        client_epochs=took_part.client_epochs,
        server_seconds=round(took_part.server_seconds, 3),
        seconds=round(seconds, 3),
        simulated_seconds=fed.engine.clock or None,
        failures=took_part.failures,
        failed=took_part.failed,
        missed=missed_clients(took_part, data, experiment.evaluation.class_counts),
        notes=took_part.notes,
        privacy=took_part.ledger.rows(experiment.privacy.delta),
        secret_noise=fed.secret_noise,
        synthesis=checks,
        norm_buffers=experiment.train.norm_buffers,
        data=DataSummary(name="+".join(data.source_names), clients=len(data.clients), split=data.split_fingerprint()),
        run_dir=str(path),
    )


def resume_run(
    path: Path, progress: bool | None = None, accept_code_change: bool = False, trust_plugins: bool = False
) -> RunResult:
    """Go on with a run from its folder. `trust_plugins`: the plug-ins that its config names may be executed."""
    tables = read_run_config(path, trust_plugins)
    check_same_code(path, plugin_files(tables.get("plugins") or ()), accept_code_change)  # before they are executed
    return run_experiment(make_experiment(tables), path, progress, accept_code_change)
