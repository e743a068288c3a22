"""What an experiment holds: sections with a default for every key, and errors that name the key."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

import fedsynth.methods  # noqa: F401  (registers all methods)
from fedsynth.components.settings import MethodConfig, TrainConfig
from fedsynth.data.config import DataConfig, parse_table
from fedsynth.data.partition import parse_partition
from fedsynth.engines.faults import FaultConfig
from fedsynth.errors import ConfigError, nearest
from fedsynth.evaluation.scores import Metric
from fedsynth.experiment.files import Tables, load_plugins, load_tables
from fedsynth.federation.methods import find_method
from fedsynth.learning.models import ModelSpec
from fedsynth.privacy import PrivacyConfig


class EngineConfig(BaseModel, frozen=True, extra="forbid"):
    """The `[engine]` section."""

    name: Literal["local", "wire", "flower"] = Field(
        "local", description="local: this machine; flower: sites on a network; wire: bytes only, for tests"
    )
    workers: int | None = Field(None, ge=1, description="worker processes (one per core); 1 stays in this process")
    device: str = Field("cpu", description='"cpu", "cuda", "cuda:1" … or "auto": cuda where there is one')
    superlink: str | None = Field(None, description='flower: address of the SuperLink, such as "127.0.0.1:9092"')
    certificate: Path | None = Field(
        None, description="flower: file of the certificate authority that it is trusted by"
    )
    sites: tuple[str, ...] = Field((), description="flower: the sites of this run, by the names of their keys")
    wait: float = Field(300.0, ge=0, description="flower: seconds to wait at the start until all sites are there")

    @model_validator(mode="after")
    def _reachable(self) -> "EngineConfig":
        missing = [key for key in ("superlink", "certificate", "sites") if not getattr(self, key)]
        if self.name == "flower" and missing:
            raise ValueError(f"a network needs engine.{missing[0]}; see docs/network.md")
        if len(set(self.sites)) < len(self.sites):
            raise ValueError("sites names one of them twice")
        return self


class EvaluationConfig(BaseModel, frozen=True, extra="forbid"):
    """The `[evaluation]` section."""

    metric: Metric = Field(
        "accuracy",
        description="what validation, the best model, patience, tuning, tables and advice go by; AUROC and AUPRC are "
        "those of the second class of two, and means over the classes of more, as macro F1 is",
    )
    every: int = Field(1, ge=0, description="validate every so many rounds; 0: only at the end")
    clients: int = Field(
        100, ge=0, description="clients that validate during training; a sample where there are more; 0: none is asked"
    )
    final_clients: int = Field(
        10_000, ge=0, description="clients evaluated at the end; a sample where there are more; 0: none is asked"
    )
    class_counts: bool = Field(
        False,
        description="over a network: ask every site once for its class counts, exact and without a guarantee, so that "
        "the report can show who has what; simulations know them anyway",
    )
    test_curve: bool = Field(
        False, description="also evaluate on the global test set while training, as papers print it"
    )


class Experiment(BaseModel, frozen=True, extra="forbid"):
    """A whole experiment. `method` holds the settings of the named method, checked by its own class."""

    seed: int = Field(0, ge=0, description="all randomness comes from here")
    data_seed: int | None = Field(None, ge=0, description="seed of the split, where it should not follow `seed`")
    name: str | None = Field(None, pattern=r"^[^/\\.][^/\\]*$", max_length=200, description="name of the run folder")
    runs: Path = Field(Path("runs"), description="folder of the run folders")
    plugins: tuple[Path, ...] = Field((), description="Python files with methods, models or tasks of your own")
    data: DataConfig = Field(default_factory=DataConfig)
    partition: Tables = Field(default_factory=dict)
    model: ModelSpec | None = None
    train: TrainConfig = Field(default_factory=TrainConfig)
    method: Tables = Field(default_factory=lambda: {"name": "fedavg"})
    engine: EngineConfig = Field(default_factory=EngineConfig)
    faults: FaultConfig = Field(default_factory=FaultConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)

    @model_validator(mode="after")
    def _sections_agree(self) -> "Experiment":
        if self.train.patience is not None and not (self.evaluation.every and self.evaluation.clients):
            raise ValueError(
                "train.patience stops by validation during training, which evaluation.every = 0 or evaluation.clients "
                "= 0 turns off: remove one of the two"
            )
        if self.privacy.secure_aggregation and (self.faults.byzantine or self.faults.malicious):
            raise ValueError(
                "faults.byzantine and faults.malicious change what single clients send, which "
                "privacy.secure_aggregation hides: remove one of the two"
            )
        return self

    @property
    def method_name(self) -> str:
        """The name of the method."""
        return str(self.method["name"])

    @property
    def model_spec(self) -> ModelSpec:
        """The model that comes out: the experiment's, or the one of the method's paper; or the method's own."""
        return self.method_config().classifier

    def method_config(self) -> MethodConfig:
        """The method's settings, with the training, the model and the privacy put in."""
        kind = find_method(self.method_name).config
        settings = {key: value for key, value in self.method.items() if key != "name"}
        allowed = kind.own_settings()
        for key in settings:
            if key not in allowed:
                raise ConfigError(f'method "{self.method_name}" has no setting "{key}".{nearest(key, allowed)}')
        model = self.model or ModelSpec(name=find_method(self.method_name).model)
        common = {"train": self.train, "model": model, "privacy": self.privacy}
        return parse_table(kind, {**common, **settings}, f'method "{self.method_name}"')

    def resolved(self) -> Tables:
        """Everything that decides the result, with defaults filled in; what a run folder keeps."""
        table = self.model_dump(mode="json")
        table["model"] = self.model_spec.model_dump(mode="json")
        table["method"] = {"name": self.method_name, **self.method_config().model_dump(mode="json")}
        return table


SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "model": ModelSpec,
    "train": TrainConfig,
    "engine": EngineConfig,
    "faults": FaultConfig,
    "evaluation": EvaluationConfig,
    "privacy": PrivacyConfig,
}


def make_experiment(tables: Mapping[str, Any]) -> Experiment:
    """Check an experiment's tables; the first mistake is an error of one sentence that names the key and the fix.

    `[methods.NAME]` sections hold settings of single methods, for comparisons; the one of the chosen method applies.
    `[rows]` are those of a comparison: a single run has no use for them.
    """
    given = {key: value for key, value in tables.items() if value is not None and key != "rows"}
    _check_sections(given)
    given["plugins"] = load_plugins(given.get("plugins", ()))
    given["method"] = _chosen_method(given.pop("methods", {}), given.get("method", {}))
    experiment = parse_table(Experiment, given, "the experiment")
    if experiment.partition:
        parse_partition(experiment.partition)
    experiment.method_config()
    return experiment


def _check_sections(tables: Mapping[str, Any]) -> None:
    known = (*Experiment.model_fields, "methods")
    for key, value in tables.items():
        if key not in known:
            inside = [f"{name}.{key}" for name, section in SECTIONS.items() if key in section.model_fields]
            hint = f' Did you mean "{inside[0]}"?' if inside else nearest(key, known)
            raise ConfigError(f'The experiment has no key "{key}".{hint}')
        if key in (*SECTIONS, "partition", "method", "methods") and not isinstance(value, Mapping):
            raise ConfigError(f'"{key}" must be a section, such as [{key}] with name = "…".')
    for section, kind in SECTIONS.items():
        parse_table(kind, dict(tables.get(section, {})), section)


def _chosen_method(methods: Mapping[str, Any], method: Mapping[str, Any]) -> Tables:
    chosen = {"name": "fedavg", **method}
    if not isinstance(chosen["name"], str):
        raise ConfigError(f"method: name = {chosen['name']!r} cannot be used: it must be the name of a method.")
    for name, settings in methods.items():
        find_method(name)
        if not isinstance(settings, Mapping):
            raise ConfigError(f'"methods.{name}" must be a section with settings of that method.')
    return {**methods.get(chosen["name"], {}), **chosen}


def load_experiment(file: Path | None, assignments: Iterable[str] = ()) -> Experiment:
    """An experiment from a file (or from defaults alone) and overrides."""
    return make_experiment(load_tables(file, assignments))
