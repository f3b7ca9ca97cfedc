"""Attaching: one more number of every sample, from a file that somebody else made, by row or by key."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EnergonGrainError, FormatError
from energon_grain.extras import needed_for
from energon_grain.formats.columns import ATTACHED, ColumnStage
from energon_grain.sources.source import Source
from energon_grain.storage.location import name_of

Numbers = npt.NDArray[np.int64 | np.float64]

NUMBER = "number (ints end at 2**63)"
_LARGEST = 2**63 - 1
_KEYS = ("key", "__key__")
_BLOCK_SAMPLES = 1 << 20


def attach_column(stage: ColumnStage, name: str, file: str | npt.NDArray[Any], source: Source) -> list[str]:
    """Take a column from a file; see `measure_dataset`.

    Args:
        file: The file; behind a colon the field, where it is called otherwise. Or the numbers.

    Returns:
        What the user should know though it is no error.

    Raises:
        ConfigError: The file does not fit the samples.
        FormatError: It is damaged.
    """
    path, field = "an array", name
    if isinstance(file, str):
        path, colon, field = file.rpartition(":")
        if not (colon and field and not os.path.exists(file)):
            path, field = file, name
        if not os.path.isfile(path):
            raise ConfigError(f"the column {name!r}: there is no file {path}")
    written = ATTACHED + (name_of(path) if isinstance(file, str) else "FILE") + (f":{field}" if field != name else "")
    total, where = len(source), f"{path}: the column {name!r}"
    if isinstance(file, np.ndarray) or path.endswith(".npy"):
        try:
            rows: Any = np.load(path, mmap_mode="r", allow_pickle=False) if isinstance(file, str) else file
        except (ValueError, EOFError) as error:
            raise FormatError(f"{path}: is no array that can be attached: {error}") from error
        if not isinstance(rows, np.ndarray):
            raise FormatError(f"{path}: is no array that can be attached, but an archive of several")
        if rows.ndim != 1 or rows.dtype.kind not in "biuf" or len(rows) != total:
            raise ConfigError(
                f"{where}: has {rows.dtype}{list(rows.shape)}; there must be one number for each of the {total} samples"
            )
        if rows.dtype.kind == "u":  # others are left where they are mapped
            rows = _known(rows, where)
        keys = None
    else:
        keys, rows = _table(path, field, where)
        if keys is None and len(rows) != total:
            raise ConfigError(
                f"{where}: has no field `key`, so it must have a row for each of the {total} samples, and it has "
                f"{len(rows)}"
            )
    whole = rows.dtype.kind in "bi"
    notes: list[str] = []
    if keys is not None:
        order = {key: row for row, key in enumerate(keys)}
        if len(order) < len(keys):
            twice = next(key for row, key in enumerate(keys) if order[key] != row)
            raise ConfigError(f"{where}: has the key {twice!r} twice")
        places = np.concatenate([_rows_of(order, source, at) for at in range(0, total, _BLOCK_SAMPLES)])
        there = places >= 0
        matched = int(np.count_nonzero(there))
        if not matched:
            own = ", ".join(map(repr, source.read(np.arange(min(3, total))).keys))
            raise ConfigError(
                f"{where}: none of its {len(keys)} keys, such as {next(iter(keys), None)!r}, is one of a sample; those "
                f"are {own}, …"
            )
        values = np.where(there, rows[places], np.nan) if matched < total else rows[places]
        whole = whole and matched == total
        unused = len(keys) - len(np.unique(places[there]))
        if unused:
            notes.append(f"{name}: {unused:,} of the {len(keys):,} keys in {name_of(path)} are of no sample.")
    else:
        values = rows
    writer = stage.new(name, np.int64 if whole else np.float64, function=written, version=1)
    for at in range(0, total, _BLOCK_SAMPLES):
        writer.append(np.asarray(values[at : at + _BLOCK_SAMPLES]))
    return notes


def _rows_of(rows: Mapping[str, int], source: Source, begin: int) -> npt.NDArray[np.int64]:
    """(n,) the row of each sample's key; -1 where there is none."""
    stop = min(begin + _BLOCK_SAMPLES, len(source))
    return np.fromiter((rows.get(key, -1) for key in source.keys(np.arange(begin, stop))), np.int64, stop - begin)


