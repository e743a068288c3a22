"""The `[data]` table of an experiment: where the examples come from and how much of them is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from fedsynth.errors import ConfigError, nearest

ClassList = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


class DataConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the data comes from. Frozen; an unknown key is an error."""

    name: str = Field(
        "digits",
        description='A known name ("digits", "mnist", ...) or "kind:path" (idx, npz, images, csv, parquet, clients).',
    )
    sources: tuple[str, ...] = Field(
        (), description="Several names instead of one; each client belongs to one of them."
    )
    shares: tuple[int, ...] = Field(
        (), description="How the clients are divided over the sources, such as [3, 3, 3]; evenly when empty."
    )
    labels: Literal["shared", "separate"] = Field(
        "shared", description="Whether the sources use the same label numbers or each its own."
    )
    dir: Path | None = Field(None, description="Folder of the known data sets; otherwise the variable FEDSYNTH_DATA.")
    limit: int | None = Field(None, ge=1, description="Keep this many training examples, stratified by class.")
    classes: tuple[ClassList, ...] | ClassList | None = Field(
        None, description="Keep only these labels or class names, renumbered; one list per source if several."
    )
    label: str = Field("label", description="Column of a csv or parquet file that holds the label.")
    client_column: str | None = Field(
        None, description="Column of a csv or parquet file that says which client a row belongs to."
    )
    shape: tuple[int, ...] | None = Field(
        None, description="Shape of one example, such as [1, 28, 28], when the file stores flat rows."
    )
    image_size: int | tuple[int, int] | None = Field(
        None, description="Resize images to this side, or to [height, width]."
    )
    validation: float = Field(0.1, ge=0, lt=1, description="Fraction of each client's data for validation.")
    test: float = Field(0.1, ge=0, lt=1, description="Fraction of each client's data for its own test.")
    label_noise: float = Field(
        0, ge=0, le=1, description="Fraction of the training labels that are wrong, for tests of robustness."
    )
    client_test: Literal["own", "source"] = Field(
        "own",
        description="What a client is tested on: this share of its own data, or the whole test set of its source.",
    )
    global_test: float = Field(
        0.2, gt=0, lt=1, description="Fraction held out for the global test when the source has no test part."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "DataConfig":
        if self.validation + self.test >= 1:
            raise ValueError("validation and test together must stay below 1, so that something is left to train on")
        if self.shares and len(self.shares) != len(self.sources):
            raise ValueError(
                f"shares has {len(self.shares)} numbers but sources has {len(self.sources)} names; give one number each"
            )
        if any(share < 1 for share in self.shares):
            raise ValueError("every number in shares must be at least 1")
        sides = (self.shape or ()) + (self.size or ())
        if any(side < 1 for side in sides):
            raise ValueError("shape and image_size need numbers of at least 1")
        return self

    @property
    def size(self) -> tuple[int, int] | None:
        """The wanted image size as (height, width), if one was given."""
        if self.image_size is None or isinstance(self.image_size, tuple):
            return self.image_size
        return (self.image_size, self.image_size)

    def classes_of(self, source: int, sources: int) -> ClassList | None:
        """The classes kept of one source: a list of lists gives each source its own."""
        if self.classes is None or not any(isinstance(entry, tuple) for entry in self.classes):
            return self.classes  # type: ignore[return-value]
        if len(self.classes) != sources:
            raise ConfigError(
                f"data.classes has {len(self.classes)} lists but there are {sources} sources; give one list each."
            )
        return self.classes[source]  # type: ignore[return-value]


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> ConfigError:
    """Turn pydantic's report into one sentence that names the key and the fix."""
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return ConfigError(f'{where} has no key "{key}".{nearest(key, model.model_fields)}')
    reason = str(first["msg"]).removeprefix("Value error, ")
    subject = f"{where}: {key} = {first['input']!r}" if key else where
    return ConfigError(f"{subject} cannot be used: {reason[:1].lower()}{reason[1:]}.")


def parse_table(model: type[Model], table: Mapping[str, object], where: str) -> Model:
    """A model from a plain table; a wrong key or value is a `ConfigError` of one sentence that says `where`."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise explain(error, where, model) from None


def parse_data(table: Mapping[str, object]) -> DataConfig:
    """A `DataConfig` from a plain table."""
    return parse_table(DataConfig, table, "data")
