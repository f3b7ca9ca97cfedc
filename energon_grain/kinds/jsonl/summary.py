# SPDX-License-Identifier: Apache-2.0
"""The summary of a JSONL file that `energon-grain info` prints."""

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
    """Properties of a JSONL file.

    Attributes:
        path: The file.
        samples: Number of samples.
        size_bytes: Size of the file.
        content_id: Digest of the offsets of its samples.
        sizes: Histogram of sample sizes, including line ends and blank lines, in powers of two.
        columns: As for a dataset.
        stale_columns: As for a dataset.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    sizes: tuple[SizeBin, ...]
    columns: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]

    def lines(self) -> list[str]:
        """The summary as text."""
        samples = f"  {counted(self.samples, 'sample')}, {format_bytes(self.size_bytes)}"
        kind = "  samples are crude: dicts of parts, which the program cooks; the only part is json"
        columns = column_lines(self.columns, self.stale_columns)
        return [self.path, samples, kind, "", *columns, *histogram_lines(self.sizes)]


def summarize_jsonl(path: str | os.PathLike[str]) -> JsonlSummary:
    """Describe a JSONL file from its index, which is created if there is none. Raises as `JsonlRows` does."""
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
