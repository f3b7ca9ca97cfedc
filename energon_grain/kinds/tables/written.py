# SPDX-License-Identifier: Apache-2.0
"""Writes columns to a Parquet file, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from energon_grain.extras import needed_for

ENDING = ".parquet"
"""Of the names of such files."""


def write_columns(file: BinaryIO, blocks: Iterable[Mapping[str, Any]], names: Iterable[str]) -> None:
    """Write blocks of equal columns: numpy arrays, lists of texts, or a single text for all rows.

    Args:
        file: The file.
        blocks: At least one; columns by name.
        names: All values of columns that are single texts.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    with needed_for("writing Parquet", instead="write .csv or .npz"):
        import pyarrow as pa
        from pyarrow import parquet
    arrow: Any = pa
    known = list(dict.fromkeys(names))
    writer: Any = None
    try:
        for block in blocks:
            rows = len(next(column for column in block.values() if not isinstance(column, str)))
            columns = {name: _column(arrow, column, rows, known) for name, column in block.items()}
            table = arrow.table(columns)
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema)  # type: ignore[no-untyped-call]
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _column(arrow: Any, column: Any, rows: int, known: list[str]) -> Any:
    if isinstance(column, str):
        number = np.full(rows, known.index(column), np.int32)
        return arrow.DictionaryArray.from_arrays(number, arrow.array(known, arrow.string()))
    return arrow.array(column, arrow.string()) if isinstance(column, list) else arrow.array(column)
