"""What runs and studies leave, as types: one schema for `--json`, the files, the report, comparisons and advice.

The fields are the keys of the files. A key that was not given is not written; a field with a default may be missing, as
it is in files of earlier versions, and a key that is not known here is left aside.
"""

from typing import Any, Literal

from fedsynth.evaluation.scores import ClientScores, GlobalScores, MeasureScores, Metric, Result
from fedsynth.privacy.rows import LedgerRow

Mark = Literal["good", "look", "failed", "unknown"]

# -- a run ----------------------------------------------------------------------------------------------------------


class RoundValidation(Result):
    """The model of a round on the clients' validation parts.

    Where another metric than accuracy was chosen, `score` is its value over all clients (None where it is not defined),
    and `n`, `mean`, `variance` and `worst` are its, too.
    """

    accuracy: float
    score: float | None = None
    loss: float | None = None
    n: int = 0
    mean: float | None = None
    variance: float | None = None
    worst: float | None = None

    def of(self, metric: Metric) -> float | None:
        """The value of the metric that was chosen."""
        return self.accuracy if metric == "accuracy" else self.score


class RoundTest(Result):
    """The model of a round on the global test set, where that was wanted; `score` as in `RoundValidation`."""

    accuracy: float
    score: float | None = None
    loss: float | None = None
    class_variance: float | None = None

    def of(self, metric: Metric) -> float | None:
        """The value of the metric that was chosen."""
        return self.accuracy if metric == "accuracy" else self.score


class MetricsRow(Result):
    """A line of metrics.jsonl: where a run stood after a round."""

    round: int
    phase: str = ""
    seconds: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    client_epochs: float = 0.0
    failed: int = 0
    simulated_seconds: float | None = None
    validation: RoundValidation | None = None
    test: RoundTest | None = None
    measured: dict[str, float] = {}

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: what was measured."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class Best(Result):
    """The best round by the chosen metric on validation parts; round 0 and a score of -1 where none was evaluated."""

    round: int
    score: float


class Moved(Result):
    """Bytes up and down."""

    up: int
    down: int


class Traffic(Result):
    """Bytes of the method itself, those of its evaluation, and all of them by task."""

    up: int
    down: int
    evaluation: Moved = Moved(up=0, down=0)
    by_task: dict[str, Moved] = {}


class FailureRow(Result):
    """A request that was not answered."""

    client: str
    kind: str
    message: str
    task: str
    round: int


class MissedClient(Result):
    """A client that did not answer in some rounds, and its share of each class; None where that is not known."""

    client: str
    rounds: list[int]
    classes: dict[str, float] | None


class DataSummary(Result):
    """The data of a run: its name, how many clients, and the hash of the split."""

    name: str
    clients: int
    split: str


class SynthesisCheck(Result):
    """One check of the synthetic samples that a run has shown: its mark and what it rests on, in words."""

    check: str
    mark: Mark
    words: str
    value: float | None = None


class RunSummary(Result):
    """The result of a run: what `--json` prints and summary.json holds.

    `metric` is the one that was chosen: best round, patience and comparisons go by it. `problem` says why there is no
    usable model, and is empty where there is one.

    A comparison adds the label of the run's row, of which row (`base`) it is a control, where it is one, and every
    client's value of the metric on its own test part.
    """

    method: str
    seed: int
    metric: Metric = "accuracy"
    problem: str = ""
    test: GlobalScores
    clients: ClientScores
    validation: ClientScores
    views: dict[str, ClientScores] = {}
    best: Best
    rounds: int
    bytes: Traffic
    client_epochs: float
    server_seconds: float = 0.0
    seconds: float
    simulated_seconds: float | None = None
    failures: list[FailureRow] = []
    failed: int = 0
    missed: list[MissedClient] = []
    notes: list[str] = []
    privacy: list[LedgerRow]
    secret_noise: bool = False
    norm_buffers: str = "average"
    synthesis: list[SynthesisCheck] = []
    data: DataSummary
    run_dir: str = ""
    label: str = ""
    base: str = ""
    control: str = ""
    per_client: dict[str, float] = {}

    @property
    def row(self) -> str:
        """The row of a comparison that the run belongs to."""
        return self.label or self.method

    @property
    def tested(self) -> float | None:
        """The chosen metric on the global test set; None where there is none."""
        return self.test.of(self.metric)

    @property
    def by_clients(self) -> MeasureScores:
        """The chosen metric over the clients' own test parts."""
        return self.clients.of(self.metric)


class Counts(Result):
    """Examples by part ("train") and class, of everybody and of each client."""

    per_class: dict[str, list[int]] = {}
    per_client: dict[str, dict[str, list[int]]] = {}


class Manifest(Result):
    """What a report reads of manifest.json: the split."""

    fingerprint: dict[str, str] = {}
    shape: list[int] = []
    classes: list[str] = []
    clients: int = 0
    skew: dict[str, float | None] = {}
    counts: Counts = Counts()
    sites: dict[str, object] = {}  # of a network


class TookPart(Result):
    """What a report and an audit read of participation.json."""

    client_seconds: float | None = None
    failures: list[FailureRow] = []
    ledger: Any = None


# -- studies --------------------------------------------------------------------------------------------------------


class PlannedRun(Result):
    """A run of a comparison: the label of its row, and its experiment as tables.

    Where the row is a control, `base` is the label of the row that it is a control of.
    """

    label: str
    experiment: dict[str, Any]
    base: str = ""
    control: str = ""


class ComparisonPlan(Result):
    """comparison.json: all runs, and how many trials find the settings of each method."""

    planned: list[PlannedRun]
    tune: int = 0


class Trial(Result):
    """One try of a search: settings, and the chosen metric on validation parts."""

    settings: dict[str, float]
    validation: float


class TuningResult(Result):
    """What a search chose for a method, and all that it tried."""

    label: str
    chosen: dict[str, float]
    validation: float
    trials: list[Trial]


class StressRow(Result):
    """How accurate a method is with a share of trouble: the mean over `n` seeds."""

    method: str
    trouble: str
    share: float
    accuracy: float
    std: float | None
    n: int


class Measure(Result):
    """A number about synthetic images, as text, and what it means."""

    measure: str
    value: str
    meaning: str


class OwnGan(Result):
    """The GAN of a single client: by class, its records and the share of images nearer to them than to others."""

    client: str
    rows: list[tuple[int, int, float]]


class Quality(Result):
    """quality.json: how good the synthetic images of a run are."""

    measures: list[Measure]
    per_class: dict[str, list[float | None]]
    words: list[str]
    images: str = ""
    own_gans: list[OwnGan] = []
