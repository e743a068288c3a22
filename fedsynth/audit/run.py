"""Puts the claims of a finished run to the test: one row for each release in its ledger, and attacks on what it gave.

An audit can refute a claim, never prove one: that nothing was found says that these attacks found nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

import fedsynth.audit.statistics_trials
import fedsynth.audit.sum_trials
import fedsynth.audit.training_trials  # noqa: F401  (they declare the trials of the package's own tasks)
from fedsynth.audit.members import (
    Attack,
    ClosestRecord,
    attack_images,
    attack_model,
    closest_record,
    members_and_others,
    synthetic_images,
)
from fedsynth.audit.trials import run_trial
from fedsynth.data.dataset import Schema
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.files import check_trusted
from fedsynth.experiment.folder import code_fingerprint
from fedsynth.experiment.runner import load_data
from fedsynth.federation.tasks import TaskError, find_task
from fedsynth.federation.trials import Trial
from fedsynth.privacy import Guarantee, Ledger, LedgerRow, epsilon_bound
from fedsynth.report.reading import RunRecord, read_run
from fedsynth.seeding import generator

NEVER_PROVES = "An audit can refute a claim, never prove one: where nothing was found, these tests found nothing."
NOTHING_CLAIMED = "nothing is claimed"
CONSTANT = "a constant: nothing to test"
NO_TRIAL = "not tested: the task declares no trial of this claim (docs/audit.md tells how to)"
OTHER_CODE = "The run was made by other code than what is installed here, and what is installed is what was tested."

Say = Callable[[str], None]


@dataclass(frozen=True)
class AuditRow:
    """A row of the ledger, and what testing its claim gave: a lower bound of ε against the claimed one, or why not."""

    row: LedgerRow
    verdict: str
    audit: str
    releases: int = 0
    claimed: float | None = None
    lower_bound: float | None = None
    confidence: float | None = None
    runs: int = 0
    refuted: bool = False

    def as_dict(self) -> dict[str, object]:
        """JSON-ready: the release, what is proven about it (of the client with the largest ε), and the verdict."""
        kept = self.row.model_dump(exclude={"kind", "field", "claimed", "clients"})
        return {**kept, "client": self.row.clients[0], **{k: v for k, v in vars(self).items() if k != "row"}}


@dataclass(frozen=True)
class Audit:
    """What an audit found: rows by release, attacks, a screen of synthetic images, and what could not be done."""

    rows: list[AuditRow]
    attacks: list[Attack]
    screen: ClosestRecord | None
    skipped: list[str]

    @property
    def refuted(self) -> list[str]:
        """The releases whose claim does not hold."""
        return [row.row.release for row in self.rows if row.refuted]

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "rows": [row.as_dict() for row in self.rows],
            "membership": [attack.row() for attack in self.attacks],
            "closest_record": self.screen,
            "skipped": self.skipped,
            "refuted": self.refuted,
            "note": NEVER_PROVES,
        }


def audit_run(
    folder: Path, runs: int = 1000, confidence: float = 0.95, say: Say = lambda text: None, trust_plugins: bool = False
) -> Audit:
    """Audit a finished run by its folder. Like a resume, it executes the run's plug-ins only where they are trusted."""
    run = read_run(folder)
    if run.state != "finished":
        raise ConfigError(f'"{run.path}" is not finished ({run.state}): an audit needs its ledger and its model.')
    check_trusted(run.path, trust_plugins, run.config.get("plugins"))
    experiment = make_experiment(run.config)
    try:
        ledger = Ledger.from_dict(run.participation.ledger)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f'"{run.path}" has no ledger that can be read ({error}).') from None
    data, why = _data_of(run, experiment)
    shape, classes = run.manifest.shape, run.manifest.classes
    if not shape or not classes:
        raise ConfigError(f'"{run.path}" has no manifest that can be read: it must tell the shape and the classes.')
    schema = Schema(tuple(shape), len(classes))
    rows = _Releases(experiment, ledger, schema, runs, confidence, say).rows()
    attacks, screen, skipped = _attacks(run, experiment, data, why, confidence, say)
    if run.versions.get("code") != code_fingerprint(experiment.plugins):
        skipped = [OTHER_CODE, *skipped]
    return Audit(rows, attacks, screen, skipped)


