"""Looks on while a run goes: validates, writes the metrics, keeps the best model, shows progress, stops early."""

import json
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedsynth.data.dataset import Dataset
from fedsynth.data.federated import FederatedData, RunData
from fedsynth.evaluation.alignment import alignment
from fedsynth.evaluation.fairness import score_classes
from fedsynth.evaluation.measures import all_values, measure
from fedsynth.evaluation.results import Best, MetricsRow, RoundTest, RoundValidation
from fedsynth.evaluation.scores import WORDS, Metric
from fedsynth.evaluation.views import Found, answers_pooled, asked_for, evaluate_clients, evaluators
from fedsynth.experiment.config import Experiment
from fedsynth.experiment.progress import Quiet
from fedsynth.experiment.synthesis import some_of
from fedsynth.federation import Federation, Outcome, State
from fedsynth.federation.store import write_atomically, write_json
from fedsynth.federation.timeline import COLUMNS
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.training import tally_answers
from fedsynth.learning.weights import Weights
from fedsynth.report.csv_files import write_rows
from fedsynth.report.plots import plot_samples

MOST_HELD_OUT = 1000  # examples, that gradients are compared on


class Recorder:
    """The watcher of a run that has a folder."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        test: Dataset | None,
        device: str,
        progress: Quiet,
        held_out: Callable[[], Dataset | None] = lambda: None,
    ) -> None:
        self.folder, self.experiment, self.test, self._held_out = folder, experiment, test, held_out
        self.device, self.progress = device, progress
        self.metric: Metric = experiment.evaluation.metric
        self.rows: list[MetricsRow] = []
        self.best = Best(round=0, score=-1.0)
        self.unimproved = 0
        self._metrics, self._timeline = folder / "metrics.jsonl", folder / "timeline.csv"

    def phase_started(self, name: str, rounds: int, done: int) -> None:
        """A loop of rounds begins, or goes on."""
        self.progress.phase(name, rounds, done)

    def round_done(self, fed: Federation, name: str, state: State) -> bool:
        """Evaluate the round's model on validation parts, write a line, keep the best; True to stop early."""
        took_part = fed.participation
        row = MetricsRow(
            round=fed.round,
            phase=name,
            seconds=round(fed.seconds, 3),
            bytes_up=took_part.bytes()["up"],
            bytes_down=took_part.bytes()["down"],
            client_epochs=took_part.client_epochs,
            failed=took_part.failed,
            simulated_seconds=fed.engine.clock or None,
        )
        if fed.measured:
            row = row.model_copy(update={"measured": fed.measured})
        if self._due(fed):
            row = row.model_copy(update=self._evaluate(fed, state))
        self.rows.append(row)
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.as_dict()) + "\n")
        self.follow(fed)
        score = row.validation.of(self.metric) if row.validation else None
        named = "validation" if self.metric == "accuracy" else f"validation {WORDS[self.metric]}"
        self.progress.advance("" if score is None else f"{named} {score:.1%}")
        whole = None if vars(state).get("personal") else vars(state).get("model")
        return self._improved_or_stop(score, fed.round, whole)

    def step_done(self, fed: Federation, name: str) -> None:
        """Show that a step of a phase is done; rounds alone are evaluated and have metrics."""
        self.follow(fed)
        self.progress.advance("")

    def show(self, fed: Federation, name: str, images: Tensor, labels: Tensor) -> None:
        """Keep pictures: one PNG to look at, and the numbers behind it."""
        folder = self.folder / "samples"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}-round-{fed.round:04d}"
        write_atomically(path.with_suffix(".safetensors"), save({"images": images.contiguous(), "labels": labels}))
        plot_samples(path.with_suffix(".png"), images.numpy(), labels.numpy(), fed.schema, f"{name}, round {fed.round}")

    def alignment(
        self, fed: Federation, spec: ModelSpec, model: Weights, samples: tuple[Tensor, Tensor]
    ) -> float | None:
        """The cosine between the gradients on samples and on held-out data, in rounds that are evaluated."""
        if not self._due(fed) or self.held_out is None:
            return None
        return alignment(spec, fed.schema, model, samples, self.held_out)

    @cached_property
    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Some examples that nobody trains on, where the run may look at any."""
        found = self._held_out()
        return some_of(found, MOST_HELD_OUT) if found is not None and len(found) else None

    def _due(self, fed: Federation) -> bool:
        every = self.experiment.evaluation.every
        return bool(every) and fed.round % every == 0

    def follow(self, fed: Federation) -> None:
        """Write who took part since the last time, and what the method recorded."""
        with self._timeline.open("a", newline="", encoding="utf-8") as file:
            write_rows(file, [] if file.tell() else [COLUMNS])
            write_rows(file, fed.participation.timeline.take())
        if fed.participation.records:
            write_json(self.folder / "records.json", fed.participation.records)

    def snapshot(self) -> dict[str, Any]:
        """What a resumed run needs: where the metrics end, and the best so far."""
        ends = {
            f"{path.stem}_bytes": path.stat().st_size if path.exists() else 0
            for path in (self._metrics, self._timeline)
        }
        return {**ends, "best": self.best.as_dict(), "unimproved": self.unimproved}

    def restore(self, values: dict[str, Any]) -> None:
        """Drop what was written after the checkpoint; everything, when there is none yet."""
        self.best, self.unimproved = Best(**values.get("best", self.best.as_dict())), values.get("unimproved", 0)
        for path in (self._metrics, self._timeline):
            with path.open("a+b") as file:
                file.truncate(values.get(f"{path.stem}_bytes", 0))
        self.rows = read_metrics(self.folder)

    def _evaluate(self, fed: Federation, state: State) -> dict[str, RoundValidation | RoundTest | None]:
        values = vars(state)
        model, personal = values.get("model"), values.get("personal", "")
        if model is None and not personal:
            return {}
        outcome = Outcome(model, personal, no_global="evaluated per client" if personal else "")
        spec, config = self.experiment.model_spec, self.experiment.evaluation
        to, measures = evaluators(fed, config.clients), asked_for(self.metric)
        by_view = evaluate_clients(fed, outcome, spec, ["validation"], to, measures)
        found = by_view.get("personal/validation" if personal else "global/validation")
        validation = None if found is None else _over_all(found, self.metric)
        if not config.test_curve or self.test is None or model is None or personal:
            return {"validation": validation}
        return {"validation": validation, "test": self._on_test(fed, model)}

    def _on_test(self, fed: Federation, model: Weights) -> RoundTest:
        """The round's model on the global test set: accuracy, and the chosen metric."""
        assert self.test is not None
        scores, y = answers_pooled(model, self.experiment.model_spec, fed.schema, self.test, self.device)
        classes = fed.schema.classes
        tally = tally_answers(scores, y, classes)
        found = score_classes(tally)
        row = RoundTest(accuracy=tally.accuracy, loss=found.loss, class_variance=found.class_variance)
        if self.metric == "accuracy":
            return row
        values = all_values(tally, measure(scores, y, classes, asked_for(self.metric)))
        return row.model_copy(update={"score": values[self.metric]})

    def _improved_or_stop(self, score: float | None, round: int, model: Weights | None) -> bool:
        if score is None or math.isnan(score):
            return False
        if score > self.best.score:
            self.best, self.unimproved = Best(round=round, score=score), 0
            if model is not None:
                save_model(self.folder / "model-best.safetensors", model, self.experiment)
            return False
        self.unimproved += 1
        patience = self.experiment.train.patience
        return patience is not None and self.unimproved >= patience


