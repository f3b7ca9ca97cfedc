# SPDX-License-Identifier: Apache-2.0
"""Reads a column of a Parquet file, to attach it to samples."""

from __future__ import annotations

from typing import Any

from energon_grain.errors import EnergonGrainError, FormatError
from energon_grain.extras import needed_for
from energon_grain.prepare.attach import key_beside


def read_field(path: str, field: str, where: str) -> tuple[list[str] | None, Any]:
    """See `Kind.read_field`."""
    with needed_for("attaching a Parquet file", instead="write the numbers to a CSV or .npy file"):
        import pyarrow.parquet as parquet
    try:
        names = parquet.read_schema(path).names
        key = key_beside(names, field, where)
        table = parquet.read_table(path, columns=[name for name in (key, field) if name])
    except (OSError, ValueError) as error:
        if isinstance(error, EnergonGrainError):
            raise
        raise FormatError(f"{path}: cannot be read as a Parquet file: {error}") from error
    keys = None if key is None else [_key(each, path, key, row) for row, each in enumerate(table[key])]
    return keys, table[field].to_numpy()


def _key(value: Any, path: str, column: str, row: int) -> str:
    """A key of a Parquet file, from its `pyarrow.Scalar`. Raises FormatError if it is not UTF-8."""
    try:
        return str(value.as_py())
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: row {row}: its key in column {column!r} is not UTF-8: {error}") from error
