"""The source of a prepared folder of shards, whatever kind of files these are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind
from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.part_filter import PartFilter
from energon_grain.sources.webdataset import WebDatasetSource

PreparedSource: TypeAlias = WebDatasetSource | ArrayRecordSource


def open_prepared(
    path: str | os.PathLike[str] | DataFolder,
    *,
    shards: Sequence[str] | None = None,
    parts: PartFilter = None,
    start: int = 0,
    stop: int | None = None,
    excluded: Sequence[tuple[str, str]] = (),
) -> PreparedSource:
    """Open tars or ArrayRecord files; the arguments, and what is raised, are those of the two sources.

    What is not there, or not prepared, is taken for tars, and the error says so.
    """
    folder = open_folder(path)
    records = dataset_kind(folder.local) is DatasetKind.ARRAY_RECORD
    kind = ArrayRecordSource if records else WebDatasetSource
    return kind(folder, shards=shards, parts=parts, start=start, stop=stop, excluded=excluded)