def _over_all(found: Found, metric: Metric) -> RoundValidation | None:
    """The clients' validation parts together; None where nobody has one."""
    scores, tallies = found.scores(), found.tallies.values()
    if not scores.n or scores.pooled is None:
        return None
    loss = sum(tally.loss for tally in tallies) / sum(int(tally.total.sum()) for tally in tallies)
    of = scores.of(metric)
    spread = {"n": of.n, "mean": of.mean, "variance": of.variance, "worst": of.worst}
    chosen = {} if metric == "accuracy" else {"score": of.pooled}
    return RoundValidation(accuracy=scores.pooled, loss=loss, **spread, **chosen)


def read_metrics(folder: Path) -> list[MetricsRow]:
    """The lines of a run's metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [MetricsRow.model_validate_json(line) for line in lines]


def save_model(path: Path, weights: Weights, experiment: Experiment) -> None:
    """Write weights as a safetensors file that says which model they belong to."""
    about = {"method": experiment.method_name, "model": experiment.model_spec.model_dump(mode="json")}
    # One entry: safetensors writes several in any order, and equal models must be equal files.
    metadata = {"fedsynth": json.dumps(about)}
    write_atomically(path, save({name: w.contiguous() for name, w in weights.items()}, metadata=metadata))


def held_out(experiment: Experiment, data: RunData) -> Dataset | None:
    """What the curves of a run may look at: the clients' validation parts together, in a simulation alone, or the
    global test set where the experiment says so.
    """
    if isinstance(data, FederatedData) and experiment.evaluation.clients:
        part = data.pooled("validation")
        if len(part):
            return part
    return data.test if experiment.evaluation.test_curve else None
