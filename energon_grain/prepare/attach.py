# SPDX-License-Identifier: Apache-2.0
"""Attach a column: one number per sample, read from a file, matched by row or by key."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, FormatError
from energon_grain.formats.columns import ATTACHED, ColumnStage
from energon_grain.sources.kinds import kind_at
from energon_grain.sources.source import Source
from energon_grain.storage.location import name_of

Numbers = npt.NDArray[np.int64 | np.float64]

NUMBER = "number (ints end at 2**63)"
_LARGEST = 2**63 - 1
_KEYS = ("key", "__key__")
_BLOCK_SAMPLES = 1 << 20


def attach_column(stage: ColumnStage, name: str, file: str | npt.NDArray[Any], source: Source) -> list[str]:
    """Read a column from a file; see `measure_dataset`.

    Args:
        file: The path. `PATH:FIELD` names the field if it differs from the column's name. Or the numbers themselves.

    Returns:
        Notes for the user that are not errors.

    Raises:
        ConfigError: The file does not fit the samples.
        FormatError: The file is damaged.
    """
    place = _Attached.of(name, file)
    keys, rows = _numbers_and_keys(place, file, len(source))
    by_key = None if keys is None else _by_key(place, keys, source)
    values = rows if by_key is None else by_key.of(rows)
    # A sample without a number gets NaN, which integer columns cannot hold.
    whole = rows.dtype.kind in "bi" and (by_key is None or by_key.all_matched)
    writer = stage.new(name, np.int64 if whole else np.float64, function=place.written, version=1)
    for at in range(0, len(source), _BLOCK_SAMPLES):
        writer.append(np.asarray(values[at : at + _BLOCK_SAMPLES]))
    if by_key is None or not by_key.unused:
        return []
    return [f"{name}: {by_key.unused:,} of the {len(by_key.keys):,} keys in {name_of(place.path)} match no sample."]


@dataclass(frozen=True)
class _Attached:
    """The source of a column: the file, its field, and the text about both in the column's header."""

    path: str
    field: str
    where: str
    written: str

    @classmethod
    def of(cls, name: str, file: str | npt.NDArray[Any]) -> _Attached:
        path, field, file_name = "an array", name, "FILE"
        if isinstance(file, str):
            path, colon, field = file.rpartition(":")
            if not (colon and field and not os.path.exists(file)):
                path, field = file, name
            if not os.path.isfile(path):
                raise ConfigError(f"the column {name!r}: there is no file {path}; check the path")
            file_name = name_of(path)
        suffix = f":{field}" if field != name else ""
        return cls(path, field, f"{path}: the column {name!r}", f"{ATTACHED}{file_name}{suffix}")


def _numbers_and_keys(
    place: _Attached, file: str | npt.NDArray[Any], total: int
) -> tuple[list[str] | None, npt.NDArray[Any]]:
    if isinstance(file, np.ndarray) or place.path.endswith(".npy"):
        return None, _array(place, file, total)
    keys, rows = _table(place.path, place.field, place.where)
    if keys is None and len(rows) != total:
        raise ConfigError(
            f"{place.where}: without a field `key`, the file must have one row for each of the {total} samples, but it "
            f"has {len(rows)}"
        )
    return keys, rows


def _array(place: _Attached, file: str | npt.NDArray[Any], total: int) -> npt.NDArray[Any]:
    try:
        rows: Any = np.load(place.path, mmap_mode="r", allow_pickle=False) if isinstance(file, str) else file
    except (ValueError, EOFError) as error:
        raise FormatError(f"{place.path}: cannot be attached, it is not a NumPy array: {error}") from error
    if not isinstance(rows, np.ndarray):
        raise FormatError(f"{place.path}: holds several arrays; save one array with `numpy.save` and attach that")
    if rows.ndim != 1 or rows.dtype.kind not in "biuf" or len(rows) != total:
        raise ConfigError(
            f"{place.where}: expected one number for each of the {total} samples, got {rows.dtype}{list(rows.shape)}"
        )
    # Other arrays than unsigned ones stay memory-mapped.
    return _known(rows, place.where) if rows.dtype.kind == "u" else rows


