# SPDX-License-Identifier: Apache-2.0
"""What `energon-grain info` says of arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass

from energon_grain.kinds.arrays.source import ArrayGroupRows
from energon_grain.sources.rows import selected
from energon_grain.words import counted, format_bytes, table


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayForm:
    """What one array is.

    Attributes:
        type: Of its numbers.
        row_shape: Of a row.
        row_bytes: Size of a row.
        chunk_rows: Consecutive rows that are decompressed together.
    """

    type: str
    row_shape: tuple[int, ...]
    row_bytes: int
    chunk_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySummary:
    """What a group of arrays holds; an array is a group of one.

    Attributes:
        path: The folder.
        samples: Number of rows.
        size_bytes: Size of all rows, not compressed.
        content_id: Digest of what the arrays hold; see `ArraySource.content_id`.
        arrays: By name.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    arrays: dict[str, ArrayForm]

    def lines(self) -> list[str]:
        """What people read."""
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
            f"  {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)} of rows, not compressed",
            "  samples are plain dicts, to be cooked by the program (crude); their parts are rows of arrays",
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
