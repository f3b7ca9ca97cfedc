# SPDX-License-Identifier: Apache-2.0
"""What `energon-grain info` says of a JSONL file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from energon_grain.kinds.jsonl.source import JsonlRows
from energon_grain.prepare.samples import Columns
from energon_grain.prepare.summary import (
    ColumnSummary,
    SizeBin,
    column_lines,
    histogram_lines,
    sizes_of_samples,
    summarize_columns,
)
from energon_grain.sources.rows import selected
from energon_grain.words import counted, format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlSummary:
    """What a JSONL file holds.

    Attributes:
        path: The file.
        samples: Number of samples.
        size_bytes: Size of the file.
        content_id: Digest of where its samples are.
        sizes: Histogram of the sizes of samples, line ends and blank lines counted, in powers of two.
        columns: As of a dataset.
        stale_columns: As of a dataset.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    sizes: tuple[SizeBin, ...]
    columns: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]

    def lines(self) -> list[str]:
        """What people read."""
        samples = f"  {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)}"
        kind = "  samples are plain dicts, to be cooked by the program (crude); their one part is json"
        columns = column_lines(self.columns, self.stale_columns)
        return [self.path, samples, kind, "", *columns, *histogram_lines(self.sizes)]


def summarize_jsonl(path: str | os.PathLike[str]) -> JsonlSummary:
    """Describe a JSONL file from its index, which is made if there is none. Raises as `JsonlRows` does."""
    source = selected(JsonlRows(path))
    sizes, total_bytes = sizes_of_samples(source)
    columns = Columns(source)
    return JsonlSummary(
        path=str(path),
        samples=len(source),
        size_bytes=total_bytes,
        content_id=source.content_id,
        sizes=sizes,
        columns=summarize_columns(columns, columns.stored),
        stale_columns=columns.stale,
    )
