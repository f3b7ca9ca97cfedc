# SPDX-License-Identifier: Apache-2.0
"""The summary of arrays that `energon-grain info` prints."""

from __future__ import annotations

import os
from dataclasses import dataclass

from energon_grain.kinds.arrays.source import ArrayGroupRows
from energon_grain.sources.rows import selected
from energon_grain.words import counted, format_bytes, table


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayForm:
    """Properties of one array.

    Attributes:
        type: Type of its elements.
        row_shape: Shape of a row.
        row_bytes: Size of a row.
        chunk_rows: Consecutive rows that are decompressed together.
    """

    type: str
    row_shape: tuple[int, ...]
    row_bytes: int
    chunk_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySummary:
    """Properties of a group of arrays. A single array is a group of one.

    Attributes:
        path: The folder.
        samples: Number of rows.
        size_bytes: Uncompressed size of all rows.
        content_id: Digest of the arrays; see `ArraySource.content_id`.
        arrays: The arrays by name.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    arrays: dict[str, ArrayForm]

    def lines(self) -> list[str]:
        """The summary as text."""
        rows = [
            (
                name,
                f"{array.type}{list(array.row_shape)}",
                format_bytes(array.row_bytes),
                f"in chunks of {array.chunk_rows:,} rows",
            )
            for name, array in self.arrays.items()
        ]
        return [
            self.path,
            f"  {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)} of rows, uncompressed",
            "  samples are crude: dicts of parts, which the program cooks; the parts are rows of arrays",
            "",
            "Parts",
            *table(rows, "<<><"),
        ]


def summarize_arrays(path: str | os.PathLike[str]) -> ArraySummary:
    """Describe an array or group.

    Raises EnergonGrainError as `ArrayGroupRows` does, and FormatError if TensorStore cannot read an array.
    """
    group = ArrayGroupRows(path)
    source = selected(group)
    arrays = {
        name: ArrayForm(
            type=array.dtype.name, row_shape=array.row_shape, row_bytes=array.row_bytes, chunk_rows=array.chunk_rows
        )
        for name, array in group.arrays.items()
    }
    return ArraySummary(
        path=source.path,
        samples=len(source),
        size_bytes=len(source) * sum(array.row_bytes for array in arrays.values()),
        content_id=source.content_id,
        arrays=arrays,
    )