def _table(path: str, field: str, where: str) -> tuple[list[str] | None, npt.NDArray[Any]]:
    """Keys, if it has any, and the numbers of a field."""
    if path.endswith(".parquet"):
        with needed_for("attaching a Parquet file", instead="write the numbers to a CSV or .npy file"):
            import pyarrow.parquet as parquet
        try:
            names = parquet.read_schema(path).names
            key = next((name for name in _KEYS if name in names), None)
            if field not in names:
                raise ConfigError(f"{where}: has no field {field!r}; there are {', '.join(names)}")
            table = parquet.read_table(path, columns=[name for name in (key, field) if name])
        except (OSError, ValueError) as error:
            if isinstance(error, EnergonGrainError):
                raise
            raise FormatError(f"{path}: is no Parquet file that can be read: {error}") from error
        keys = None if key is None else [_key(each, path, key, row) for row, each in enumerate(table[key])]
        found: Any = table[field].to_numpy()
    else:
        keys, found = _text_table(path, field, where)
    is_plain = isinstance(found, np.ndarray) and found.dtype.kind in "biuf"
    return keys, _known(found if is_plain else list(found), where)


def _key(value: Any, path: str, column: str, row: int) -> str:
    """A key of a Parquet file, by its `pyarrow.Scalar`. Raises FormatError where it is no UTF-8."""
    try:
        return str(value.as_py())
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: row {row}: its key in column {column!r} is no UTF-8: {error}") from error


def _known(values: Sequence[Any] | npt.NDArray[Any], where: str) -> Numbers:
    numbers = as_numbers(values)
    if isinstance(numbers, int):
        raise ConfigError(f"{where}: holds {values[numbers]!r:.100} in row {numbers + 1}, which is no {NUMBER}")
    return numbers


def _text_table(path: str, field: str, where: str) -> tuple[list[str] | None, list[Any]]:
    if not path.endswith((".csv", ".jsonl")):
        raise ConfigError(f"{where}: columns are taken from .npy, .parquet, .csv and .jsonl files")
    is_csv = path.endswith(".csv")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # else the key of a spreadsheet's is not found
            rows = list(csv.DictReader(file)) if is_csv else [json.loads(line) for line in file if line.strip()]
    except (ValueError, csv.Error) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from error
    if any(not isinstance(row, dict) for row in rows):
        raise FormatError(f"{path}: has lines that are no objects")
    names = dict.fromkeys(name for row in rows for name in row)
    key = next((name for name in _KEYS if name in names), None)
    if field not in names:
        raise ConfigError(f"{where}: has no field {field!r}; there are {', '.join(map(str, names)) or 'none'}")
    values = [row.get(field) for row in rows]
    if is_csv:
        values = [_parsed(value) for value in values]
    return None if key is None else [str(row.get(key)) for row in rows], values


def _parsed(text: Any) -> Any:
    """A number as it is written in a table; nothing is none."""
    if not text or not text.strip():
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def as_numbers(values: Sequence[Any] | npt.NDArray[Any]) -> Numbers | int:
    """(n,) int64 or float64, NaN for None; or the place of the first value that is no number, or too large an int."""
    with contextlib.suppress(ValueError, OverflowError):  # lists of lists, say
        found = np.asarray(values)
        if found.ndim == 1 and found.dtype.kind == "u" and found.max(initial=0) > _LARGEST:
            return int(np.argmax(found > _LARGEST))
        if found.ndim == 1 and found.dtype.kind in "biu":
            return found.astype(np.int64, copy=False)
        if found.ndim == 1 and found.dtype.kind == "f":
            return found.astype(np.float64, copy=False)
    numbers = np.empty(len(values))
    for place, value in enumerate(values):
        if not (value is None or isinstance(value, int | float | np.number | np.bool_)) or isinstance(value, complex):
            return place
        if isinstance(value, int | np.integer) and not -_LARGEST <= value <= _LARGEST:
            return place
        try:
            numbers[place] = np.nan if value is None else value
        except TypeError:
            return place
    return numbers
