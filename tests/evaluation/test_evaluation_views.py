"""The three views of a result, and that nothing looks at a test part before the end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsynth
from fedsynth.components.local_training import OWN_PART
from fedsynth.data.config import DataConfig
from fedsynth.data.dataset import ClientData, Dataset
from fedsynth.data.federated import FederatedData, load_federated
from fedsynth.engines.local import LocalEngine
from fedsynth.errors import ConfigError
from fedsynth.evaluation.fairness import score_answers, score_client
from fedsynth.evaluation.measures import ASKED, measure
from fedsynth.evaluation.results import Moved
from fedsynth.evaluation.scores import Evaluation
from fedsynth.evaluation.views import client_tallies, evaluators, final_evaluation
from fedsynth.experiment.config import Experiment, make_experiment
from fedsynth.experiment.progress import Quiet
from fedsynth.experiment.recorder import Recorder
from fedsynth.federation import Federation, Outcome
from fedsynth.federation.host import TaskHost
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.federation.store import StateStore
from fedsynth.learning.answers import class_scores
from fedsynth.learning.models import instantiate
from fedsynth.learning.training import tally_answers

BASELINES = [
    "ensemble",
    "fedavg",
    "fedbn",
    "fedmix",
    "fedopt",
    "finetune",
    "local",
    "moon",
    "qffl",
    "scaffold",
    "centralised",
]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    config = DataConfig(name="digits", limit=260, test=0.2, validation=0.2)
    return load_federated(config, {"name": "dirichlet", "num_clients": 4, "alpha": 0.5, "min_size": 12}, seed=2)


@dataclasses.dataclass
class Run:
    """A finished method with everything needed to evaluate it."""

    experiment: Experiment
    fed: Federation
    outcome: Outcome
    recorder: Recorder
    store: StateStore

    def evaluate(self, data: FederatedData) -> Evaluation:
        spec = self.experiment.model_spec
        return final_evaluation(self.fed, self.outcome, spec, data.test, {}, "cpu", clients=1000)

    def curve(self) -> list[dict[str, Any]]:
        lines = (self.recorder.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line).get("validation", {}) for line in lines]


def run(method: str, data: Any, folder: Path, test: Any = None, **tables: Any) -> Run:
    train = {"rounds": 3, "local_epochs": 2, "batch_size": 16, **tables.pop("train", {})}
    model = {"name": "zda_cnn", "channels": [4, 6]}
    experiment = make_experiment({"method": {"name": method}, "train": train, "model": model, **tables})
    folder.mkdir()
    store = StateStore(folder / "state")
    recorder = Recorder(folder, experiment, test, "cpu", Quiet())
    engine = LocalEngine(TaskHost(data, store))
    fed = Federation(engine, data.clients, data.schema, watcher=recorder, pooled=True)
    outcome = find_method(method).program(fed, experiment.method_config())
    return Run(experiment, fed, outcome, recorder, store)


# -- the three views ------------------------------------------------------------------------------------------------


def accuracy_by_hand(run: Run, weights: dict[str, torch.Tensor], part: Dataset) -> float:
    shape, classes = part.x.shape[1:], 10
    net = instantiate(run.experiment.model_spec, shape, classes, weights).eval()
    with torch.no_grad():
        x = torch.from_numpy(part.x.astype(np.float32))
        return float((net(x).argmax(1).numpy() == part.y).mean())


def test_global_model_on_the_pooled_test_and_at_each_client(data: FederatedData, tmp_path: Path) -> None:
    finished = run("fedavg", data, tmp_path / "run")
    result = finished.evaluate(data)
    weights = finished.outcome.model
    assert weights is not None
    assert result.test.accuracy == pytest.approx(accuracy_by_hand(finished, weights, data.test))
    assert result.test.examples == len(data.test)
    accuracies = []
    for client in data.clients:
        part = data.client(client).test
        row = result.per_client["global/test"][client]
        accuracies.append(accuracy_by_hand(finished, weights, part))
        assert row.accuracy == pytest.approx(accuracies[-1])
        by_class = [accuracy_by_hand(finished, weights, part.subset(part.y == label)) for label in np.unique(part.y)]
        assert row.balanced_accuracy == pytest.approx(np.mean(by_class))
        assert row.examples == len(part)
    assert set(result.views) == {"global/validation", "global/test"}
    assert result.clients.view == "global"
    assert result.clients.mean == pytest.approx(np.mean(accuracies))
    assert result.clients.variance == pytest.approx(np.var(100 * np.array(accuracies)))


def test_fine_tuned_models_are_evaluated_beside_the_global_one(data: FederatedData, tmp_path: Path) -> None:
    result = run("finetune", data, tmp_path / "run").evaluate(data)
    assert set(result.views) == {f"{view}/{part}" for view in ("global", "personal") for part in ("validation", "test")}
    assert result.clients.view == result.validation.view == "personal"
    assert result.test.accuracy is not None
    assert result.clients.mean == result.views["personal/test"].mean


def test_a_personal_model_is_the_shared_weights_with_the_clients_own(data: FederatedData, tmp_path: Path) -> None:
    finished = run("fedbn", data, tmp_path / "run")
    result = finished.evaluate(data)
    assert finished.outcome.model is not None
    for client in data.clients:
        kept = finished.store.read(client, finished.fed._versions[client])[OWN_PART]
        expected = accuracy_by_hand(finished, finished.outcome.model | kept, data.client(client).test)
        assert result.per_client["personal/test"][client].accuracy == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "train", "reason"),
    [
        ("local", {}, "every client trains local-only"),
        ("fedbn", {}, "normalisation layers stay at the clients"),
        ("fedavg", {"norm_buffers": "local"}, "BatchNorm's running statistics stay at the clients"),
        ("finetune", {"norm_buffers": "local"}, "BatchNorm's running statistics stay at the clients"),
    ],
)
def test_without_a_whole_global_model_there_is_no_global_accuracy_and_a_reason(
    method: str, train: dict[str, Any], reason: str, data: FederatedData, tmp_path: Path
) -> None:
    result = run(method, data, tmp_path / "run", train=train).evaluate(data)
    assert result.test.as_dict() == {"accuracy": None, "class_variance": None, "reason": reason}
    assert set(result.views) == {"personal/validation", "personal/test"}
    assert result.clients.view == "personal"
    assert result.clients.n == len(data.clients)


def test_training_alone_gives_every_client_its_own_model(data: FederatedData, tmp_path: Path) -> None:
    finished = run("local", data, tmp_path / "run")
    result = finished.evaluate(data)
    for client in data.clients:
        own = finished.store.read(client, finished.fed._versions[client])["alone"]
        expected = accuracy_by_hand(finished, own, data.client(client).test)
        assert result.per_client["personal/test"][client].accuracy == pytest.approx(expected)


def test_class_variance_on_the_global_test(data: FederatedData, tmp_path: Path) -> None:
    finished = run("fedavg", data, tmp_path / "run")
    view = finished.evaluate(data).test
    assert finished.outcome.model is not None
    rows = [np.flatnonzero(data.test.y == label) for label in range(10)]
    by_hand = [accuracy_by_hand(finished, finished.outcome.model, data.test.subset(row)) for row in rows]
    assert view.class_accuracy == pytest.approx(by_hand)
    assert view.class_variance == pytest.approx(np.var(100 * np.array(by_hand)))
    assert view.worst_class == min(by_hand)


def test_evaluators_are_all_or_the_same_sample(data: FederatedData, tmp_path: Path) -> None:
    fed = run("fedavg", data, tmp_path / "run", train={"rounds": 0}).fed
    assert evaluators(fed, 4) == list(fed.clients)
    few = evaluators(fed, 2)
    fed.round = 7
    assert evaluators(fed, 2) == few
    assert len(few) == 2


# -- the test parts stay closed -------------------------------------------------------------------------------------


class Sealed:
    """A test part that nobody may touch."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("the test part was touched during training")

    def __len__(self) -> int:
        raise AssertionError("the test part was touched during training")


