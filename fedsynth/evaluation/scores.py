"""What is measured of a model, as types: names and words of the measures, and the scores of the views of a result."""

from typing import Any, Literal

from pydantic import BaseModel

View = Literal["global", "personal"]
Metric = Literal["accuracy", "balanced_accuracy", "f1", "auroc", "auprc"]
"""What may be selected by: more is better."""
AskedMeasure = Literal["f1", "auroc", "auprc", "ece", "brier"]
MeasureName = Literal["accuracy", "balanced_accuracy", "f1", "auroc", "auprc", "ece", "brier"]
WORDS: dict[MeasureName, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "macro F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "ece": "calibration error (ECE)",
    "brier": "Brier score",
}
LESS: tuple[MeasureName, ...] = ("ece", "brier")
"""Measures of which less is better."""


class Result(BaseModel, frozen=True):
    """Something that was found out; it does not change any more."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: the keys that were given."""
        return self.model_dump(exclude_unset=True)


class ReliabilityBin(Result):
    """The examples whose answers a model was about equally sure of, and how often it was right."""

    examples: int
    confidence: float
    accuracy: float


class GlobalScores(Result):
    """The global model on the global test set; without either, `accuracy` is None and `reason` says why.

    `measures` are all beside accuracy; `confusion` has a row for each true class and a column for each answer.
    """

    accuracy: float | None
    loss: float | None = None
    class_variance: float | None = None
    worst_class: float | None = None
    class_accuracy: list[float | None] = []
    examples: int = 0
    measures: dict[MeasureName, float | None] = {}
    specificity: list[float | None] = []
    confusion: list[list[int]] = []
    reliability: list[ReliabilityBin] = []
    sources: "dict[str, GlobalScores]" = {}
    reason: str = ""

    def of(self, measure: MeasureName) -> float | None:
        """The value of a measure; None where it is not known."""
        return self.accuracy if measure == "accuracy" else self.measures.get(measure)


class MeasureScores(Result):
    """One measure over the clients on whose examples it is defined; `pooled`: of all their examples together."""

    n: int = 0
    mean: float | None = None
    variance: float | None = None
    worst: float | None = None
    worst_client: str = ""
    pooled: float | None = None


class ClientScores(Result):
    """Accuracy over the clients that have examples of their own to be evaluated on; only `n` where there are none.

    `measures` are all beside accuracy; `sensitivity` and `specificity` are by class, of all examples together.
    """

    view: View = "global"
    n: int = 0
    mean: float | None = None
    variance: float | None = None
    worst: float | None = None
    worst_client: str = ""
    best: float | None = None
    worst_tenth: float | None = None
    best_tenth: float | None = None
    deciles: list[float] = []
    pooled: float | None = None
    measures: dict[MeasureName, MeasureScores] = {}
    sensitivity: list[float | None] = []
    specificity: list[float | None] = []

    def of(self, measure: MeasureName) -> MeasureScores:
        """A measure over the clients; without numbers where it is not known."""
        if measure == "accuracy":
            return MeasureScores(**{name: getattr(self, name) for name in MeasureScores.model_fields})
        return self.measures.get(measure, MeasureScores())


class ClientScore(Result):
    """One client's model on one of its own parts; `sensitivity` and `specificity` are by class."""

    accuracy: float
    balanced_accuracy: float
    examples: int
    f1: float | None = None
    auroc: float | None = None
    auprc: float | None = None
    ece: float | None = None
    brier: float | None = None
    sensitivity: list[float | None] = []
    specificity: list[float | None] = []


class Evaluation(Result):
    """The final evaluation. `views` and `per_client` are by view and part: "personal/test"."""

    test: GlobalScores
    clients: ClientScores
    validation: ClientScores
    views: dict[str, ClientScores] = {}
    per_client: dict[str, dict[str, ClientScore]] = {}