def _data_of(run: RunRecord, experiment: Experiment) -> tuple[FederatedData | None, str]:
    """The run's data, or why it is not here."""
    if experiment.engine.name == "flower":
        return None, "the data is at the sites of a network"
    data = load_data(experiment)
    if run.split != data.split_fingerprint():
        return None, "the data is not the one that the run was made with"
    return data, ""


# -- releases -------------------------------------------------------------------------------------------------------


class _Releases:
    """The rows of the ledger, one for each release and kind of proof: that of the client with the largest ε."""

    def __init__(
        self, experiment: Experiment, ledger: Ledger, schema: Schema, runs: int, confidence: float, say: Say
    ) -> None:
        self.cfg, self.ledger, self.schema = experiment.method_config(), ledger, schema
        self.runs, self.confidence, self.say = runs, confidence, say
        self.delta, self.seed = experiment.privacy.delta, experiment.seed
        self.guarantees: dict[str, list[Guarantee]] = {}
        for task, fields in ledger.parcels:
            for name, number in fields:
                if number is not None:
                    self.guarantees.setdefault(f"{task}.{name}", []).append(ledger.guarantees[number])

    def rows(self) -> list[AuditRow]:
        """In the order of the ledger; a release that is read in three ways has three."""
        worst: dict[tuple[str, str, str], LedgerRow] = {}
        for row in self.ledger.rows(self.delta):
            key = (row.release, row.unit, row.adjacency)
            if row.kind == "release" and row.cost >= worst.get(key, row).cost:
                worst[key] = row
        return [tested for row in worst.values() for tested in self._test_row(row)]

    def _test_row(self, row: LedgerRow) -> list[AuditRow]:
        given = self.guarantees.get(row.release, [])
        proven = [g for g in given if g.proven]
        if not proven:
            trials = self._trials(row.task, given[0]) if given and given[0].claimed else []
            return [self._test(trial, row) for trial in trials] or [AuditRow(row, NOTHING_CLAIMED, NOTHING_CLAIMED)]
        guarantee = max(proven, key=lambda g: epsilon_bound(g.events, self.delta))
        if guarantee.free:
            return [AuditRow(row, CONSTANT, CONSTANT)]
        trials = self._trials(row.task, guarantee)
        return [self._test(trial, row) for trial in trials] or [AuditRow(row, "not tested", NO_TRIAL)]

    def _trials(self, task: str, guarantee: Guarantee) -> Sequence[Trial]:
        """What the task that ran declares about itself; nothing where it is not installed here."""
        try:
            make = find_task(task).make_trials
        except TaskError:
            return []
        return [] if make is None else make(guarantee, self.cfg, self.schema)

    def _test(self, trial: Trial, row: LedgerRow) -> AuditRow:
        self.say(f"neighbouring data sets: {row.what} ({trial.how})")
        rng = generator(self.seed, "audit", trial.how)
        found = run_trial(trial, self.runs, self.delta, self.confidence, rng)
        return AuditRow(
            row,
            verdict="refuted" if found.refuted else "not refuted",
            audit=trial.how,
            releases=trial.rounds,
            claimed=found.claim.get(self.delta),
            lower_bound=found.bound.epsilon,
            confidence=found.bound.confidence,
            runs=self.runs,
            refuted=found.refuted,
        )


# -- attacks --------------------------------------------------------------------------------------------------------


def _attacks(
    run: RunRecord, experiment: Experiment, data: FederatedData | None, why: str, confidence: float, say: Say
) -> tuple[list[Attack], ClosestRecord | None, list[str]]:
    """Membership inference on the final model and on synthetic images; what could not be attacked, and why."""
    if data is None:
        return [], None, [f"Membership inference: {why}."]
    members, others = members_and_others(data, generator(experiment.seed, "audit", "members"))
    if min(len(members[1]), len(others[1])) < 2:
        return [], None, ["Membership inference: the clients have no validation and test parts to compare with."]
    attacks, skipped, screen = [], list[str](), None
    model = run.path / "model.safetensors"
    if model.is_file():
        say("membership inference on the final model")
        attacks += attack_model(load_file(model), experiment.model_spec, data, members, others, confidence)
    else:
        skipped.append("Membership inference on the model: the run has no whole global model.")
    images = synthetic_images(run.path, tuple(data.schema.shape))
    if len(images):
        say("membership inference on synthetic images")
        attacks.append(attack_images(images, members, others, confidence))
        screen = closest_record(images, members, others, confidence)
    else:
        skipped.append("Membership inference on synthetic images: the run kept none.")
    return attacks, screen, skipped