@dataclasses.dataclass(frozen=True)
class Altered(FederatedData):
    """The same federation with other test parts at the clients."""

    kind: str = "sealed"

    def client(self, client: str) -> ClientData:
        whole = super().client(client)
        if self.kind == "sealed":
            return ClientData(whole.train, whole.validation, Sealed())  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        garbage = Dataset(rng.random(whole.test.x.shape, dtype=np.float32), rng.integers(10, size=len(whole.test)))
        return ClientData(whole.train, whole.validation, garbage)


def altered(data: FederatedData, kind: str) -> Altered:
    return Altered(**{f.name: getattr(data, f.name) for f in dataclasses.fields(data)}, kind=kind)


@pytest.mark.parametrize("method", BASELINES)
def test_training_and_selection_never_touch_a_test_part(method: str, data: FederatedData, tmp_path: Path) -> None:
    """Neither the clients' nor the global one, early stopping included."""
    train = {"patience": 2}
    plain = run(method, data, tmp_path / "plain", test=Sealed(), train=train)
    sealed = run(method, altered(data, "sealed"), tmp_path / "sealed", test=Sealed(), train=train)
    assert plain.curve() == sealed.curve()
    assert plain.recorder.best == sealed.recorder.best
    if plain.outcome.model is not None:
        assert sealed.outcome.model is not None
        assert all(torch.equal(entry, sealed.outcome.model[n]) for n, entry in plain.outcome.model.items())


@pytest.mark.parametrize("method", ["fedavg", "finetune", "fedbn"])
def test_garbage_test_parts_change_the_test_numbers_alone(method: str, data: FederatedData, tmp_path: Path) -> None:
    plain = run(method, data, tmp_path / "plain").evaluate(data)
    garbage = run(method, altered(data, "garbage"), tmp_path / "garbage").evaluate(data)
    assert plain.validation == garbage.validation
    assert plain.test == garbage.test  # the global test set was left as it is
    assert plain.clients != garbage.clients


