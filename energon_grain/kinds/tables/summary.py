# SPDX-License-Identifier: Apache-2.0
"""The summary of files of tables that `energon-grain info` prints."""

from __future__ import annotations

from energon_grain.kinds.tables.files import TableFiles
from energon_grain.kinds.tables.source import TableRows
from energon_grain.prepare.samples import Columns
from energon_grain.prepare.summary import TableSummary, summarize_columns
from energon_grain.sources.rows import selected


def summarize_tables(files: TableFiles) -> TableSummary:
    """Describe files of tables. Raises EnergonGrainError as `TableFiles` does."""
    sizes = files.groups.extents[:, :, 2].sum(axis=1)
    types: dict[str, str] = {}
    for number in range(len(files.names)):
        if len(types) < len(files.columns):
            types |= {column.name: str(column.type) for column in files.schema(number) if column.name not in types}
    measured = Columns(selected(TableRows(files)))
    return TableSummary(
        path=files.location,
        files=len(files.names),
        row_groups=len(sizes),
        group_word=files.group_word,
        are_blocks=not files.is_mapped,
        samples=len(files),
        size_bytes=int(sizes.sum()),
        content_id=files.content_id,
        columns={name: types[name] for name in files.columns},
        measured=summarize_columns(measured, measured.stored),
        stale_columns=measured.stale,
        row_group_bytes=(int(sizes.mean()), int(sizes.max())),
    )
