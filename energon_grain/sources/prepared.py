"""The source of a prepared folder of shards, whatever kind of files these are."""

from __future__ import annotations

import os
from typing import TypeAlias, Unpack

from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import DatasetKind, dataset_kind
from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.indexed import SourceOptions
from energon_grain.sources.webdataset import WebDatasetSource

PreparedSource: TypeAlias = WebDatasetSource | ArrayRecordSource


def open_prepared(
    path: str | os.PathLike[str] | DataFolder, *, kind: DatasetKind | None = None, **options: Unpack[SourceOptions]
) -> PreparedSource:
    """Open tars or ArrayRecord files; arguments and what is raised are as of the two sources.

    `kind` is what lies at the path, where that is known. What is not there, or not prepared, is taken for tars, and the
    error says so.
    """
    folder = open_folder(path)
    records = (kind or dataset_kind(folder.local)) is DatasetKind.ARRAY_RECORD
    return (ArrayRecordSource if records else WebDatasetSource)(folder, **options)
