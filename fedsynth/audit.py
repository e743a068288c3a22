"""Puts the claims of a finished run to the test: one row for each release in its ledger, and attacks on what it gave.

An audit can refute a claim, never prove one: that nothing was found says that these attacks found nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from fedsynth.audit_members import (
    Attack,
    attack_images,
    attack_model,
    closest_record,
    members_and_others,
    synthetic_images,
)
from fedsynth.audit_worlds import Trial, chosen_trial, means_trials
from fedsynth.config import Experiment, make_experiment
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.methods.feddpms import FedDpmsConfig
from fedsynth.methods.latent_release import Calibration
from fedsynth.methods.protection import chosen_protection
from fedsynth.plugins import check_trusted
from fedsynth.privacy import Guarantee, Ledger, PureEvent, epsilon_bound
from fedsynth.privacy.audit import two_worlds
from fedsynth.report.reading import RunRecord, pick, read_run
from fedsynth.runner import load_data
from fedsynth.seeding import generator

NEVER_PROVES = "An audit can refute a claim, never prove one: where nothing was found, these tests found nothing."
NOTHING_CLAIMED = "nothing is claimed"
CONSTANT = "a constant: nothing to test"
UNKNOWN = "no worst case is known for this mechanism: write one with fedsynth.privacy.audit.two_worlds"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Audit:
    """What an audit found: rows by release, attacks, a screen of synthetic images, and what could not be done."""

    rows: list[dict[str, Any]]
    attacks: list[Attack]
    screen: dict[str, Any] | None
    skipped: list[str]

    @property
    def refuted(self) -> list[str]:
        """The releases whose claim does not hold."""
        return [row["release"] for row in self.rows if row["refuted"]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "rows": self.rows,
            "membership": [attack.row() for attack in self.attacks],
            "closest_record": self.screen,
            "skipped": self.skipped,
            "refuted": self.refuted,
            "note": NEVER_PROVES,
        }


def audit_run(
    folder: Path,
    runs: int = 1000,
    confidence: float = 0.95,
    say: Say = lambda text: None,
    trust_plugins: bool = False,
) -> Audit:
    """Audit a finished run by its folder. Like a resume, it executes the run's plug-ins only where they are trusted."""
    run = read_run(folder)
    if run.state != "finished":
        raise ConfigError(f'"{run.path}" is not finished ({run.state}): an audit needs its ledger and its model.')
    check_trusted(run.path, trust_plugins, run.config.get("plugins"))
    experiment = make_experiment(run.config)
    try:
        ledger = Ledger.from_dict(run.participation["ledger"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f'"{run.path}" has no ledger that can be read ({error}).') from None
    data, why = _data_of(run, experiment)
    rows = _Releases(experiment, ledger, data, run, runs, confidence, say).rows()
    attacks, screen, skipped = _attacks(run, experiment, data, why, confidence, say)
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
        self,
        experiment: Experiment,
        ledger: Ledger,
        data: FederatedData | None,
        run: RunRecord,
        runs: int,
        confidence: float,
        say: Say,
    ) -> None:
        self.experiment, self.ledger, self.data, self.run = experiment, ledger, data, run
        self.runs, self.confidence, self.say = runs, confidence, say
        self.delta = experiment.privacy.delta
        self.guarantees: dict[str, list[Guarantee]] = {}
        for task, fields in ledger.parcels:
            for name, number in fields:
                if number is not None:
                    self.guarantees.setdefault(f"{task}.{name}", []).append(ledger.guarantees[number])

    def rows(self) -> list[dict[str, Any]]:
        """In the order of the ledger; a release that is read in three ways has three."""
        worst: dict[tuple[str, str, str], dict[str, Any]] = {}
        for row in self.ledger.rows(self.delta):
            key = (row["release"], row["unit"], row["adjacency"])
            if row["kind"] == "release" and (row["epsilon"] or 0) >= (worst.get(key, row)["epsilon"] or 0):
                worst[key] = row
        return [audited for row in worst.values() for audited in self._audited(row)]

    def _audited(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        kept = ("release", "what", "evaluation", "times", "mechanism", "unit", "adjacency", "epsilon", "delta")
        base = {key: row[key] for key in (*kept, "proven", "covered", "not_covered")} | {"client": row["clients"][0]}
        if row["release"] == "train_augmented.means" and row["mechanism"] != "none":
            return [base | self._test(trial, row["what"]) for trial in self._means().values()]
        given = [g for g in self.guarantees.get(row["release"], []) if g.proven and g.scope == _scope(row)]
        if row["epsilon"] is None or not given:
            return [base | _untested(NOTHING_CLAIMED)]
        guarantee = max(given, key=lambda g: epsilon_bound(g.events, self.delta))
        if all(isinstance(event, PureEvent) and event.epsilon == 0 for event in guarantee.events):
            return [base | _untested(CONSTANT)]
        trial = chosen_trial(row["task"], guarantee.events, self._settings())
        return [base | (_untested(UNKNOWN) if trial is None else self._test(trial, row["what"]))]

    def _test(self, trial: Trial, what: str) -> dict[str, Any]:
        self.say(f"two worlds: {what} ({trial.how})")
        rng = generator(self.experiment.seed, "audit", trial.how)
        found = two_worlds(trial.draw, self.runs, self.delta, rng, self.confidence, trial.claim)
        return {
            "audit": trial.how,
            "claimed_once": trial.claim.get(self.delta),
            "lower_bound": found.epsilon,
            "confidence": found.confidence,
            "runs": found.runs,
            "refuted": found.refutes(trial.claim),
        }

    def _settings(self) -> dict[str, Any]:
        """What the trials need to know of the run."""
        cfg = self.experiment.method_config()
        protection = chosen_protection(cfg)
        settings: dict[str, Any] = {
            "delta": self.delta,
            "clip": self.experiment.privacy.clip,
            "counts_epsilon": getattr(cfg, "counts_epsilon", None),
            "protection": protection,
        }
        if isinstance(cfg, FedDpmsConfig):
            settings["latent"] = self._latent(cfg)
            settings["calibration"] = Calibration(cfg.epsilon, self.delta, cfg.clip, moments=cfg.spread is None)
        return settings

    def _latent(self, cfg: FedDpmsConfig) -> int:
        shape = pick(self.run.manifest, "shape") or [1]
        return cfg.latent or (32 if shape[0] == 1 else 128)

    def _means(self) -> dict[str, Trial]:
        """FedDPMS as published: by the readings of its σ, for the smallest class that a client's means are of."""
        cfg = self.experiment.method_config()
        assert isinstance(cfg, FedDpmsConfig)
        assert isinstance(cfg.quota, int)
        per_client = pick(self.run.manifest, "counts", "per_client") or {}
        wanted = cfg.classes if isinstance(cfg.classes, int) else 1
        sizes = [count for row in per_client.values() for count in sorted(row["train"])[-wanted:] if count > 0]
        return means_trials(self._latent(cfg), cfg.quota, cfg.sigma, max(1, min(sizes, default=1)), self.delta)


def _scope(row: dict[str, Any]) -> tuple[str, str]:
    return row["unit"], row["adjacency"]


def _untested(why: str) -> dict[str, Any]:
    return {
        "audit": why,
        "claimed_once": None,
        "lower_bound": None,
        "confidence": None,
        "runs": 0,
        "refuted": False,
    }


# -- attacks --------------------------------------------------------------------------------------------------------


def _attacks(
    run: RunRecord, experiment: Experiment, data: FederatedData | None, why: str, confidence: float, say: Say
) -> tuple[list[Attack], dict[str, Any] | None, list[str]]:
    """Membership inference on the final model and on synthetic images; what could not be attacked, and why."""
    if data is None:
        return [], None, [f"Membership inference: {why}."]
    members, others = members_and_others(data, generator(experiment.seed, "audit", "members"))
    if min(len(members[1]), len(others[1])) < 2:
        return [], None, ["Membership inference: the clients have no validation and test parts to compare with."]
    attacks, skipped, screen = [], list[str](), None
    weights = _weights(run.path)
    if weights is None:
        skipped.append("Membership inference on the model: the run has no whole global model.")
    else:
        say("membership inference on the final model")
        attacks += attack_model(weights, experiment.model_spec, data, members, others, confidence)
    images = synthetic_images(run.path, tuple(data.schema.shape))
    if len(images):
        say("membership inference on synthetic images")
        attacks.append(attack_images(images, members, others, confidence))
        screen = closest_record(images, members, others, confidence)
    else:
        skipped.append("Membership inference on synthetic images: the run kept none.")
    return attacks, screen, skipped


def _weights(folder: Path) -> dict[str, Tensor] | None:
    file = folder / "model.safetensors"
    return dict(load_file(file)) if file.is_file() else None