@dataclass(frozen=True)
class _ByKey:
    """The rows of a file in the order of the samples; `places` is (n,) int64, -1 for a sample without a row."""

    keys: list[str]
    places: npt.NDArray[np.int64]

    @property
    def all_matched(self) -> bool:
        return bool((self.places >= 0).all())

    @property
    def unused(self) -> int:
        return len(self.keys) - len(np.unique(self.places[self.places >= 0]))

    def of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(n,) the number of each sample; NaN for samples without one."""
        return rows[self.places] if self.all_matched else np.where(self.places >= 0, rows[self.places], np.nan)


def _by_key(place: _Attached, keys: list[str], source: Source) -> _ByKey:
    order = {key: row for row, key in enumerate(keys)}
    if len(order) < len(keys):
        twice = next(key for row, key in enumerate(keys) if order[key] != row)
        raise ConfigError(f"{place.where}: the file has the key {twice!r} twice; keys must be unique")
    total = len(source)
    places = np.concatenate([_rows_of(order, source, at) for at in range(0, total, _BLOCK_SAMPLES)])
    if not (places >= 0).any():
        own = ", ".join(map(repr, source.read(np.arange(min(3, total))).keys))
        raise ConfigError(
            f"{place.where}: no sample has one of the file's {len(keys)} keys, such as {next(iter(keys), None)!r}; the "
            f"samples' keys are {own}, …"
        )
    return _ByKey(keys, places)


def _rows_of(rows: Mapping[str, int], source: Source, begin: int) -> npt.NDArray[np.int64]:
    """(n,) the row of each sample's key; -1 if the file has no such key."""
    stop = min(begin + _BLOCK_SAMPLES, len(source))
    return np.fromiter((rows.get(key, -1) for key in source.keys(np.arange(begin, stop))), np.int64, stop - begin)


def _table(path: str, field: str, where: str) -> tuple[list[str] | None, npt.NDArray[Any]]:
    """The keys, or None if the file has none, and the numbers of a field."""
    if path.endswith(".csv"):
        keys, found = field_of_rows(_rows(path), field, where)
        found = [_parsed(value) for value in found]
    elif read_field := kind_at(path).read_field:
        keys, found = read_field(path, field, where)
    else:
        raise ConfigError(f"{where}: expected a .npy, .parquet, .csv or .jsonl file")
    is_plain = isinstance(found, np.ndarray) and found.dtype.kind in "biuf"
    return keys, _known(found if is_plain else list(found), where)


def key_beside(names: Collection[str], field: str, where: str) -> str | None:
    """The name of the field that holds keys, or None. Raises ConfigError if `field` is not among the names."""
    if field not in names:
        raise ConfigError(f"{where}: the file has no field {field!r}; it has {', '.join(map(str, names)) or 'none'}")
    return next((name for name in _KEYS if name in names), None)


def _known(values: Sequence[Any] | npt.NDArray[Any], where: str) -> Numbers:
    numbers = as_numbers(values)
    if isinstance(numbers, int):
        raise ConfigError(f"{where}: row {numbers + 1} holds {values[numbers]!r:.100}, which is not a {NUMBER}")
    return numbers


def field_of_rows(rows: Sequence[Mapping[str, Any]], field: str, where: str) -> tuple[list[str] | None, list[Any]]:
    """The keys, or None without a key field, and the values of a field. Raises ConfigError if no row has the field."""
    key = key_beside(dict.fromkeys(name for row in rows for name in row), field, where)
    return None if key is None else [str(row.get(key)) for row in rows], [row.get(field) for row in rows]


def _rows(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # spreadsheets write a BOM before the first name
            return list(csv.DictReader(file))
    except (ValueError, csv.Error) as error:
        raise FormatError(f"{path}: cannot be read as CSV: {error}") from error


def _parsed(text: Any) -> Any:
    """Parse a number from a CSV cell; None for an empty cell, other text unchanged."""
    if not text or not text.strip():
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def as_numbers(values: Sequence[Any] | npt.NDArray[Any]) -> Numbers | int:
    """(n,) int64 or float64, NaN for None; or the index of the first value that is not a number or too large an int."""
    with contextlib.suppress(ValueError, OverflowError):  # for example, nested lists
        found = np.asarray(values)
        if found.ndim == 1 and found.dtype.kind == "u" and found.max(initial=0) > _LARGEST:
            return int(np.argmax(found > _LARGEST))
        if found.ndim == 1 and found.dtype.kind in "biuf":
            return found.astype(np.float64 if found.dtype.kind == "f" else np.int64, copy=False)
    return _each_as_number(values)


def _each_as_number(values: Sequence[Any] | npt.NDArray[Any]) -> Numbers | int:
    numbers = np.empty(len(values))
    for place, value in enumerate(values):
        if not _is_number(value):
            return place
        try:
            numbers[place] = np.nan if value is None else value
        except TypeError:
            return place
    return numbers


def _is_number(value: Any) -> bool:
    """Whether a value is None or a number that a column can hold."""
    if isinstance(value, int | np.integer):
        return bool(-_LARGEST <= value <= _LARGEST)
    return value is None or (isinstance(value, float | np.number | np.bool_) and not isinstance(value, complex))
