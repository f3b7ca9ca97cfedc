"""The source of a prepared folder of shards, whatever kind of files these are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.nv_meta import DatasetInfo, DatasetKind, dataset_kind
from energon_grain.sources.array_record import ArrayRecordSource
from energon_grain.sources.source import PartFilter
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
    kind: DatasetKind | None = None,
    info: DatasetInfo | None = None,
) -> PreparedSource:
    """Open tars or ArrayRecord files; what is raised is as of the two sources, and so are the arguments but for `kind`.

    Args:
        path: See there, and for the others.
        shards: See there.
        parts: See there.
        start: See there.
        stop: See there.
        excluded: See there.
        kind: What lies at the path, where that is known. What is not there, or not prepared, is taken for tars, and the
            error says so.
        info: See there.
    """
    folder = open_folder(path)
    records = (kind or dataset_kind(folder.local)) is DatasetKind.ARRAY_RECORD
    source = ArrayRecordSource if records else WebDatasetSource
    return source(folder, shards=shards, parts=parts, start=start, stop=stop, excluded=excluded, info=info)
