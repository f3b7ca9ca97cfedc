"""The source of a prepared folder of shards, whatever kind of files these are."""

from __future__ import annotations

import os
from typing import TypeAlias, Unpack

from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import holds_records
from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.indexed import SourceOptions
from energon_grain.sources.webdataset import WebDatasetSource

PreparedSource: TypeAlias = WebDatasetSource | ArrayRecordSource


def open_prepared(path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> PreparedSource:
    """Open tars or ArrayRecord files, whose records are read whole; arguments and errors are those of the two sources.

    What is not there, or not prepared, is taken for tars, and the error says so.
    """
    folder = open_folder(path)
    if not holds_records(folder.local):
        return WebDatasetSource(folder, **options)
    options["lazy"] = None
    return ArrayRecordSource(folder, **options)
