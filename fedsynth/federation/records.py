"""What a method wants people to see besides its metrics: matrices, groups of clients, tables, pictures, what it added.

A server program hands them to `fed.record(name, …)`; the last one of a name counts. They are kept in `records.json`
and shown by the report. They hold what the server knows already: nothing crosses from a client for them.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, PositiveInt, TypeAdapter, ValidationError, model_validator

from fedsynth.errors import FedsynthError

LARGEST = 1_000_000  # characters of one record: it goes into every checkpoint


_Count = Annotated[int, Field(ge=0)]


class _Record(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    about: str = ""  # a sentence that says what it is
    round: int = 0


class Matrix(_Record):
    """Numbers by row and column, such as the similarity of clients; `marks` are cells that were chosen."""

    kind: Literal["matrix"]
    rows: list[str]
    columns: list[str] = []  # the rows again, unless given
    values: list[list[float | None]]
    marks: list[tuple[int, int]] = []

    @model_validator(mode="after")
    def _fits(self) -> "Matrix":
        columns = len(self.columns or self.rows)
        if len(self.values) != len(self.rows) or any(len(row) != columns for row in self.values):
            raise ValueError(f"the values must be {len(self.rows)} rows of {columns}")
        if any(not (0 <= row < len(self.rows) and 0 <= column < columns) for row, column in self.marks):
            raise ValueError("a mark lies outside of the values")
        return self


class Groups(_Record):
    """Who belongs together."""

    kind: Literal["groups"]
    groups: dict[str, list[str]]


class Listing(_Record):
    """Rows of text and numbers under named columns."""

    kind: Literal["table"]
    columns: list[str]
    rows: list[list[str | float | int | None]]

    @model_validator(mode="after")
    def _fits(self) -> "Listing":
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row must have {len(self.columns)} cells")
        return self


class Pictures(_Record):
    """Small pictures by row and column: their bytes in this order, with channels, height and width, as base64."""

    kind: Literal["pictures"]
    rows: Annotated[list[str], Field(min_length=1)]
    columns: Annotated[list[str], Field(min_length=1)]
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    pixels: str

    @model_validator(mode="after")
    def _fits(self) -> "Pictures":
        expected = len(self.rows) * len(self.columns) * math.prod(self.shape)
        count = len(base64.b64decode(self.pixels, validate=True))
        if count != expected:
            raise ValueError(f"there must be {expected} bytes of pixels, not {count}")
        return self

    def images(self) -> np.ndarray:
        """Numbers from 0 to 1: (rows, columns, channels, height, width)."""
        values = np.frombuffer(base64.b64decode(self.pixels), np.uint8)
        return values.reshape(len(self.rows), len(self.columns), *self.shape) / 255


LONGEST_SIDE = 64  # of a recorded picture: larger ones are thinned out


def pictures(rows: Mapping[str, np.ndarray], columns: Sequence[str], about: str) -> dict[str, Any]:
    """A record of pictures: for every row one of each column (columns, channels, height, width), from 0 to 1."""
    images = np.stack(list(rows.values()))
    step = -(-max(images.shape[-2:]) // LONGEST_SIDE)
    thin = images[..., ::step, ::step]
    pixels = base64.b64encode((np.clip(thin, 0, 1) * 255).round().astype(np.uint8).tobytes()).decode()
    named = {"rows": list(rows), "columns": list(columns)}
    return {"kind": "pictures", "about": about, **named, "shape": thin.shape[2:], "pixels": pixels}


SYNTHETIC = "synthetic samples"
ADDED, ADDED_AT_SERVER = "what was added", "what the server trains on"
"""The names of the records of additions: to the clients' data, and to that of a server which trains itself."""


class Additions(_Record):
    """What was added to the data of each client, by class, a row per client (see `components/additions.py`).

    exact: read by a simulation from what its clients noted; planned: what the server ordered, by what had been released
    to it anyway; unknown: nobody at the server can tell. `held` are counts that clients released, with noise of this σ.
    """

    kind: Literal["additions"]
    what: str
    basis: Literal["exact", "planned", "unknown"]
    clients: list[str] = []
    added: list[list[_Count]] = []
    held: list[list[_Count]] = []
    noise: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> "Additions":
        for rows in (self.added, self.held):
            if rows and (len(rows) != len(self.clients) or len({len(row) for row in rows}) > 1):
                raise ValueError(f"there must be {len(self.clients)} rows of equal length, one for each client")
        return self


Recorded = Matrix | Groups | Listing | Pictures | Additions
Record = Annotated[Recorded, Field(discriminator="kind")]
_READER: TypeAdapter[Recorded] = TypeAdapter(Record)


def read_record(value: Any) -> Recorded:
    """A record as it was kept; ValueError (of pydantic) when it is none."""
    return _READER.validate_python(value)


def checked_record(name: str, value: Any, round: int) -> dict[str, Any]:
    """A record as JSON can keep it; arrays become lists."""
    try:
        plain = json.loads(json.dumps(value, default=lambda array: array.tolist()))
        kept = read_record({**plain, "round": round}).model_dump(mode="json", exclude_defaults=True)
    except (TypeError, AttributeError, ValidationError) as error:
        raise FedsynthError(f'fed.record("{name}", …) cannot keep this: {error}') from None
    if len(json.dumps(kept)) > LARGEST:
        raise FedsynthError(f'fed.record("{name}", …): more than {LARGEST:,} characters; record a summary of it.')
    return kept