def test_a_sealed_part_would_be_noticed(data: FederatedData, tmp_path: Path) -> None:
    finished = run("fedavg", altered(data, "sealed"), tmp_path / "run", train={"rounds": 1})
    with pytest.raises(Exception, match="touched during training"):
        client_tallies(finished.fed, finished.outcome, finished.experiment.model_spec, ["test"])


def test_test_curves_are_drawn_only_when_asked_for(data: FederatedData, tmp_path: Path) -> None:
    quiet = run("fedavg", data, tmp_path / "quiet", test=data.test)
    asked = run("fedavg", data, tmp_path / "asked", test=data.test, evaluation={"test_curve": True})
    assert all(row.test is None for row in quiet.recorder.rows)
    assert all(row.test is not None for row in asked.recorder.rows)
    assert asked.recorder.rows[-1].test.accuracy == asked.evaluate(data).test.accuracy
    assert quiet.curve() == asked.curve()


@pytest.mark.parametrize("off", ["every", "clients"])
def test_patience_without_validation_is_refused(off: str) -> None:
    with pytest.raises(ConfigError, match=f"train.patience stops by validation.*evaluation.{off} = 0"):
        make_experiment({"train": {"patience": 2}, "evaluation": {off: 0}})


@pytest.mark.parametrize("method", ["fedavg", "finetune", "local"])
def test_a_run_that_asks_no_client_for_scores_ends_with_a_report(method: str, tmp_path: Path) -> None:
    result = fedsynth.run(
        method,
        data={"name": "digits", "limit": 200},
        partition={"name": "iid", "num_clients": 2},
        train={"rounds": 1},
        engine={"workers": 1},
        evaluation={"clients": 0, "final_clients": 0},
        runs=str(tmp_path),
    )
    assert result.summary.bytes.evaluation == Moved(up=0, down=0)
    assert result.summary.clients.n == 0
    assert (result.path / "report.html").is_file()


def test_these_methods_exist() -> None:
    assert set(BASELINES) <= {method.name for method in all_methods()}


# -- the metric that decides ----------------------------------------------------------------------------------------


def test_validation_best_model_and_patience_go_by_the_chosen_metric(data: FederatedData, tmp_path: Path) -> None:
    metrics = ["accuracy", "balanced_accuracy", "f1", "auroc", "auprc"]
    runs = {
        name: run("fedavg", data, tmp_path / name, test=data.test, evaluation={"metric": name, "test_curve": True})
        for name in metrics
    }
    for name, finished in runs.items():
        result = finished.evaluate(data)
        last = finished.recorder.rows[-1]
        assert last.validation is not None
        assert last.test is not None
        over_all = result.validation.of(name)
        assert last.validation.of(name) == over_all.pooled
        assert (last.validation.worst, last.validation.n) == (over_all.worst, over_all.n)
        assert last.test.of(name) == result.test.of(name)
        found = [row.validation.of(name) for row in finished.recorder.rows if row.validation is not None]
        assert finished.recorder.best.score == max(found)
        assert found.index(max(found)) + 1 == finished.recorder.best.round
    curves = {name: [row.validation.of(name) for row in of.recorder.rows] for name, of in runs.items()}
    assert len({tuple(curve) for curve in curves.values()}) == len(metrics)


def test_rounds_ask_for_the_chosen_metric_alone(data: FederatedData, tmp_path: Path) -> None:
    asked = {}
    for metric in ("balanced_accuracy", "f1", "auroc"):
        fed = run("fedavg", data, tmp_path / metric, evaluation={"metric": metric}).fed
        rows = fed.participation.ledger.rows(1e-5)
        asked[metric] = {row.field: row.times for row in rows if row.task == "views.score"}
    assert asked == {
        "balanced_accuracy": {"scores": 3},  # the tally has it
        "f1": {"scores": 3, "measures": 3},
        "auroc": {"scores": 3, "measures": 3},
    }


def test_measures_of_a_client_are_those_of_its_own_answers(data: FederatedData, tmp_path: Path) -> None:
    finished = run("fedavg", data, tmp_path / "run")
    result = finished.evaluate(data)
    assert finished.outcome.model is not None
    net = instantiate(finished.experiment.model_spec, data.schema.shape, 10, finished.outcome.model)
    for client in data.clients:
        x, y = data.client(client).test.tensors()
        scores = class_scores(net, x, 10)
        row = result.per_client["global/test"][client]
        assert row == score_client(tally_answers(scores, y, 10), measure(scores, y, 10, ASKED))
    whole = score_answers(class_scores(net, data.test.tensors()[0], 10), data.test.tensors()[1])
    assert result.test.measures == pytest.approx(whole.measures)
    assert result.test.confusion == whole.confusion
