"""Tables: csv and parquet files with a label column, and perhaps a column that names the client."""

from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data.config import DataConfig
from fedsynth.data.readers.raw import Part, Raw, as_examples, check_part, join_parts
from fedsynth.errors import DataError, nearest

MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "n/a"]


def read_csv(path: Path, config: DataConfig) -> Raw:
    """A csv file, or a folder with train.csv and perhaps val.csv, whose rows join them, and test.csv."""
    return _read(path, config, ".csv", _csv_frame)


def read_parquet(path: Path, config: DataConfig) -> Raw:
    """The same for parquet."""
    return _read(path, config, ".parquet", _parquet_frame)


def _read(path: Path, config: DataConfig, ending: str, open_frame: Any) -> Raw:
    if not path.exists():
        raise DataError(f"{path} does not exist; check the path after {ending[1:]}:.")
    first = path / f"train{ending}" if path.is_dir() else path
    if path.is_dir() and not first.is_file():
        raise DataError(f"{path} is a folder without train{ending}; give the path of a {ending[1:]} file.")
    train, columns, groups = _table(open_frame(first, config), first, config)

    def read_beside(name: str) -> tuple[Part, np.ndarray | None] | None:
        file = path / f"{name}{ending}"
        if not file.is_file():
            return None
        part, others, of_groups = _table(open_frame(file, config), file, config)
        if set(others) != set(columns):
            raise DataError(f"{file} differs from {first.name}: {describe_difference(columns, others)}.")
        if others != columns and part.x.ndim == 2:
            part = Part(part.x[:, [others.index(column) for column in columns]], part.y)
        return part, of_groups

    if validation := read_beside("val"):
        train = join_parts([train, validation[0]])
        groups = None if groups is None or validation[1] is None else np.concatenate([groups, validation[1]])
    test = read_beside("test")
    return Raw(train, test[0] if test else None, columns, groups)


def describe_difference(expected: tuple[str, ...], found: tuple[str, ...]) -> str:
    """What columns are missing and what columns are extra, in words."""
    words = []
    for verb, names in (("lacks", set(expected) - set(found)), ("adds", set(found) - set(expected))):
        if names:
            shown = sorted(names)[:5]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            words.append(f"it {verb} column {', '.join(shown)}{more}")
    return " and ".join(words) or "its columns are in another order"


def _csv_frame(path: Path, config: DataConfig) -> Any:
    import pandas as pd  # takes a while, and most runs read no table

    try:
        header = _header(path)
        text_columns = {config.label, config.client_column}
        # A class may be called "NA" or "None", so only an empty cell is a missing label.
        missing = {column: [""] if column in text_columns else MISSING for column in header}
        types = {config.client_column: str} if config.client_column in header else None
        return pd.read_csv(path, keep_default_na=False, na_values=missing, dtype=types, low_memory=False)
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty; it needs a header line and rows.") from error
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a readable csv file ({str(error).strip()}); correct or export it again."
        ) from error


def _header(path: Path) -> Any:
    """The names of the columns, each of which must be there once."""
    import pandas as pd

    names = pd.read_csv(path, nrows=1, header=None, dtype=str, keep_default_na=False).iloc[0].tolist()
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise DataError(f"{path}: its columns are divided by {other!r}; export it with commas (and points in numbers).")
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if twice:
        raise DataError(f'{path} has several columns "{twice[0]}"; give each a name of its own.')
    return pd.read_csv(path, nrows=0).columns


def _parquet_frame(path: Path, config: DataConfig) -> Any:
    import pandas as pd

    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs pyarrow; run pip install 'fedsynth[parquet]'.") from error
    except Exception as error:  # pyarrow has its own family of errors, and it may be absent
        raise DataError(f"{path} is not a readable parquet file ({error}); write it again.") from error


def _table(frame: Any, path: Path, config: DataConfig) -> tuple[Part, tuple[str, ...], np.ndarray | None]:
    frame = frame.rename(columns=str)
    if not len(frame):
        raise DataError(f"{path} has a header but no rows; fill it or remove it.")
    keys = {"label": config.label, "client_column": config.client_column}
    used = {key: column for key, column in keys.items() if column is not None}
    for key, column in used.items():
        if column not in frame.columns:
            raise DataError(f'{path} has no column "{column}" (data.{key}).{nearest(column, frame.columns)}')
        _refuse_missing(frame[column], path)
    features = frame.drop(columns=list(used.values()))
    if features.shape[1] == 0:
        raise DataError(f"{path} has no feature columns beside {config.label}; add the columns to learn from.")
    named = config.client_column
    groups = None if named is None else frame[named].astype(str).str.strip().to_numpy(dtype=str)
    x = as_examples(_numbers(features, path, config), str(path), config.shape)
    labels = _labels(frame[config.label])
    return check_part(x, labels, f"{path} (column {config.label})"), tuple(features.columns), groups


def _refuse_missing(column: Any, path: Path) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise DataError(f'{path}: column "{column.name}" has no value in {missing} rows; fill or remove those rows.')


def _numbers(features: Any, path: Path, config: DataConfig) -> np.ndarray:
    import pandas as pd

    wrong = []
    for name in features.columns:
        column = features[name]
        _refuse_missing(column, path)
        if not pd.api.types.is_numeric_dtype(column):
            unread = column[pd.to_numeric(column, errors="coerce").isna()]
            row = int(np.flatnonzero(column.index == unread.index[0])[0]) + 1
            wrong.append(f'column "{name}" is not numeric (such as {unread.iloc[0]!r} in row {row})')
    if wrong:
        raise DataError(f"{path}: {'; '.join(wrong)}: encode as numbers, or remove.")
    whole = config.shape is not None and all(pd.api.types.is_integer_dtype(kind) for kind in features.dtypes)
    return features.to_numpy(dtype=np.int64 if whole else np.float32)


def _labels(column: Any) -> np.ndarray:
    from pandas.api.types import is_bool_dtype, is_integer_dtype, is_numeric_dtype

    if is_bool_dtype(column) or not is_numeric_dtype(column):
        return column.astype(str).str.strip().to_numpy(dtype=str)
    whole = is_integer_dtype(column) or bool((column % 1 == 0).all())  # a tool may have written 0 and 1 as 0.0 and 1.0
    return column.to_numpy(dtype=np.int64 if whole else np.float64)
